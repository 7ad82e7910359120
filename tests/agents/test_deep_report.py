import json
from dataclasses import replace

from agents.deep_report import (
    ClusterDepth,
    DeepFindings,
    ModelFindings,
    UncheckedWindows,
    unchecked_runs,
)

ROW = ClusterDepth(
    cluster=0,
    sums_checked=7,
    sums_unchecked=(UncheckedWindows(3, 5, 3, "gone"), UncheckedWindows(9, 9, 1, "not public")),
    updates_read=20,
    updates_counted=12,
    updates_refused={"duplicate": 4, "late": 2},
    updates_excused=1,
    updates_waiting=0,
    updates_unchecked=1,
    outbox_records=8,
    committed_offset=20,
)
MODEL = ModelFindings(8, 4, 11, 12, ((0, 2), (5, 5)), 11, 0, 0)
FOUND = DeepFindings(
    is_noise_free=False,
    false_alarm_probability=1e-9,
    noise_energy=1.002,
    clusters=(ROW, replace(ROW, cluster=1, sums_unchecked=(), updates_refused={})),
    model=MODEL,
)


def test_runs_of_windows_have_one_reason() -> None:
    reasons = {1: "a", 2: "a", 4: "a", 5: "b", 9: "a"}
    assert unchecked_runs(reasons, [0, 1, 2, 3, 4, 5, 7, 9]) == [
        UncheckedWindows(1, 2, 2, "a"),
        UncheckedWindows(4, 4, 1, "a"),
        UncheckedWindows(5, 5, 1, "b"),
        UncheckedWindows(9, 9, 1, "a"),
    ]
    # Windows that nobody released do not part a run.
    assert unchecked_runs({1: "a", 3: "a"}, [1, 3]) == [UncheckedWindows(1, 3, 2, "a")]
    assert unchecked_runs({}, [1, 3]) == []


def test_findings_are_json() -> None:
    plain = json.loads(json.dumps(FOUND.as_json(), allow_nan=False))
    assert plain["sums_checked"] == 14
    assert plain["sums_unchecked"] == 4
    first = plain["clusters"][0]
    assert first["sums_unchecked"][0] == {
        "first_window": 3,
        "last_window": 5,
        "windows": 3,
        "reason": "gone",
    }
    assert first["updates_refused"] == {"duplicate": 4, "late": 2}
    assert plain["model"]["compacted"] == [[0, 2], [5, 5]]
    assert plain["model"]["newest_version"] == 11


def test_findings_are_text() -> None:
    assert FOUND.as_text() == [
        "cluster  sums checked  unchecked  updates  counted  refused  waiting",
        "0        7             4          20       12       6        0",
        "1        7             0          20       12       0        0",
        "cluster 0: 3 windows from 3 to 5 not checked: gone",
        "cluster 0: window 9 not checked: not public",
        "cluster 0: refused: 4 duplicate, 2 late",
        "cluster 0: 1 updates were in time by the broker's clock and are not counted, since a "
        "head had reported them late",
        "cluster 1: 1 updates were in time by the broker's clock and are not counted, since a "
        "head had reported them late",
        "beside the sums, the releases have 100.20 % of the energy of the ledger's noise (found "
        "fault with by chance: 1e-09)",
        "model: versions 4 to 11, 4 of the older ones compacted away",
    ]


def test_what_was_not_compared_is_said() -> None:
    bare = replace(FOUND, clusters=(), noise_energy=None)
    model = replace(MODEL, newest_version=None)
    assert bare.as_text()[1:] == [
        "no release could be compared with the sum of its updates",
        "model: versions 4 to 11, 4 of the older ones compacted away",
    ]
    exact = replace(bare, is_noise_free=True, model=model)
    assert exact.as_text()[1:] == [
        "every release was compared as a sum without noise",
        "no model is published",
    ]
    whole = replace(bare, model=replace(MODEL, compacted=()))
    assert whole.as_text()[-1] == "model: versions 4 to 11"
