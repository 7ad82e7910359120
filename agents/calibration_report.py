"""What `sdp plan solve` found, as plain data and for people."""

import contextlib
from collections.abc import Iterator

from stream.privacy.calibration import Calibration, PrivacyFilter, calibrate

_FILTERS = {
    PrivacyFilter.GDP: "gdp (exact, for rounded Gaussian noise: what sdp adds by default)",
    PrivacyFilter.ZCDP: "zcdp (the best conversion, for discrete Gaussian noise)",
}


def calibration_report(found: Calibration, *, was_question: bool) -> dict[str, object]:
    """Return ``found`` as plain data; of a question whether it fits, also the answer.

    ``rho`` is what all windows cost together.
    """
    values: dict[str, object] = {
        "epsilon": found.epsilon,
        "delta": found.delta,
        "windows": found.windows,
        "noise_multiplier": found.noise_multiplier,
        "rho": found.rho,
        "filter": found.privacy_filter.value,
    }
    return {**values, "fits": found.fits} if was_question else values


def calibration_text(found: Calibration, missing: str | None) -> str:
    """Return ``found`` for people.

    Args:
        found: What was solved, or asked.
        missing: ``epsilon``, ``windows`` or ``noise_multiplier``, whichever was solved for; None
            if it was a question whether all three fit.
    """
    answer = _verdict(found) if missing is None else [": ".join(_named(found, missing))]
    return "\n".join(
        [
            *answer,
            f"{found.windows} windows of noise multiplier {found.noise_multiplier:.15g} cost "
            f"{found.rho:.6g} rho together: epsilon {found.spent_epsilon:.15g} at delta "
            f"{found.delta:g}",
            f"filter: {_FILTERS[found.privacy_filter]}",
        ]
    )


def _named(found: Calibration, number: str) -> tuple[str, str]:
    """Return the name and the value of one of the three numbers."""
    if number == "windows":
        return "windows", str(found.windows)
    if number == "epsilon":
        return "epsilon", f"{found.epsilon:.15g}"
    return "noise multiplier", f"{found.noise_multiplier:.15g}"


def _verdict(asked: Calibration) -> list[str]:
    if asked.fits:
        return [f"fits epsilon {asked.epsilon:.15g}"]
    others = ", or ".join(_alternatives(asked)) or "no change of one number alone"
    return [f"does not fit epsilon {asked.epsilon:.15g}", f"would fit: {others}"]


def _alternatives(asked: Calibration) -> Iterator[str]:
    """Yield the values of which each makes ``asked`` fit, the other two being as they are."""
    for number in ("epsilon", "windows", "noise_multiplier"):
        # A budget may pay for nothing, or no budget pay for so much: then there is no such value.
        with contextlib.suppress(ValueError):
            other = calibrate(
                epsilon=None if number == "epsilon" else asked.epsilon,
                delta=asked.delta,
                windows=None if number == "windows" else asked.windows,
                noise_multiplier=None if number == "noise_multiplier" else asked.noise_multiplier,
                privacy_filter=asked.privacy_filter,
            )
            yield " ".join(_named(other, number))
