"""One run of the demonstration, from the broker's start to the verdict; nothing is left behind."""

import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient
from rich.console import Console

from agents import ledger
from agents.broker import Broker, BrokerError, free_port
from agents.kafka_edge import connection, now_ms
from agents.local_kafka import start_broker
from agents.topics import TopicError, create_topics, topics_of
from schemas import MalformedMessageError
from stream.errors import StreamError
from stream.privacy.plan import PrivacyPlan

from .data import client_set, load_images, test_set
from .display import Display
from .interrupts import CleanUp, Interrupts
from .mock import WARNING, check_windows, create_mock_topics
from .plan import CLUSTERS, demo_optimizer, demo_plan
from .processes import Children, ProcessError
from .report import DemoReport, LedgerFindings, draw_png, failures, make_report, summary_table
from .state import DemoState
from .training import train_without_privacy
from .watch import Watch

HEADS = 2
# What may go wrong around a run, as opposed to what `run_demo` returns as its verdict.
RUN_ERRORS = (
    ProcessError,
    BrokerError,
    TopicError,
    StreamError,
    MalformedMessageError,
    OSError,
)

# From the plan's making to its first window: four Python processes start in this time.
_START_DELAY_MS = 15_000
_HEALTH_TIMEOUT_S = 60.0
# After the last window's end, for its release, its model and their reading.
_LAST_MODEL_TIMEOUT_MS = 30_000
_DELETE_TIMEOUT_S = 30.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What a run can be asked for.

    Attributes:
        clients: Number of clients.
        windows: Number of windows.
        window_ms: Length of a window.
        minimum_accuracy: Test accuracy below which the run has failed.
        json_path: Where the report goes; None for nowhere.
        png_path: Where the picture goes.
        keeps_logs: Whether the logs stay.
    """

    clients: int
    windows: int
    window_ms: int
    minimum_accuracy: float
    json_path: Path | None
    png_path: Path
    keeps_logs: bool


def run_demo(options: DemoOptions, console: Console) -> list[str]:
    """Run the demonstration; return what it failed at, nothing if it passed.

    Raises:
        KafkaException: the broker refuses a request, or does not answer.
        RUN_ERRORS: a process died or did not become ready, or there is no broker.
        KeyboardInterrupt: somebody stopped the run; everything was cleaned up.
    """
    begin_s = time.monotonic()
    images = load_images()
    test = test_set(images)
    baseline = train_without_privacy(
        demo_optimizer(), client_set(images, options.clients), test, options.windows
    )
    with Interrupts() as interrupts, CleanUp(interrupts) as cleanup:
        folder = _folder(options, cleanup, interrupts, console)
        broker = cleanup.enter_context(start_broker(say=partial(_say, console)))
        if broker.kind == "mock":
            check_windows(options.windows)
            _say(console, WARNING)
        plan = _plan(options)
        if broker.kind == "env":
            # A broker that is not ours is left as it was, once the processes are stopped.
            cleanup.callback(_delete_topics, connection(broker.bootstrap_servers, {}), plan)
        run = _Run(broker, DemoState(plan, test), folder, console, cleanup, interrupts)
        run.prepare()
        run.watch()
        findings = run.verify()
    report = make_report(
        run.state,
        findings,
        broker=broker.kind,
        baseline=baseline[-1],
        seconds=time.monotonic() - begin_s,
    )
    _publish(report, baseline, options, console)
    return failures(report, options.minimum_accuracy, plan.epsilon)


class _Run:
    """The steps of a run, in order: prepare, watch, verify."""

    def __init__(
        self,
        broker: Broker,
        state: DemoState,
        folder: Path,
        console: Console,
        cleanup: CleanUp,
        interrupts: Interrupts,
    ) -> None:
        self.state = state
        self._plan = state.plan
        self._broker = broker
        self._config = connection(broker.bootstrap_servers, {})
        self._is_mock = broker.kind == "mock"
        self._folder = folder
        self._console = console
        self._interrupts = interrupts
        self._operator_ports: list[int] = []
        self._children = cleanup.enter_context(Children(folder))

    def prepare(self) -> None:
        """Create the topics, start every process, and wait until all are ready."""
        if self._is_mock:
            create_mock_topics(self._config, self._plan)
        else:
            create_topics(self._config, self._plan)
        program = "agents.demo.mock" if self._is_mock else "agents"
        plan_file = self._folder / "plan.toml"
        plan_file.write_text(self._plan.to_toml(), encoding="utf-8")
        common = ["--plan", str(plan_file)]
        for number in range(1, HEADS + 1):
            self._operator_ports.append(self._start(f"head-{number}", [program, "head", *common]))
        self._start("global", [program, "global", *common])
        clients = ["--clients", str(self._plan.expected_clients)]
        self._start("fleet", ["agents.demo.fleet", *common, *clients], ends_by_itself=True)
        _say(
            self._console,
            f"waiting for {HEADS} heads, the global agent and the clients to be ready",
        )
        self._children.wait_until_healthy(_HEALTH_TIMEOUT_S)
        if (late_ms := now_ms() - self._plan.start_ms) > 0:
            _say(self._console, f"ready {late_ms / 1000:.1f} s after the first window began")

    def watch(self) -> None:
        """Show what happens until the last model is there, or until it cannot come any more.

        Raises:
            ProcessError: a process died.
        """
        servers = self._broker.bootstrap_servers
        with (
            Watch(self.state, servers, self._operator_ports) as watch,
            Display(self._console, self._title()) as display,
        ):
            last_ms = self._plan.window_end_ms(self._plan.horizon_windows - 1)
            deadline_ms = last_ms + _LAST_MODEL_TIMEOUT_MS
            while not self.state.is_complete and now_ms() < deadline_ms:
                watch.poll(_POLL_S)
                self._children.check()
                display.show(self.state, now_ms())
            watch.finish()
            display.show_last(self.state, now_ms())

    def verify(self) -> LedgerFindings:
        """Stop the processes and read every ledger from its beginning."""
        with self._interrupts.held():
            self._children.stop()
        found = ledger.verify(self._config, self._plan, unsafe_mock_broker=self._is_mock)
        return LedgerFindings(
            found.verified, tuple(found.problems), found.epsilon, found.epsilon_independent
        )

    def _start(self, name: str, arguments: list[str], *, ends_by_itself: bool = False) -> int:
        operator_port = free_port()
        settings = {
            "SDP_BOOTSTRAP_SERVERS": self._broker.bootstrap_servers,
            "SDP_OPERATOR_PORT": str(operator_port),
            "SDP_PUBLIC_PORT": str(free_port()),
        }
        # Between the process and our list of what to stop, nothing may come.
        with self._interrupts.held():
            self._children.start(
                name, arguments, settings, operator_port, ends_by_itself=ends_by_itself
            )
        return operator_port

    def _title(self) -> str:
        return (
            f"{self._plan.expected_clients:,} clients, {CLUSTERS} clusters on {HEADS} heads, "
            f"broker: {self._broker.description}"
        )


def _plan(options: DemoOptions) -> PrivacyPlan:
    return demo_plan(
        start_ms=now_ms() + _START_DELAY_MS,
        clients=options.clients,
        windows=options.windows,
        window_ms=options.window_ms,
        # Runs never share topics, whoever's the broker is.
        topic_prefix=f"sdp-demo-{secrets.token_hex(4)}",
    )


def _publish(
    report: DemoReport, baseline: list[float], options: DemoOptions, console: Console
) -> None:
    draw_png(options.png_path, report, baseline)
    if options.json_path is not None:
        options.json_path.write_text(report.to_json(), encoding="utf-8")
    console.print(summary_table(report))
    _say(console, f"The picture is in {options.png_path}.")


def _folder(
    options: DemoOptions, cleanup: CleanUp, interrupts: Interrupts, console: Console
) -> Path:
    """Return a temporary folder; it is removed at the end unless the logs are to be kept."""
    with interrupts.held():
        if not options.keeps_logs:
            return Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sdp-demo-")))
        folder = Path(tempfile.mkdtemp(prefix="sdp-demo-"))
    _say(console, f"The logs are in {folder}.")
    return folder


def _delete_topics(config: Mapping[str, str], plan: PrivacyPlan) -> None:
    admin = AdminClient(dict(config))
    for future in admin.delete_topics([spec.name for spec in topics_of(plan)]).values():
        # A topic that was not created yet when the run was stopped is no trouble.
        future.exception(_DELETE_TIMEOUT_S)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
