"""One soak: two heads and a global agent under load, looked at from outside, then verified."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import median

from deployment import Deployment, Worker
from probes import Findings, Limits, Probe

from agents.kafka_edge import read_tail
from schemas import ModelState, Release, decode_model_state, decode_release

CLIENT = "client"
LOAD = Path(__file__).parent / "load.py"
# Windows that wait to be sealed, and records to be read, are in memory: a machine that is too slow
# for the load makes them grow. As long as this it may be held up, by the median a tenth of it.
MOST_BEHIND_S = 30.0
# A worker that has no time to answer a scrape is no leak, if it answers the next one.
MOST_MISSED = 10
_DRAIN_S = 90.0


@dataclass(frozen=True, slots=True)
class Options:
    """How long, how hard, and what is too much.

    Attributes:
        seconds: How long there is load.
        warm_up_s: How much of that is not looked at.
        pause_s: How long the workers stand still, three times in the warm-up, and have then to
            catch up: what memory they need at a peak, they have needed before it is looked at.
        sample_s: Time between two looks.
        rate: Updates a second.
        limits: By process; the name that is not there has those of "".
    """

    seconds: float
    warm_up_s: float
    pause_s: float
    sample_s: float
    rate: float
    limits: dict[str, Limits]

    def limits_of(self, name: str) -> Limits:
        return self.limits.get(name, self.limits[""])


@dataclass(slots=True)
class Report:
    """What a soak found."""

    seconds: float = 0.0
    windows: int = 0
    cells: int = 0
    updates: int = 0
    models: int = 0
    most_lag_records: int = 0
    windows_behind: float = 0.0
    most_windows_behind: int = 0
    processes: list[Findings] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """Everything that is not as it must be."""
        return self.problems + [v for findings in self.processes for v in findings.violations]

    def as_json(self) -> dict[str, object]:
        """Return the figures as plain data."""
        figures = {f.name: getattr(self, f.name) for f in fields(self)}
        del figures["processes"], figures["problems"]
        return {
            **figures,
            "processes": {each.name: each.as_json() for each in self.processes},
            "violations": self.violations,
        }

    def last_line(self) -> str:
        """Return the verdict in a line."""
        growth = max((max(p.growth_percent, p.slope_percent) for p in self.processes), default=0)
        words = [
            f"{self.windows} windows, {self.updates} updates, memory growth max {growth:.2f} %"
        ]
        for what in ("fds", "threads"):
            grown = any(each.grows(what) for each in self.processes)
            words.append(f"{what} {'GROWING' if grown else 'flat'}")
        return ", ".join(words)


class Soak:
    """Runs the processes of one deployment for a time; `run` does it all."""

    def __init__(self, deployment: Deployment, options: Options) -> None:
        self._deployment = deployment
        self._options = options
        self._report = Report()
        self._heads: list[Worker] = []
        self._probes: list[Probe] = []
        self._lags: list[int] = []
        self._behind: list[int] = []
        self._missed = 0

    def run(self, start_heads: list[Callable[[], Worker]], say: Callable[[str], None]) -> Report:
        """Start everything, look on, stop everything, verify."""
        deployment = self._deployment
        self._heads = [start() for start in start_heads]
        merger = deployment.start_global()
        deployment.wait_until_owned(*self._heads)
        deployment.eventually("there is a model", lambda: (merger.health() or {}).get("owns_model"))
        arguments = [deployment.plan_file, deployment.bootstrap_servers, self._options.rate]
        load = deployment.start("load", [str(each) for each in (LOAD, *arguments)])
        for number, head in enumerate(self._heads):
            self._probe(f"head-{number}", head)
        self._probe("global", merger)
        self._probes.append(Probe(CLIENT, load.process.pid))
        if self._look_on(say):
            self._judge()
            self._stop(load, merger)
            self._verify()
        return self._report

    def _probe(self, name: str, worker: Worker) -> None:
        self._probes.append(Probe(name, worker.process.pid, lambda: len(worker.metrics())))

    def _look_on(self, say: Callable[[str], None]) -> bool:
        """Look until the time is over; return whether all processes have lived so long."""
        options, begin = self._options, time.monotonic()
        pauses = [options.warm_up_s * quarter / 4 for quarter in (3, 2, 1)]
        next_word_s = 0.0
        while (now := time.monotonic() - begin) < options.seconds:
            if pauses and now > pauses[-1]:
                pauses.pop()
                self._pause()
            if not self._look(now):
                return False
            if now >= next_word_s and self._probes[-1].samples:
                say(self._progress(now))
                next_word_s += options.seconds / 20
            time.sleep(options.sample_s)
        self._report.seconds = round(time.monotonic() - begin, 1)
        return True

    def _look(self, now: float) -> bool:
        try:
            for probe in self._probes:
                probe.look(now)
            if now >= self._options.warm_up_s:
                self._lags.append(self._lag())
                self._behind += self._windows_behind()
        except OSError as error:
            self._missed += 1
            ended = [w.log for w in self._deployment.workers if w.process.poll() is not None]
            if ended or self._missed > MOST_MISSED:
                tails = "".join(f"\n--- {log.name}\n{log.read_text()[-1000:]}" for log in ended)
                self._problem(f"a process ended by itself, or gives no answer: {error}{tails}")
                return False
        return True

    def _pause(self) -> None:
        """Let the workers stand still, shorter than their group would notice."""
        pids = [probe.pid for probe in self._probes if probe.name != CLIENT]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(self._options.pause_s)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def _judge(self) -> None:
        options, report = self._options, self._report
        report.processes = [
            probe.findings(options.warm_up_s, options.limits_of(probe.name))
            for probe in self._probes
        ]
        report.most_lag_records = max(self._lags)
        report.windows_behind = median(self._behind)
        report.most_windows_behind = max(self._behind)
        most = MOST_BEHIND_S * 1000 / self._deployment.plan.window_length_ms
        if report.most_lag_records > MOST_BEHIND_S * options.rate:
            self._problem(f"the heads were {report.most_lag_records} updates behind")
        if report.most_windows_behind > most or report.windows_behind > most / 10:
            self._problem(
                f"the heads were {report.windows_behind:g} windows behind, and up to "
                f"{report.most_windows_behind}: this machine needs fewer windows per second"
            )

    def _progress(self, now: float) -> str:
        newest = [(probe.name, probe.samples[-1]) for probe in self._probes]
        held = "; ".join(
            f"{name} {s.uss_kib / 1024:.1f} MiB {s.fds} fds {s.threads} threads"
            for name, s in newest
        )
        behind = max(self._behind[-self._deployment.plan.cluster_count :], default=0)
        return f"{now:.0f} s: {held}; {behind} windows behind"

    def _stop(self, load: Worker, merger: Worker) -> None:
        """Let the load end, all of it be read, the heads end, and all of theirs be merged."""
        report = self._report
        if load.stop():
            self._problem(f"the client failed: {load.log.read_text()[-500:]}")
        else:
            sent = json.loads(load.log.read_text().splitlines()[-1])["sent"]
            self._wait(f"all {sent} updates are read", lambda: self._read_count() >= sent)
        report.updates = self._read_count()
        for head in self._heads:
            if head.stop():
                self._problem(f"a head failed: {head.log.read_text()[-500:]}")
        released = self._released_through()
        self._wait("all cells are merged", lambda: self._newest_state().merged_through == released)
        report.models = self._newest_state().model_version
        if merger.stop():
            self._problem(f"the global agent failed: {merger.log.read_text()[-500:]}")

    def _verify(self) -> None:
        """Hold the ledger against the releases, and the cells against the windows."""
        verified = self._deployment.sdp("ledger", "verify", "--json")
        if verified.returncode:
            self._problem(f"the ledger: {verified.stdout[-1000:]}{verified.stderr[-1000:]}")
        contents = Counter((release.cluster, release.window) for release in self._releases())
        if twice := [cell for cell, count in contents.items() if count > 1]:
            self._problem(f"released twice: {twice[:10]}")
        for cluster in range(self._deployment.plan.cluster_count):
            windows = sorted(window for c, window in contents if c == cluster)
            gaps = sorted(set(range(windows[0], windows[-1] + 1)) - set(windows)) if windows else []
            if gaps or not windows:
                self._problem(f"cluster {cluster} lacks {gaps[:10] or 'all windows'}")
        every = {window for _, window in contents}
        self._report.windows, self._report.cells = len(every), len(contents)

    def _releases(self) -> list[Release]:
        """Return all releases, identical repeats left out."""
        deployment = self._deployment
        values = {m.value() for m in deployment.read(deployment.names.releases)}
        return [decode_release(value) for value in values]

    def _read_count(self) -> int:
        return self._total("sdp_updates_total")

    def _lag(self) -> int:
        return self._total("sdp_consumer_lag_records")

    def _windows_behind(self) -> list[int]:
        """Return how many windows are over and not public yet, of each cluster with a head."""
        samples = [sample for head in self._heads for sample in head.metrics().items()]
        over = self._deployment.current_window() - 1
        return [
            max(0, over - int(window))
            for (name, _), window in samples
            if name == "sdp_last_released_window"
        ]

    def _total(self, name: str) -> int:
        """Return the sum of a metric over all heads and labels."""
        samples = [sample for head in self._heads for sample in head.metrics().items()]
        return int(sum(value for (of, _), value in samples if of == name))

    def _released_through(self) -> tuple[int, ...]:
        """Return each cluster's newest released window."""
        newest: dict[int, int] = {}
        for release in self._releases():
            newest[release.cluster] = max(release.window, newest.get(release.cluster, -1))
        return tuple(newest.get(c, -1) for c in range(self._deployment.plan.cluster_count))

    def _newest_state(self) -> ModelState:
        deployment = self._deployment
        topic = deployment.names.model_state
        (data,) = read_tail(deployment.config, topic, 0, 1, bytes).values
        return decode_model_state(data)

    def _wait(self, what: str, probe: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while not probe():
            if time.monotonic() > deadline:
                self._problem(f"not within {_DRAIN_S:g} s: {what}")
                return
            time.sleep(0.2)

    def _problem(self, text: str) -> None:
        self._report.problems.append(text)
