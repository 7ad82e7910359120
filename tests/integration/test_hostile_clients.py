"""Clients that flood, forge, replay and collude, beside honest ones, on real Kafka.

What holds for any of them: the head that was there before is there afterwards, every window has
its release, and each sum is exactly that of the first valid update of each identity in the
window, in the order of the log. Nothing that one identity sends moves another one's part.

What does not hold, before updates are signed: whoever may write under a client's id can send an
update in its place, and the client's own one of the same window is then a duplicate.
"""

import uuid
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer
from deployment import Deployment, small_plan

from agents.publisher import REPORTS_PER_WINDOW
from schemas import Update, decode_reject_record, encode_update
from stream.aggregation.validation import Reason

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DIMENSION = 12
HONEST = range(4)
LATE = Reason.LATE
MIB = 1 << 20
LARGEST_MESSAGE = MIB - 4096
# While a head is flooded it may take this much more: what its client library prefetches (32 MiB)
# and four batches of as much, from which updates are taken.
MEMORY_BOUND = 200 * MIB


@dataclass(frozen=True)
class Placed:
    """A valid update, and where the broker put it."""

    partition: int
    offset: int
    window: int
    client: str
    vector: tuple[int, ...]


@dataclass
class Field:
    """A deployment with one head, and all valid updates that its log holds."""

    deployment: Deployment
    placed: list[Placed] = field(default_factory=list)
    sent: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.head = self.deployment.start_head()
        self.deployment.wait_until_owned()
        self.clusters = range(self.deployment.plan.cluster_count)
        self._producers, self._errors = [], []
        self._honest = self.producer()
        # The attacks are on cluster 0.
        ids = (f"honest-{n}" for n in range(10**6))
        self.honest = [next(i for i in ids if self.home(i) == 0) for _ in HONEST]

    def home(self, client):
        return self.deployment.plan.cluster_of(client)

    def producer(self, **options):
        # Idempotent, so that what is sent once is in the log once.
        fixed = {"enable.idempotence": True, "linger.ms": 1, "message.max.bytes": 2 * MIB}
        producer = Producer(self.deployment.config | fixed | options)
        self._producers.append(producer)
        return producer

    def place(self, producer, client, vector, **record):
        """Send an update that is valid, and note where it came to lie; return its bytes."""
        value = self.deployment.update(client, vector)
        self.replay(producer, client, vector, value, **record)
        return value

    def replay(self, producer, client, vector, value, **record):
        """Send bytes that are a valid update of ``vector``."""

        def delivered(error, message):
            assert error is None, error
            window = self.deployment.plan.window_of(message.timestamp()[1])
            where = message.partition(), message.offset(), window
            self.placed.append(Placed(*where, client, tuple(map(int, vector))))

        record = {"key": client.encode(), "partition": self.home(client)} | record
        self._produce(producer, value, delivered, **record)

    def throw(self, producer, value, **record):
        """Send what must not count; the broker has to take it all the same."""

        def delivered(error, _):
            if error is not None:
                self._errors.append(error)

        self._produce(producer, value, delivered, **{"partition": 0} | record)

    def _produce(self, producer, value, delivered, partition, **record):
        while True:
            try:
                producer.produce(
                    self.deployment.names.updates,
                    value,
                    partition=partition,
                    on_delivery=delivered,
                    **record,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        # Without a value it is what heads write as a mark, and no update to be judged.
        self.sent[partition] += value is not None

    def send_honest(self):
        """Every honest client sends its one-hot update."""
        for n, client in enumerate(self.honest):
            self.place(self._honest, client, one_hot(n, DIMENSION))

    def fresh_window(self):
        """Wait for a window to begin, and return its number."""
        window = self.deployment.current_window() + 1
        self.deployment.eventually(
            "a window begins", lambda: self.deployment.current_window() >= window
        )
        return window

    def settle(self):
        """Wait until all that was sent is in the log, and its windows are released."""
        for producer in self._producers:
            assert producer.flush(60) == 0
        assert not self._errors, self._errors[0]
        newest = max(placed.window for placed in self.placed)
        return self.deployment.eventually(
            "what was sent is released",
            lambda: all((c, newest) in self.deployment.releases() for c in self.clusters),
        )

    def check(self):
        """What must hold after anything that clients may do."""
        self.settle()
        sent = sum(self.sent.values())
        self.deployment.eventually(
            "each record was judged once", lambda: self.outcomes().total() == sent
        )
        assert self.head.process.poll() is None
        assert self.deployment.owned_clusters(self.head) == list(self.clusters)
        releases = self.deployment.releases()
        rejects = self.rejects()
        expected = self.expected({(r.partition, r.offset) for r in rejects if r.reason == LATE})
        for cluster in self.clusters:
            windows = sorted(w for c, w in releases if c == cluster)
            assert windows == list(range(windows[0], windows[-1] + 1)), "a window was skipped"
            for window in windows:
                cell = cluster, window
                assert releases[cell].vector.tolist() == self.sum_of(expected.get(cell, {})), cell
        reported = Counter((r.cluster, r.window, r.reason) for r in rejects)
        assert max(reported.values(), default=0) <= REPORTS_PER_WINDOW
        verified = self.deployment.sdp("ledger", "verify", "--json")
        assert verified.returncode == 0, verified.stdout + verified.stderr

    def expected(self, late):
        """By cell, each identity's first valid update, in the order of the log."""
        first = {}
        for placed in sorted(self.placed, key=lambda placed: placed.offset):
            # The broker may stamp a record in time and show it when its window is sealed.
            if (placed.partition, placed.offset) not in late:
                clients = first.setdefault((placed.partition, placed.window), {})
                clients.setdefault(placed.client, placed.vector)
        return first

    def sum_of(self, vector_by_client):
        """What is released of these clients: each coordinate ends at the ends of its type."""
        plan = self.deployment.plan
        columns = zip(*vector_by_client.values(), strict=True)
        total = [sum(column) for column in columns] or [0] * plan.dimension
        limits = np.iinfo(plan.release_dtype)
        total.append(plan.count_weight * len(vector_by_client))
        return [max(limits.min, min(limits.max, number)) for number in total]

    def counted(self, client):
        """The windows in which one of the client's updates is the one that counts."""
        return {placed.window for placed in self.placed if placed.client == client}

    def rejects(self):
        return [
            decode_reject_record(message.value())
            for cluster in self.clusters
            for message in self.deployment.read(self.deployment.names.rejects, cluster)
        ]

    def outcomes(self):
        """How many updates had each outcome, over all clusters, by the head's own count."""
        found = Counter()
        for (name, labels), count in self.head.metrics().items():
            if name == "sdp_updates_total":
                found[labels.split(",")[1]] += int(count)
        return found

    def memory(self):
        """The head's resident memory now, and the most that it ever had, in bytes."""
        lines = Path(f"/proc/{self.head.process.pid}/status").read_text().splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return tuple(int(sizes[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


def one_hot(place, size, steps=1):
    return [steps * (n == place) for n in range(size)]


@pytest.fixture(scope="module")
def battlefield(bootstrap_servers, tmp_path_factory):
    """One head for most attacks: it must survive all of them."""
    plan = small_plan(topic_prefix=f"test-{uuid.uuid4().hex[:12]}", grace_ms=300)
    deployment = Deployment(bootstrap_servers, plan, tmp_path_factory.mktemp("hostile"))
    with closing(deployment):
        yield Field(deployment)


def attacker_of(battlefield, name):
    return next(client for n in range(100) if battlefield.home(client := f"{name}-{n}") == 0)


def test_a_flood_of_one_client_changes_no_sum_and_keeps_nobody_from_service(battlefield):
    attacker, flood = attacker_of(battlefield, "flood"), battlefield.producer()
    before = battlefield.outcomes()
    garbage = [b"", b"garbage", bytes(500), battlefield.deployment.update(attacker, [9] * 11)]
    window = battlefield.fresh_window()
    for _ in range(50):
        battlefield.send_honest()
        for _ in range(1000):
            battlefield.place(flood, attacker, one_hot(8, DIMENSION, 100))
        for value in garbage * 25:
            battlefield.throw(flood, value, key=attacker.encode())
    battlefield.send_honest()
    battlefield.check()

    outcomes = battlefield.outcomes() - before
    assert outcomes["malformed"] == 50 * 75
    assert outcomes["wrong_dimension"] == 50 * 25
    assert window in battlefield.counted(battlefield.honest[0])


def test_one_identity_from_many_producers_counts_once_a_window(battlefield):
    attacker = attacker_of(battlefield, "many")
    producers = [battlefield.producer() for _ in range(8)]
    battlefield.fresh_window()
    for turn in range(40):
        battlefield.send_honest()
        for n, producer in enumerate(producers):
            # All different, so that a sum of two of them is none of them.
            battlefield.place(
                producer, attacker, one_hot(8 + n % 4, DIMENSION, 1 + turn + 60 * (n % 2))
            )
    battlefield.check()


def test_every_odd_record_that_a_producer_can_make_is_refused_or_is_an_update(battlefield):
    """The key, the headers and the producer's own time decide nothing."""
    deployment, producer = battlefield.deployment, battlefield.producer()
    foreign = next(c for n in range(100) if battlefield.home(c := f"foreign-{n}") == 1)
    other_plan = encode_update(Update(bytes(16), foreign, 0, np.zeros(DIMENSION, np.int8)))
    before = battlefield.outcomes()
    battlefield.fresh_window()
    battlefield.send_honest()
    for n, record in enumerate(
        (
            {"key": None},
            {"key": b""},
            {"key": b"\xff\xfe not utf-8"},
            {"key": bytes(900_000)},
            {"key": battlefield.honest[0].encode()},
            {"headers": [("h" * 1000, bytes(1000))] * 200},
            {"headers": [("traceparent", None), ("", b"")]},
            {"timestamp": 1},
            {"timestamp": 2**53},
        )
    ):
        attacker = attacker_of(battlefield, f"odd-{n}")
        battlefield.place(producer, attacker, one_hot(9, DIMENSION, 3), **record)
    for value in (None, b"", other_plan, bytes(LARGEST_MESSAGE)):
        for key in (None, battlefield.honest[1].encode()):
            battlefield.throw(producer, value, key=key)
    # Each client's own vector, but in a partition that is not its own.
    battlefield.throw(producer, deployment.update(foreign, one_hot(9, DIMENSION)))
    home = battlefield.honest[2]
    battlefield.throw(producer, deployment.update(home, one_hot(2, DIMENSION)), partition=1)
    battlefield.send_honest()
    battlefield.check()

    outcomes = battlefield.outcomes() - before
    assert outcomes["foreign_cluster"] == 2
    assert outcomes["wrong_plan"] == 2
    assert outcomes["malformed"] == 4


def test_what_was_recorded_yesterday_counts_at_most_once_and_for_its_own_identity(battlefield):
    """Promised: a replay is an update of the window in which it is appended, and of the identity
    that it names. With that client's own one of the window it is a duplicate, whichever comes
    second, so the client never counts twice, and nobody else's part moves.

    Not promised, before updates are signed: that the client's own one is the one that counts.
    """
    victim, attack = attacker_of(battlefield, "victim"), battlefield.producer()
    old, new = one_hot(10, DIMENSION, 50), one_hot(11, DIMENSION, 60)
    battlefield.fresh_window()
    recorded = battlefield.place(attack, victim, old)
    battlefield.settle()
    before = battlefield.outcomes()

    def replayed_before_its_own():
        window = battlefield.fresh_window()
        battlefield.send_honest()
        battlefield.replay(attack, victim, old, recorded)
        assert attack.flush(30) == 0
        battlefield.place(attack, victim, new)
        for _ in range(20):
            battlefield.replay(attack, victim, old, recorded)
        battlefield.send_honest()
        battlefield.settle()
        here = [p.vector for p in battlefield.placed if (p.client, p.window) == (victim, window)]
        return window if here[:2] == [tuple(old), tuple(new)] else None

    # On a machine that is held up the two may come to lie in different windows.
    window = battlefield.deployment.eventually("both are in a window", replayed_before_its_own)
    battlefield.check()
    released = battlefield.deployment.releases()[0, window].vector.tolist()
    assert (released[10], released[11]) == (50, 0), "displaced: this is the limit"
    assert (battlefield.outcomes() - before)["duplicate"] >= 20


def test_a_flood_of_the_largest_messages_does_not_fill_the_heads_memory(battlefield):
    """Far more bytes than the head may take are in its log at once."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the memory of a process is read from /proc, which is not here")
    flood = battlefield.producer(**{"compression.type": "zstd"})
    battlefield.fresh_window()
    before, _ = battlefield.memory()
    for _ in range(25):
        battlefield.send_honest()
        for _ in range(10):
            battlefield.throw(flood, bytes(LARGEST_MESSAGE))
    battlefield.check()
    _, most = battlefield.memory()
    assert most - before < MEMORY_BOUND, f"{(most - before) / MIB:.0f} MiB more"


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_colluders_just_within_the_bound_are_summed_exactly_and_past_the_type_it_ends(
    deploy, dtype
):
    """Six hundred times as many as the plan expects, each with the longest vector that there is.

    The weighted count passes the end of int32, where a release's coordinates stay: it does not
    wrap, no other coordinate feels it, and a metric says so.
    """
    limit = int(np.iinfo(dtype).max)
    battlefield = Field(
        deploy(
            cluster_count=1,
            expected_clients=1,
            window_length_ms=2000,
            grace_ms=300,
            grid_l2_bound=2 * limit,
            count_weight=1 << 22,
            update_dtype=dtype,
            epsilon=100.0,
        )
    )
    assert battlefield.deployment.plan.release_dtype == "int32"
    collusion = battlefield.producer()
    longest = [0] * 4 + [limit, -limit, limit, -limit] + [0] * 4
    window = battlefield.fresh_window()
    battlefield.send_honest()
    for n in range(600):
        battlefield.place(collusion, f"colluder-{n}", longest)
    battlefield.throw(collusion, battlefield.deployment.update("too-long", [*longest[:-1], 1]))
    battlefield.check()

    outcomes = battlefield.outcomes()
    assert outcomes["norm_too_large"] == 1
    assert outcomes["accepted"] == 600 + len(HONEST)
    released = battlefield.deployment.releases()[0, window].vector.tolist()
    saturated = sum(r.vector[-1] == 2**31 - 1 for r in battlefield.deployment.releases().values())
    metrics = battlefield.head.metrics()
    assert metrics["sdp_release_coordinates_saturated_total", "0"] == saturated
    # On a machine that is held up they may come to lie in two windows.
    if {placed.window for placed in battlefield.placed} == {window}:
        assert released[:5] == [1, 1, 1, 1, 600 * limit]
        assert released[-1] == 2**31 - 1
