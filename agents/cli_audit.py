"""The command ``sdp audit``."""

import json
import math
import os
import sys
import textwrap
from pathlib import Path

import click

from stream.audit import Audit, audit
from stream.audit_games import Attack
from stream.errors import PlanError
from stream.privacy.calibration import PrivacyFilter
from stream.privacy.plan import PrivacyPlan

from .text_table import aligned

_FILE = click.Path(dir_okay=False, path_type=Path)
_USAGE_ERROR, _ANSWER_IS_NO = 2, 3
_TEXT_WIDTH = 100
_READINGS = {
    "canaries": "canary coordinates",
    "two_worlds": "with or without a client",
    "difference": "one window minus another",
}
_COMPARED = {
    PrivacyFilter.GDP: "mu that the attacks show, with the mu that rounded Gaussian noise of the "
    "ledger's charges has",
    PrivacyFilter.ZCDP: "mu that the attacks show, with sqrt(2 rho) of the ledger's charges; the "
    "claim is rho-zCDP, and this is the mu of continuous Gaussian noise, from which guesses tell "
    "the plan's discrete noise in less than one case in 100,000",
}


@click.command("audit")
@click.argument("file", type=_FILE, required=False)
@click.option("--plan", type=_FILE, envvar="SDP_PLAN", help="The same as FILE.  [SDP_PLAN]")
@click.option(
    "--games",
    type=click.IntRange(min=1),
    default=40_000,
    show_default=True,
    help="Guessing games to play: four times as many halve the interval.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.999999,
    show_default=True,
    help="Probability that the interval holds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit_command(
    *, file: Path | None, plan: Path | None, games: int, confidence: float, as_json: bool
) -> None:
    """Attack the real head under the plan in FILE, and compare with what it claims.

    Everything runs in this process, without Kafka. Canary clients take part or not, by the toss
    of a coin; how often the coin can be guessed from the releases bounds the privacy loss from
    below. Exit code 0: nothing contradicts the claim; 3: the claim is broken.
    """
    path = file or plan
    if path is None:
        raise click.UsageError("no plan: write `sdp audit plan.toml`, or set SDP_PLAN")
    try:
        audited = PrivacyPlan.from_toml(path.read_text(encoding="utf-8"))
        found = audit(audited, os.urandom, games=games, confidence=confidence)
    except (OSError, UnicodeDecodeError, PlanError) as error:
        click.echo(f"sdp: the plan {path} cannot be audited: {error}", err=True)
        sys.exit(_USAGE_ERROR)
    click.echo(json.dumps(_report(found, audited), indent=2) if as_json else _text(found))
    if not found.passed:
        sys.exit(_ANSWER_IS_NO)


def _report(found: Audit, plan: PrivacyPlan) -> dict[str, object]:
    return {
        "plan_id": plan.plan_id_hex,
        "passed": found.passed,
        "filter": found.privacy_filter.value,
        "compared": _COMPARED[found.privacy_filter],
        "claimed_mu": found.claimed_mu,
        "mu_lower": found.mu_lower,
        "mu_upper": _finite(found.mu_upper),
        "confidence": found.confidence,
        "epsilon_claimed": found.epsilon_claimed,
        "epsilon_lower": found.epsilon_lower,
        "delta": found.delta,
        "releases": found.releases,
        "updates": found.updates,
        "faults": dict(found.faults),
        "attacks": [
            {
                "name": attack.name,
                "games": attack.games,
                "right": attack.right,
                "clients": attack.clients,
                "charged_mu": attack.charged_mu,
                "mu_lower": attack.mu_lower,
                "mu_upper": _finite(attack.mu_upper),
            }
            for attack in found.attacks
        ],
    }


def _finite(value: float) -> float | None:
    """Return ``value``, or None for the infinity that JSON cannot write."""
    return value if math.isfinite(value) else None


def _text(found: Audit) -> str:
    lines = aligned(
        [
            ("claimed", f"mu {found.claimed_mu:.4g}", f"epsilon {found.epsilon_claimed:.4g}"),
            (
                "found",
                f"mu {found.mu_lower:.4g} to {found.mu_upper:.4g}",
                f"epsilon at least {found.epsilon_lower:.4g}",
            ),
        ]
    )
    lines += [
        f"for one client and the whole budget, at delta {found.delta:g}; the interval holds with "
        f"probability {found.confidence:.10g}",
        "",
        "guessing games, and mu of their releases (in games of k clients: of one of them):",
        *aligned([_row(attack) for attack in found.attacks], "  "),
        f"{found.releases:,} windows released, {found.updates:,} updates offered, in process: "
        "decode, validate,",
        "sum, charge, add noise, encode; each release compared with its exact sum and its noise",
    ]
    lines += textwrap.wrap(f"compared: {_COMPARED[found.privacy_filter]}", _TEXT_WIDTH)
    for fault, count in found.faults.items():
        lines += textwrap.wrap(f"fault, {count:,} times: {fault}", _TEXT_WIDTH)
    verdict = "nothing contradicts the claim" if found.passed else "THE CLAIM IS BROKEN"
    return "\n".join([*lines, "", verdict])


def _row(attack: Attack) -> tuple[str, ...]:
    return (
        _READINGS[attack.name],
        f"{attack.right:,} of {attack.games:,} right",
        f"k = {attack.clients}",
        f"charged {attack.charged_mu:.4g}",
        f"found {attack.mu_lower:.4g} to {attack.mu_upper:.4g}",
    )
