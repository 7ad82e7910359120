import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents import ownership
from agents.ownership import finish, take_over
from agents.transactions import FencedError, OwnershipLostError, TransactionFailedError
from stream.errors import LedgerError


def test_what_runs_is_waited_for_and_the_last_call_comes_after_it():
    order = []
    began = threading.Event()

    def running():
        began.set()
        release.wait(10)
        order.append("running")

    async def main():
        pool = ThreadPoolExecutor(1)
        pool.submit(running)
        began.wait(10)
        asyncio.get_running_loop().call_later(0.05, release.set)
        await finish(pool, lambda: order.append("last"))

    release = threading.Event()
    asyncio.run(main())
    assert order == ["running", "last"]


def test_what_hangs_is_left(monkeypatch, caplog):
    monkeypatch.setattr(ownership, "FINISH_S", 0.05)
    release = threading.Event()

    async def main():
        pool = ThreadPoolExecutor(1)
        pool.submit(release.wait, 10)
        began = time.monotonic()
        await finish(pool)
        waited = time.monotonic() - began
        release.set()
        return waited

    assert asyncio.run(main()) < 5
    assert "left" in caplog.text


class _Feed:
    def __init__(self):
        self.rejoined = 0

    def rejoin(self):
        self.rejoined += 1


def taken_over(feed, open_):
    async def main():
        with ThreadPoolExecutor(1) as pool:
            return await take_over(feed, pool, "taking over", open_)

    return asyncio.run(main())


def test_what_was_opened_is_returned_and_the_group_is_left_alone():
    feed = _Feed()
    assert taken_over(feed, lambda: "opened") == "opened"
    assert feed.rejoined == 0


@pytest.mark.parametrize("error", [FencedError, TransactionFailedError, OwnershipLostError])
def test_an_overtaken_fence_asks_the_group_who_the_owner_is(error, caplog):
    def open_():
        raise error("a newer instance")

    feed = _Feed()
    assert taken_over(feed, open_) is None
    assert feed.rejoined == 1
    assert "a newer instance" in caplog.text


def test_a_ledger_that_cannot_be_trusted_is_the_owners_matter():
    def open_():
        raise LedgerError("broken")

    with pytest.raises(LedgerError, match="broken"):
        taken_over(_Feed(), open_)
