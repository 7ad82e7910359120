"""The commands ``sdp plan check``, ``curve`` and ``solve``."""

import json
import sys
from pathlib import Path

import click

from stream.errors import PlanError
from stream.privacy.calibration import PrivacyFilter, calibrate
from stream.privacy.plan import PrivacyPlan

from .calibration_report import calibration_report, calibration_text
from .plan_curve import curve_report, curve_text, draw_curve
from .plan_file import read_plan
from .plan_report import describe, report

_FILE = click.Path(dir_okay=False, path_type=Path)
_USAGE_ERROR, _ANSWER_IS_NO = 2, 3
_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def plan() -> None:
    """Look at a privacy plan before anything is spent."""


@plan.command("check")
@click.argument("file", type=_FILE)
@_as_json_option
def check(file: Path, as_json: bool) -> None:
    """Say what FILE guarantees, to whom, and what it costs; refuse what cannot be kept."""
    checked = _read_plan(file)
    click.echo(json.dumps(report(checked), indent=2) if as_json else describe(checked))


@plan.command("curve")
@click.argument("file", type=_FILE)
@click.option("--png", type=_FILE, help="Write the curves as a picture to this file.")
@_as_json_option
def curve(file: Path, png: Path | None, as_json: bool) -> None:
    """Show what more windows cost and what more clients gain under the plan in FILE.

    Epsilon against the number of windows released under the plan's schedule (if that is constant,
    also beyond what its ledger admits); and the noise of the first window's mean, as a vector,
    over the clip norm, against the number of clients. The picture needs matplotlib, of the extra
    `demo`.
    """
    read = _read_plan(file)
    if png is not None:
        _draw(read, png)
    click.echo(json.dumps(curve_report(read), indent=2) if as_json else curve_text(read))


@plan.command("solve")
@click.option("--epsilon", type=float, help="The budget.")
@click.option("--delta", type=float, required=True, help="Its delta, 1e-6 for instance.")
@click.option("--windows", type=int, help="Number of windows that share the budget.")
@click.option(
    "--noise-multiplier",
    type=float,
    help="Standard deviation of the noise over the sensitivity.",
)
@click.option(
    "--filter",
    "privacy_filter",
    type=click.Choice([item.value for item in PrivacyFilter]),
    default=PrivacyFilter.GDP.value,
    show_default=True,
    help="How the ledger converts: gdp is exact, for rounded Gaussian noise, which sdp adds by "
    "default; zcdp is the best conversion for discrete Gaussian noise.",
)
@_as_json_option
def solve(
    *,
    epsilon: float | None,
    delta: float,
    windows: int | None,
    noise_multiplier: float | None,
    privacy_filter: str,
    as_json: bool,
) -> None:
    """Find the missing one of epsilon, windows and noise multiplier.

    Give two of --epsilon, --windows and --noise-multiplier. Windows are those that the exact
    integer ledger admits; epsilon and the noise multiplier are rounded up. With all three, says
    whether they fit, and what would. In the JSON object, rho is what all windows cost together;
    with all three, fits is added.

    Exit code 0: solved, or they fit. 2: the numbers make no sense. 3: they do not fit.
    """
    given = {"epsilon": epsilon, "windows": windows, "noise_multiplier": noise_multiplier}
    missing = next((name for name, value in given.items() if value is None), None)
    try:
        found = calibrate(
            epsilon=epsilon,
            delta=delta,
            windows=windows,
            noise_multiplier=noise_multiplier,
            privacy_filter=PrivacyFilter(privacy_filter),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        was_question = missing is None
        click.echo(json.dumps(calibration_report(found, was_question=was_question), indent=2))
    else:
        click.echo(calibration_text(found, missing))
    if not found.fits:
        sys.exit(_ANSWER_IS_NO)


def _read_plan(path: Path) -> PrivacyPlan:
    try:
        return read_plan(path)
    except PlanError as error:
        click.echo(f"sdp: {error}", err=True)
        sys.exit(_USAGE_ERROR)


def _draw(drawn: PrivacyPlan, path: Path) -> None:
    try:
        draw_curve(drawn, path)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is not installed: pip install 'sdp-stream[agents,demo]'"
        ) from error
    except OSError as error:
        raise click.ClickException(f"the picture {path} cannot be written: {error}") from error
