import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from agents import ownership
from agents.ownership import finish


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
