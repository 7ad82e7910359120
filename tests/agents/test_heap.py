"""Counted in the process itself, by glibc's own report; each case in a process of its own."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from agents import workers
from agents.heap import seals_at_once
from agents.workers import run_global, run_head

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heaps")

PROGRAM = """
import ctypes, sys, threading
from agents.heap import share_heaps

if "shared" in sys.argv:
    share_heaps()
barrier = threading.Barrier(12)

def work():
    kept = [bytes(10_000) for _ in range(100)]
    barrier.wait()

threads = [threading.Thread(target=work) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]

libc, text, size = ctypes.CDLL(None), ctypes.c_char_p(), ctypes.c_size_t()
libc.open_memstream.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(text.value.count(b"<heap "))
"""


def heaps(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-P", "-c", PROGRAM, *arguments]
    result = subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, check=True
    )
    return int(result.stdout)


def test_threads_share_two_heaps():
    assert heaps("shared") <= 2


def test_without_that_each_thread_would_take_one():
    assert heaps() > 4


def test_what_the_operator_has_set_stays():
    assert heaps("shared", MALLOC_ARENA_MAX="5") == 5


@pytest.mark.parametrize("role", [(run_head,), (run_global, None)])
def test_a_worker_does_it_before_anything_that_makes_threads(monkeypatch, role):
    class DoneError(Exception):
        pass

    def done():
        raise DoneError

    monkeypatch.setattr(workers, "share_heaps", done)
    run, *more = role
    with pytest.raises(DoneError):
        run(None, None, *more)


KEEPING = """
import gc
from agents.heap import keep_what_is_there

class Looped:
    def __init__(self):
        self.me = self
    def __del__(self):
        print("gone")

before = len(gc.get_objects())
keep_what_is_there()
assert gc.get_freeze_count() >= before / 2, gc.get_freeze_count()
assert len(gc.get_objects()) < before / 10, len(gc.get_objects())
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
many = [[] for _ in range(20_000)]
assert not collections, "a batch sets off a collection"
Looped()
gc.collect()
"""


def test_the_collector_looks_only_at_what_is_made_later():
    command = [sys.executable, "-P", "-c", KEEPING]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "gone\n"


def test_a_worker_keeps_what_there_is_right_before_it_runs(monkeypatch):
    calls = []
    monkeypatch.setattr(workers, "Endpoints", lambda *_, **__: calls.append("endpoints"))
    monkeypatch.setattr(workers, "keep_what_is_there", lambda: calls.append("kept"))
    monkeypatch.setattr(workers, "run_worker", lambda *_: calls.append("run"))
    settings = SimpleNamespace(metrics_host="", operator_port=0, public_port=0, log_level="INFO")
    workers._run(None, settings, None, None)
    assert calls == ["endpoints", "kept", "run"]


@pytest.mark.parametrize(("size", "count"), [(8_000_001, 1), (50_000_000, 1), (1_000_001, 6)])
def test_the_longer_releases_are_the_fewer_are_sealed_at_once(size, count):
    assert seals_at_once(size) == count
