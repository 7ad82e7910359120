"""A deployment under load on which faults are injected, and the verdict on what it did."""

import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from deployment import Deployment, Worker, small_plan
from load import CLIENTS, MODEL, Ear, Load
from replay import decoded, model_faults, releases_without_a_crash

from agents.ledger import verify_deep
from agents.protocol_steps import Step
from schemas import decode_model_state, decode_release
from stream.aggregation.intake import Record

WORKER = Path(__file__).with_name("worker.py")
PATIENCE_S = 120.0
# As short as the broker allows, so that a killed head is missed soon and a zombie is one.
SETTINGS = {
    "SDP_SESSION_TIMEOUT_MS": "3000",
    "SDP_TRANSACTION_TIMEOUT_MS": "5000",
    "SDP_REQUEST_TIMEOUT_S": "4",
    "SDP_MERGE_DEADLINE_MS": "2000",
}


class Brokers(Protocol):
    """The Kafka under the stage."""

    bootstrap_servers: str


class Stage:
    """Heads without noise and a global agent, one-hot clients, and what all of it wrote.

    Attributes:
        brokers: The Kafka that it runs on.
        deployment: The plan and its topics.
        heads: The heads that are to run, none before `start`; a fault may replace them.
        merger: The global agent that is to run.
        random: The only source of chance.
    """

    def __init__(
        self,
        brokers: Brokers,
        seed: int,
        *,
        settings: Mapping[str, str] | None = None,
        replication_factor: int = 1,
        **changes: object,
    ) -> None:
        self.brokers = brokers
        self.random = random.Random(seed)
        fields = {
            "name": "chaos",
            "dimension": CLIENTS,
            "expected_clients": CLIENTS,
            "cluster_count": 4,
            "horizon_windows": 100_000,
            "window_length_ms": 500,
            "grace_ms": 50,
            "release_delay_ms": 150,
            "topic_prefix": f"chaos-{self.random.randrange(1 << 48):x}",
        }
        self._folder = tempfile.TemporaryDirectory(prefix="sdp-chaos-")
        self.deployment = Deployment(
            brokers.bootstrap_servers,
            small_plan(**(fields | changes)),
            Path(self._folder.name),
            settings=SETTINGS | dict(settings or {}),
            replication_factor=replication_factor,
            min_insync_replicas=max(1, replication_factor - 1),
        )
        self.heads: list[Worker] = []
        self.merger: Worker | None = None
        self.load = Load(self.deployment, seed)
        self.ear = Ear(self.deployment)
        self.strike()

    def start(self, heads: int = 2) -> None:
        """Start heads and a global agent, and wait until every cluster has a head."""
        self.heads = [self.start_head() for _ in range(heads)]
        self.merger = self.start_global()
        self.deployment.wait_until_owned(*self.heads)

    def start_head(self, *arguments: str) -> Worker:
        """Start a head with arguments of worker.py; the caller decides whether it stays."""
        return self._start("head", arguments)

    def start_global(self, *arguments: str) -> Worker:
        """Start a global agent with arguments of worker.py."""
        return self._start("global", arguments)

    def wait_for(self, what: str, probe) -> None:
        """Wait for a condition; fail with the logs after two minutes."""
        self.deployment.eventually(what, probe, PATIENCE_S)

    def wait_until_planted(self, worker: Worker, step: Step) -> None:
        """Wait until a planted fault has happened."""
        mark = f"planted at {step}"
        self.wait_for(f"a worker is at {step}", lambda: mark in worker.log.read_text())

    def strike(self, *, is_of_model: bool = False) -> None:
        """Note that harm is done at this moment: from now on recovery is measured.

        ``is_of_model``: To the global agent, which has recovered with a new model.
        """
        clusters = range(self.deployment.plan.cluster_count)
        self._struck = [MODEL] if is_of_model else list(clusters)
        self._struck_s = time.monotonic()
        self._struck_window = self.deployment.current_window()

    def recovery_s(self) -> float | None:
        """Return how long after the last strike that moment's window was public.

        Waits for it; None after two minutes.
        """
        return self.ear.seconds_until(self._struck, self._struck_window, self._struck_s, PATIENCE_S)

    def wait_for_release(self) -> None:
        """Wait until every cluster has released the window of this moment."""
        clusters = range(self.deployment.plan.cluster_count)
        window, begin_s = self.deployment.current_window(), time.monotonic()
        if self.ear.seconds_until(clusters, window, begin_s, PATIENCE_S) is None:
            raise AssertionError(self._silence())

    def replace_the_dead(self) -> None:
        """Start a new worker for each one that has ended, as a supervisor would."""
        self.heads = [
            head if head.process.poll() is None else self.start_head() for head in self.heads
        ]
        if self.merger is not None and self.merger.process.poll() is not None:
            self.merger = self.start_global()

    def problems(self) -> tuple[list[str], int]:
        """Return what is wrong by all that is in Kafka now, and how many updates are lost."""
        plan, config = self.deployment.plan, self.deployment.config
        problems = list(verify_deep(config, plan, is_noise_free=True).problems)
        return problems, self._lost_updates(set(self.load.acknowledged))

    def finish(self) -> tuple[list[str], int]:
        """Stop everything in good order; return what is wrong, and how many updates are lost."""
        self.load.close()
        self.wait_for_release()
        problems = self._model_catches_up()
        for worker in (*self.heads, self.merger):
            if (code := worker.stop()) != 0:
                problems.append(f"{worker.log.name} ended with {code}: {_end_of(worker)}")
        found, lost = self.problems()
        problems += found
        problems += self._differences_to_a_calm_run()
        problems += self._lasting_damage()
        return problems, lost

    def close(self) -> None:
        """End what is left, and remove its files."""
        self.ear.close()
        for worker in self.deployment.workers:
            if worker.process.poll() is None:
                # A stopped process would hold the kill back.
                worker.process.send_signal(signal.SIGCONT)
        self.deployment.close()
        self._folder.cleanup()

    def _start(self, role: str, arguments: Iterable[str]) -> Worker:
        return self.deployment.start(role, [str(WORKER), role, *arguments])

    def _lost_updates(self, acknowledged: set[tuple[int, int]]) -> int:
        """Return how many acknowledged updates the broker does not have any more."""
        names = self.deployment.names
        present = {
            (message.partition(), message.offset())
            for cluster in range(self.deployment.plan.cluster_count)
            for message in self.deployment.read(names.updates, cluster)
        }
        return len(acknowledged - present)

    def _model_catches_up(self) -> list[str]:
        clusters = range(self.deployment.plan.cluster_count)
        window = min(self.ear.newest.get(cluster, -1) for cluster in clusters)
        if self.ear.seconds_until([MODEL], window, time.monotonic(), PATIENCE_S) is not None:
            return []
        return [f"the model does not reach window {window}: {_end_of(self.merger)}"]

    def _differences_to_a_calm_run(self) -> list[str]:
        """Compare with the same input without a crash."""
        deployment, problems = self.deployment, []
        public: dict[tuple[int, int], bytes] = {}
        for message in deployment.read(deployment.names.releases):
            release = decode_release(message.value())
            public[release.cluster, release.window] = message.value()
        for cluster in range(deployment.plan.cluster_count):
            records = [
                Record(message.offset(), message.timestamp()[1], message.value())
                for message in deployment.read(deployment.names.updates, cluster)
            ]
            genesis = deployment.read(deployment.names.ledger, cluster)[0].value()
            last = max((w for c, w in public if c == cluster), default=-1)
            calm = releases_without_a_crash(deployment.plan, cluster, genesis, records, last)
            stormy = {w: data for (c, w), data in public.items() if c == cluster}
            problems += [
                f"window {window} of cluster {cluster} is not what it is without a crash"
                for window in sorted(calm.keys() | stormy.keys())
                if calm.get(window) != stormy.get(window)
            ]
        states = [
            decode_model_state(message.value())
            for message in deployment.read(deployment.names.model_state)
        ]
        return problems + model_faults(deployment.plan, states, decoded(public))

    def _lasting_damage(self) -> list[str]:
        """Return what no fault here may cause: a cluster that a head would not open."""
        return [
            f"{worker.log.name}: {line}"
            for worker in self.deployment.workers
            for line in worker.log.read_text().splitlines()
            if "is refused:" in line
        ]

    def _silence(self) -> str:
        ends = " | ".join(_end_of(head) for head in self.heads)
        return f"no release after {PATIENCE_S:g} s; public: {self.ear.newest}; heads: {ends}"


def _end_of(worker: Worker) -> str:
    return " / ".join(worker.log.read_text().splitlines()[-6:])


def planted(step: Step, nth: int, act: str, seconds: float = 0.0) -> Sequence[str]:
    """Return the arguments of worker.py for a fault at a step."""
    return ("--step", step, "--nth", str(nth), "--act", act, "--seconds", str(seconds))


def note(text: str) -> None:
    """Tell the person in front of the terminal."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
