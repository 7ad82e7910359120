from written_cluster import PLAN

from agents.late_reports import LateReports
from schemas import RejectRecord, encode_reject_record
from stream.aggregation.validation import Reason


def report(offset: int, window: int = 3, **changes: object) -> bytes:
    fields = {"plan_id": PLAN.plan_id, "cluster": 0, "reason": Reason.LATE, "client_id": ""}
    more = {"window": window, "partition": 0, "offset": offset, "detail": "window 3 is sealed"}
    return encode_reject_record(RejectRecord(**{**fields, **more, **changes}))


def test_what_was_reported_late_is_named() -> None:
    reports = LateReports(PLAN, 0, most_per_window=100)
    reports.take(report(7), 1000)
    reports.take(report(8, reason=Reason.MALFORMED), 1000)
    reports.take(report(9, cluster=1), 1000)
    reports.take(report(10, plan_id=bytes(16)), 1000)
    reports.take(b"garbage", 1000)
    reports.take(None, 1000)
    assert [reports.names(offset) for offset in range(7, 11)] == [True, False, False, False]
    assert not reports.may_lack(3, 0)


def test_a_flood_is_reported_in_part() -> None:
    reports = LateReports(PLAN, 0, most_per_window=10)
    for offset in range(9):
        reports.take(report(offset, window=3 + offset % 2), 1000)
    assert not reports.may_lack(3, 0)
    reports.take(report(9), 1000)
    assert reports.may_lack(3, 0)
    assert reports.may_lack(4, 0)
    assert not reports.may_lack(7, 0)


def test_reports_that_were_deleted_may_have_named_what_came_before_the_oldest() -> None:
    reports = LateReports(PLAN, 0, most_per_window=10, is_whole=False)
    assert reports.may_lack(3, 10**15)
    reports.take(b"anything", 2000)
    assert reports.may_lack(3, 1999)
    assert not reports.may_lack(3, 2000)
