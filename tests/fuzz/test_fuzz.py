"""The fuzzer itself: that it runs, that it finds what is planted, and that its oracles can fail.

atheris has wheels for CPython on Linux x86-64 alone. Elsewhere its runs are skipped and say so,
in CI they fail; what the targets claim of their seeds is checked everywhere.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripts import importing_from

import schemas
from schemas import MalformedMessageError, decode_update, encode_update
from stream import ledger_chain, participation_log
from stream.aggregation import waiting
from stream.aggregation.window import WindowSum
from stream.global_model import GlobalModel

FOLDER = Path(__file__).parent
# Where it is not said: with the starts, a minute of a processor's time.
FUZZ_SECONDS = os.environ.get("FUZZ_SECONDS") or "15"
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


@pytest.fixture(scope="module")
def load():
    with importing_from(FOLDER) as import_module:
        yield import_module


@pytest.fixture(scope="module")
def seeds(load):
    return load("fuzz_seeds").seeds_by_target()


@pytest.fixture(scope="module")
def targets(load):
    found = {}
    for module in ("fuzz_wire", "fuzz_head", "fuzz_model", "fuzz_ledger"):
        found |= load(module).TARGETS
    return found


@pytest.fixture
def fuzz(tmp_path):
    """Run the suite's script; without atheris, skip (in CI: fail)."""
    if importlib.util.find_spec("atheris") is None:
        reason = "atheris is not installed: it has wheels for CPython on Linux x86-64 alone"
        if IN_CI:
            pytest.fail(reason)
        pytest.skip(reason)

    def run(*arguments, seconds=FUZZ_SECONDS):
        return subprocess.run(
            [
                *(sys.executable, str(FOLDER / "run.py")),
                *("--seconds", seconds, "--output", str(tmp_path), *arguments),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_a_short_run_of_every_target_finds_nothing(fuzz, targets):
    result = fuzz()
    assert result.returncode == 0, result.stdout + result.stderr
    head, *rows = (line.split() for line in result.stdout.splitlines())
    assert head == ["target", "executions", "a", "second", "branches", "new", "crashes"]
    assert {row[0] for row in rows} == targets.keys()
    for name, executions, _, branches, _, crashes in rows:
        assert int(executions.replace(",", "")) > 0, name
        assert int(branches.replace(",", "")) > 0, f"{name} is not instrumented"
        assert crashes == "0"


def test_a_fault_behind_four_magic_bytes_is_found_and_its_input_is_kept(fuzz, load, tmp_path):
    # Chance needs 2^32 tries for them; by coverage, one byte at a time, some hundred thousand.
    result = fuzz("planted", seconds="300")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "IndexError" in result.stdout
    (finding,) = tmp_path.glob("planted-crash-*")
    assert finding.read_bytes().startswith(load("fuzz_planted").MAGIC)
    assert str(finding) in result.stdout
    assert f"hex: {finding.read_bytes().hex()}" in result.stdout

    again = subprocess.run(
        [sys.executable, str(FOLDER / "fuzz_decoders.py"), "planted", str(finding)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode != 0
    assert "IndexError" in again.stdout + again.stderr


def test_every_target_holds_for_its_seeds(targets, seeds):
    assert targets.keys() == seeds.keys()
    for name, target in targets.items():
        for seed in (b"", *seeds[name]):
            target(seed)


def test_seeds_are_of_use(seeds):
    for name, found in seeds.items():
        if name.startswith("decode_"):
            for seed in found:
                getattr(schemas, name)(seed)


@pytest.mark.parametrize("kind", ["update", "release", "ledger_record", "model_state"])
def test_mutated_messages_are_often_other_messages(load, seeds, kind):
    header, has_vector = load("fuzz_wire").HEADERS[kind]
    mutator = load("fuzz_mutation").message_mutator(header, has_vector, lambda data, _: data)
    decode = getattr(schemas, f"decode_{kind}")
    others = 0
    for seed in seeds[f"decode_{kind}"]:
        for number in range(300):
            changed = mutator(seed, 4096, number)
            try:
                decode(changed)
            except MalformedMessageError:
                continue
            others += changed != seed
    assert others >= 20


def test_a_mutated_plan_is_a_text_that_begins_alike(load, seeds):
    mutator = load("fuzz_mutation").toml_mutator(lambda data, _: data)
    changed = {mutator(seeds["plan"][0], 4096, number) for number in range(200)}
    assert len(changed) > 100
    assert all(len(text) <= 4096 for text in changed)


# From here on: each oracle, with a fault planted in what it judges.


def fails(target, seeds):
    """Whether the target raises what a fault of ours would be for any seed."""
    for seed in seeds:
        try:
            target(seed)
        except (AssertionError, IndexError):
            return True
    return False


def test_a_second_encoding_would_be_seen(targets, seeds, monkeypatch):
    monkeypatch.setattr(schemas, "decode_update", lambda data: decode_update(bytes(data)[:-1]))
    assert fails(targets["decode_update"], [seed + b"x" for seed in seeds["decode_update"]])


def test_an_error_that_escapes_would_be_seen(targets, monkeypatch):
    monkeypatch.setattr(schemas, "decode_update", lambda data: data[10**6])
    assert fails(targets["decode_update"], [b"any"])


def test_a_declared_length_that_is_allocated_would_be_seen(load):
    with pytest.raises(AssertionError, match="bytes for 3"):
        load("fuzz_wire").assert_memory_is_linear(lambda _: bytearray(1 << 24), b"abc")


@pytest.mark.parametrize("answer", [None, "refused"])
def test_a_check_that_always_says_the_same_would_be_seen(load, targets, seeds, monkeypatch, answer):
    monkeypatch.setattr(load("fuzz_head"), "check_update", lambda *_: answer)
    assert fails(targets["check"], seeds["check"])


def test_an_update_that_counts_twice_would_be_seen(targets, seeds, monkeypatch):
    monkeypatch.setattr(WindowSum, "has", lambda *_: False)
    assert fails(targets["head"], seeds["head"])


def test_a_flood_that_closes_a_window_would_be_seen(targets, seeds, monkeypatch):
    monkeypatch.setattr(WindowSum, "has", lambda self, _: self.exact_sum[-1] >= 3)
    assert fails(targets["head"], seeds["head"])


def test_a_cell_that_is_merged_twice_would_be_seen(targets, seeds, monkeypatch):
    forget = waiting.WaitingReleases.forget_through

    def forget_too_much(self, window):
        before = self._merged_through
        forget(self, window)
        self._merged_through = before

    monkeypatch.setattr(waiting.WaitingReleases, "forget_through", forget_too_much)
    assert fails(targets["model"], seeds["model"])


def test_a_model_that_is_restored_to_another_version_would_be_seen(targets, seeds, monkeypatch):
    monkeypatch.setattr(GlobalModel, "version", property(lambda self: self._state.step + 1))
    assert fails(targets["restore"], seeds["restore"])


def test_links_that_are_not_checked_would_be_seen(targets, monkeypatch):
    monkeypatch.setattr(ledger_chain, "link_faults", lambda *_: [])
    # The second byte asks for a verification: without links, a continuation has no end.
    assert fails(targets["ledger"], [b"\0\0\0" + script for script in random_scripts()])


def test_a_digest_that_is_not_compared_would_be_seen(load, targets, monkeypatch):
    honest = load("fuzz_ledger")._honest_participation
    monkeypatch.setattr(participation_log, "_chain", lambda *_: b"the same")
    honest.cache_clear()
    # The fourth action, at the snapshot: each of its bytes becomes 1.
    assert fails(targets["participation_log"], [bytes((4, 1, place, 1)) for place in range(255)])
    honest.cache_clear()


def test_a_plan_that_its_text_does_not_give_back_would_be_seen(load, targets, seeds, monkeypatch):
    another = load("fuzz_plans").WIDE.to_toml()
    monkeypatch.setattr(load("fuzz_model").PrivacyPlan, "to_toml", lambda _: another)
    assert fails(targets["plan"], seeds["plan"][:1])


def random_scripts():
    random = np.random.default_rng(2)
    return [random.bytes(80) for _ in range(200)]


def test_an_update_is_what_the_head_target_takes_it_for(load):
    plans = load("fuzz_plans")
    value = load("fuzz_head").update_bytes(plans.PLAN, "north/1", (1, 2, 3))
    assert encode_update(decode_update(value)) == value
