"""Who may release: one head a cluster, and never one that was replaced. And when."""

import asyncio
import threading

import numpy as np
import pytest
from confluent_kafka import Producer
from deployment import small_plan

import agents.cluster_head
from agents.cluster_head import HeadService, _Shard
from agents.observability import Health
from agents.partition import OpenedCluster
from agents.publisher import Mark
from agents.record_batch import RecordBatch
from schemas import Update, decode_release, encode_ledger_record, encode_update
from stream.cluster_head import ClusterHead
from stream.ledger_chain import genesis
from stream.metrics import HeadMetrics, Registries
from stream.testing import UnsafeNoNoise


class Clocked:
    """A publisher whose marks are told, and the head that expects what they say."""

    position = 0

    def __init__(self, marks):
        self.marks_at = 0.0
        self.head = self
        self.expected = []
        self._marks = iter(marks)

    def mark(self, cluster):
        return next(self._marks)

    def expect(self, window, end_offset):
        self.expected.append((window, end_offset))


@pytest.mark.parametrize(
    ("broker_says_ms", "expected"), [(6000, 5), (9000, 5), (5999, 4), (1000, 0)]
)
def test_a_window_is_over_when_the_broker_s_clock_says_so_too(
    monkeypatch, broker_says_ms, expected
):
    plan = small_plan(start_ms=0)
    monkeypatch.setattr(agents.cluster_head, "PartitionFeed", lambda **_: None)
    shard = Clocked([None, Mark(41, broker_says_ms)])

    async def mark_twice():
        service = HeadService(
            app=None,
            channel=None,
            plan=plan,
            opener=None,
            publisher=shard,
            feed_options={},
            metrics=HeadMetrics(Registries(plan), plan),
            health=Health("head"),
            topics=None,
        )
        assert not await service._mark_end(0, shard, 5)
        assert not await service._mark_end(0, shard, 5)  # not so soon again
        shard.marks_at = 0.0
        assert await service._mark_end(0, shard, 5)

    asyncio.run(mark_twice())
    assert shard.expected == [(expected, 42)]
    assert bool(shard.marks_at) == (expected < 5)


class Slow:
    """A writer whose transaction takes until it may commit."""

    def __init__(self):
        self.is_writing, self.may_commit = threading.Event(), threading.Event()

    def write(self, *_):
        self.is_writing.set()
        assert self.may_commit.wait(60)


class Quiet:
    """A publisher that has nothing to tell."""

    def report_rejected(self, cluster, rejected):
        pass


def test_the_next_window_fills_while_one_is_committed_and_nobody_lets_go_before(monkeypatch):
    plan = small_plan(start_ms=0, cluster_count=1)
    monkeypatch.setattr(agents.cluster_head, "PartitionFeed", lambda **_: None)
    first = genesis(plan, 0, 0, 0, 0)
    head = ClusterHead(
        plan,
        0,
        UnsafeNoNoise(),
        [encode_ledger_record(first)],
        is_complete=True,
        max_open_windows=2,
    )
    writer = Slow()
    head.expect(0, 0)

    async def main():
        service = HeadService(
            app=None,
            channel=None,
            plan=plan,
            opener=None,
            publisher=Quiet(),
            feed_options={},
            metrics=HeadMetrics(Registries(plan), plan),
            health=Health("head"),
            topics=None,
        )
        shard = _Shard(OpenedCluster(head, writer, first, None, 0), 1, None)
        service._shards[0] = shard
        async with asyncio.timeout(60):
            async with shard.turn:
                release = asyncio.create_task(service._release(0, shard))
                await asyncio.to_thread(writer.is_writing.wait, 60)
                letting_go = asyncio.create_task(service.close_partition(0))
                update = Update(plan.plan_id, "a", 0, np.ones(12, np.int8))
                times_ms = [plan.window_end_ms(window) - 1 for window in (0, 1)]
                records = [(n, at, encode_update(update)) for n, at in enumerate(times_ms)]
                await service.take(RecordBatch(0, 1, records, None))
                assert (head.position, head.next_window) == (2, 0)
                assert not release.done()
                assert not shard.is_closed
                writer.may_commit.set()
                await release
            await letting_go
        return shard

    shard = asyncio.run(main())
    assert shard.is_closed
    assert head.next_window == 1
    head.expect(1, 2)
    (cell,) = [decode_release(head.seal(10**6).release)]
    assert cell.vector.tolist() == [1] * 13


@pytest.mark.integration
def test_a_head_whose_identity_was_taken_stops_and_releases_nothing_more(deploy):
    deployment = deploy(cluster_count=1)
    head = deployment.start_head()
    deployment.wait_until_owned()
    deployment.eventually("a window is released", deployment.releases)

    usurper = Producer(
        deployment.config | {"transactional.id": f"sdp-head-{deployment.plan.plan_id_hex}-0"}
    )
    usurper.init_transactions(30)
    deployment.eventually("the head has stopped", lambda: head.process.poll() is not None)
    assert head.process.returncode != 0
    assert "fenced" in head.log.read_text().lower()
    ledger = len(deployment.read(deployment.names.ledger))
    assert len(deployment.releases()) in (ledger - 1, ledger - 2)  # less the genesis


@pytest.mark.integration
def test_what_a_dead_head_left_open_is_aborted_and_its_window_released_once(deploy):
    deployment = deploy(cluster_count=1)
    dead = Producer(
        deployment.config | {"transactional.id": f"sdp-head-{deployment.plan.plan_id_hex}-0"}
    )
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(deployment.names.ledger, b"half-done", partition=0)
    dead.flush(30)
    deployment.start_head()
    deployment.wait_until_owned()
    deployment.eventually("two windows are released", lambda: len(deployment.releases()) >= 2)
    values = [message.value() for message in deployment.read(deployment.names.ledger)]
    assert b"half-done" not in values


@pytest.mark.integration
def test_heads_share_the_clusters_and_one_takes_over_what_the_other_leaves(deploy):
    deployment = deploy(cluster_count=4)
    first = deployment.start_head()
    deployment.wait_until_owned(first)
    second = deployment.start_head()
    deployment.eventually(
        "each has two clusters",
        lambda: (
            len(deployment.owned_clusters(first)) == 2
            and len(deployment.owned_clusters(second)) == 2
        ),
    )
    assert first.stop() == 0
    deployment.wait_until_owned(second)


@pytest.mark.integration
def test_a_spare_head_is_well_though_it_has_no_cluster(deploy):
    deployment = deploy(cluster_count=1)
    heads = [deployment.start_head(), deployment.start_head()]
    deployment.eventually("both are well", lambda: all(head.health() for head in heads))
    deployment.wait_until_owned()
