import json

import pytest

from agents.calibration_report import calibration_report, calibration_text
from stream.privacy.calibration import Calibration, PrivacyFilter

FITS = Calibration(4.0, 1e-6, 70, 10.0)
DOES_NOT_FIT = Calibration(4.0, 1e-6, 80, 10.0)


def test_the_report_has_the_keys_that_scripts_are_promised() -> None:
    found = calibration_report(FITS, was_question=False)
    assert found == {
        "epsilon": 4.0,
        "delta": 1e-6,
        "windows": 70,
        "noise_multiplier": 10.0,
        "rho": pytest.approx(0.35),
        "filter": "gdp",
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(("asked", "fits"), [(FITS, True), (DOES_NOT_FIT, False)])
def test_a_question_is_answered_in_one_more_key(asked: Calibration, fits: bool) -> None:
    found = calibration_report(asked, was_question=True)
    assert found.pop("fits") is fits
    assert found == calibration_report(asked, was_question=False)


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("windows", "windows: 70"),
        ("epsilon", "epsilon: 4"),
        ("noise_multiplier", "noise multiplier: 10"),
        (None, "fits epsilon 4"),
    ],
)
def test_the_text_begins_with_the_answer(missing: str | None, line: str) -> None:
    assert calibration_text(FITS, missing).splitlines() == [
        line,
        "70 windows of noise multiplier 10 cost 0.35 rho together: epsilon 3.99356 at delta 1e-06",
        "filter: gdp (exact, for rounded Gaussian noise: what sdp adds by default)",
    ]


def test_what_does_not_fit_is_told_what_would() -> None:
    assert calibration_text(DOES_NOT_FIT, None).splitlines()[:2] == [
        "does not fit epsilon 4",
        "would fit: epsilon 4.305842, or windows 70, or noise multiplier 10.6751548",
    ]


def test_each_number_that_would_fit_does() -> None:
    for other in (
        Calibration(4.305842, 1e-6, 80, 10.0),
        Calibration(4.0, 1e-6, 70, 10.0),
        Calibration(4.0, 1e-6, 80, 10.6751548),
    ):
        assert other.fits


@pytest.mark.parametrize(
    ("asked", "others"),
    [
        (Calibration(4.0, 1e-6, 1, 0.9), "epsilon 5.511464, or noise multiplier 1.19351859"),
        (Calibration(4.0, 1e-6, 10**19, 10.0), "windows 70"),
        (Calibration(4.0, 1e-6, 10**19, 0.1), "no change of one number alone"),
    ],
)
def test_only_what_would_fit_is_said(asked: Calibration, others: str) -> None:
    assert calibration_text(asked, None).splitlines()[1] == f"would fit: {others}"


def test_the_filter_is_said_with_the_noise_that_it_is_for() -> None:
    found = Calibration(4.0, 1e-6, 62, 10.0, PrivacyFilter.ZCDP)
    assert calibration_text(found, "windows").splitlines()[-1] == (
        "filter: zcdp (the best conversion, for discrete Gaussian noise)"
    )
