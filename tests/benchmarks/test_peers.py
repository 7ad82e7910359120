"""What heads are compared with: each sums rightly; one that does not, or is missing, is told."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest
from scripts import importing_from
from topic_faults import existing

FOLDER = Path(__file__).parent
WINDOWS = 2


@pytest.fixture(scope="module")
def load():
    """Import a module of the suite, which finds its siblings as a script does."""
    with importing_from(FOLDER) as import_module:
        yield import_module


@pytest.fixture(scope="module")
def peers(load):
    return load("peers")


@pytest.fixture(scope="module")
def effort(load):
    return load("measurement").Effort(1, 1, 1, 1, peer_rounds=1)


@pytest.fixture(scope="module")
def backlog(load, bootstrap_servers):
    """Updates in more than one window, so that a window is over for each peer."""
    throughput = load("throughput")
    size = throughput.Size("1KB", 1000, 60, 0.5, WINDOWS)
    with throughput.backlog_of(bootstrap_servers, size) as found:
        yield found


def printing(**figures):
    """The command of a peer that does nothing but say so."""
    return [sys.executable, "-c", f"import json; print(json.dumps({figures}))"]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", ["faust", "quix", "bytewax", "kafka_streams"])
def test_a_peer_sums_all_updates_and_leaves_no_topic(load, peers, backlog, name):
    (peer,) = (peer for peer in peers.PEERS if peer.name == name)
    options = {} if name == "faust" else {"may_install": False}
    try:
        command = peer.command(**options)
    except load("peer_environment").MissingPeerError as missing:
        pytest.skip(str(missing))
    told = backlog.run_peer(command, backlog.count, warmup=20)
    assert told["counted"] == backlog.count - 20
    assert told["seconds"] > 0
    assert told["cpu_seconds"] > 0
    assert told["peak_mib"] > 10
    assert not [topic for topic in existing(backlog.deployment) if "-peer-" in topic]


@pytest.mark.integration
@pytest.mark.slow
def test_a_peer_may_sum_a_part_and_a_sum_that_is_wrong_by_one_is_told(backlog):
    right = backlog.sum_of(70)
    assert right == sum(int(backlog.vectors[n % 60 % 16].sum()) for n in range(70))
    assert backlog.run_peer(printing(sum=right), 70) == {"sum": right}
    with pytest.raises(RuntimeError, match=f"summed {right + 1}, and the sum is {right}$"):
        backlog.run_peer(printing(sum=right + 1), 70)


@pytest.mark.integration
@pytest.mark.slow
def test_a_peer_that_fails_is_told_with_what_it_said(backlog):
    with pytest.raises(RuntimeError, match="ended with 1: no such package"):
        backlog.run_peer([sys.executable, "-c", "import sys; sys.exit('no such package')"], 10)
    assert not [topic for topic in existing(backlog.deployment) if "-peer-" in topic]


class FakeBacklog:
    """A head that takes 2 s for 800 updates, and a peer that always takes 1 s."""

    count = 800

    def __init__(self):
        self.jobs = []

    def run_head(self):
        return {"seconds": 2.0}

    def run_peer(self, command, count, warmup):
        self.jobs.append((command, count, warmup))
        return {"counted": count - warmup, "seconds": 1.0}


def test_speeds_are_updates_a_second_of_what_each_read(peers, effort):
    backlog = FakeBacklog()
    commands = {"quix": ["q"], "kafka_streams": ["k"]}
    results = list(peers.peer_results(backlog, "1KB", commands, effort))
    assert backlog.jobs == [(["q"], 800, 0), (["k"], 800, 267)]
    assert {result.name: result.values for result in results} == {
        "head_vs_quix_1KB": [400 / 800],
        "quix_1KB": [800],
        "head_vs_kafka_streams_1KB": [400 / 533],
        "kafka_streams_1KB": [533],
    }
    assert [str(result.floor) for result in results[::2]] == [">= 1", ">= 1"]


def test_a_quick_run_reads_a_share_of_what_a_peer_reads(load, peers):
    backlog = FakeBacklog()
    backlog.count = 10**6
    effort = load("measurement").Effort(1, 1, 1, 1, peer_rounds=2, peer_share=0.25)
    list(peers.peer_results(backlog, "1KB", {"faust": ["f"]}, effort))
    assert backlog.jobs == [(["f"], 2500, 0)] * 2


def test_a_peer_that_cannot_be_had_is_left_out_and_told(load, peers, monkeypatch, capsys):
    def missing():
        raise load("peer_environment").MissingPeerError("no mvn on the PATH")

    there, not_there = peers.Peer("a", lambda: ["run-a"], 1), peers.Peer("b", missing, 1)
    monkeypatch.setattr(peers, "PEERS", (there, not_there))
    assert peers.found_commands() == {"a": ["run-a"]}
    assert capsys.readouterr().err == "b is left out: no mvn on the PATH\n"


@pytest.mark.parametrize("name", ["quix", "bytewax", "flower", "kafka_streams"])
def test_what_is_not_installed_is_not_installed_by_a_test(load, monkeypatch, tmp_path, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = load("peer_environment")
    command = partial(environment.python_command, name)
    if name == "kafka_streams":
        command = environment.java_command
        monkeypatch.setattr(environment, "find_java", lambda: "java")
    with pytest.raises(environment.MissingPeerError, match="is not installed"):
        command(may_install=False)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_could_not_be_made_leaves_nothing(load, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = load("peer_environment")
    monkeypatch.setattr(environment, "find_java", lambda: "java")
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(environment.MissingPeerError, match="no mvn on the PATH"):
        environment.java_command()
    assert not list((tmp_path / "sdp").iterdir())


def test_a_job_is_the_same_after_its_way_through_the_environment(load, monkeypatch):
    module = load("peer_job")
    job = module.Job("host:1", "in", "out", "group", "folder", 10, 2, 1000, 5000)
    for name, value in job.environment().items():
        monkeypatch.setenv(name, value)
    assert module.read_job() == job


def test_a_head_computes_a_whole_window_beside_flower(load):
    aggregation = load("aggregation")
    command = [*printing(cpu_seconds=10.0), "-"]
    result = aggregation.size_result(command, "1KB", 100, 20, rounds=1)
    assert result.name == "aggregate_vs_flower_1KB"
    assert result.median > 10


def test_updates_that_a_head_does_not_count_are_told(load):
    aggregation = load("aggregation")
    plan = aggregation.plan_of(100, 20)
    records = aggregation.window_of_updates(plan, 20)
    records[3] = (3, plan.start_ms, records[2][2])  # a second one of the same client
    with pytest.raises(RuntimeError, match="19 of 20 updates were counted"):
        aggregation.aggregate(plan, records)


def test_flower_s_aggregate_runs_where_it_is_installed(load):
    environment = load("peer_environment")
    try:
        command = environment.python_command("flower", may_install=False)
    except environment.MissingPeerError as missing:
        pytest.skip(str(missing))
    told = load("backlog").run_process([*command, "5", "1000"], {})
    assert told["counted"] == 5
    assert told["bytes"] > 4000


def test_the_locks_of_peers_name_no_index_and_hash_everything():
    locks = list((FOLDER / "peer_requirements").iterdir())
    assert {lock.stem for lock in locks} == {"bytewax", "flower", "quix"}
    for lock in locks:
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        pins = re.findall(r"^\S+==.*", text, re.M)
        assert pins
        assert all(pin.endswith("\\") for pin in pins)  # its hashes follow
