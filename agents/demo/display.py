"""The live display of a run; plain lines where there is no terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .report import percentile
from .state import DemoState

_BAR_WIDTH = 40
_DRAW_EVERY_MS = 250


class Display:
    """Shows a `DemoState`: redrawn in place on a terminal, else one line a window.

    As a context manager, it leaves the last picture on the screen.

    Args:
        console: Where to.
        title: What runs, and on which broker.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._window_told = -1
        self._drawn_ms = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self._console.print(self._title, highlight=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, state: DemoState, now_ms: int) -> None:
        """Show the state as it is; cheap to call often."""
        if self._live is not None:
            # Drawing takes long enough to delay whoever measures latencies between two calls.
            if now_ms - self._drawn_ms >= _DRAW_EVERY_MS:
                self._drawn_ms = now_ms
                self._live.update(render(state, self._title, now_ms), refresh=True)
        elif state.newest_window > self._window_told:
            self._window_told = state.newest_window
            self._console.print(plain_line(state), highlight=False, soft_wrap=True)

    def show_last(self, state: DemoState, now_ms: int) -> None:
        """Show the state as it stays on the screen."""
        self._drawn_ms = 0
        self.show(state, now_ms)


def render(state: DemoState, title: str, now_ms: int) -> RenderableType:
    """Return the picture of ``state``."""
    return Group(Text(title, style="bold"), _facts(state, now_ms), _clusters(state))


def plain_line(state: DemoState) -> str:
    """Return the newest window's line for logs."""
    return (
        f"window {state.newest_window + 1}/{state.plan.horizon_windows}"
        f"  accuracy {_accuracy(state)}"
        f"  epsilon {state.epsilon:.3f}/{state.plan.epsilon:g}"
        f"  accepted {state.accepted}  rejected {_rejected(state)}"
        f"  release {_latency(state.release_latency_s)}"
        f"  model {_latency(state.model_latency_s)}"
    )


def _facts(state: DemoState, now_ms: int) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row("window", _now(state, now_ms))
    table.add_row("test accuracy", _accuracy(state))
    table.add_row("cells released", f"{len(state.digest_by_cell)} of {state.cell_count}")
    table.add_row("updates accepted", f"{state.accepted:,}")
    table.add_row("updates rejected", _rejected(state))
    table.add_row("window end to release", _latency(state.release_latency_s))
    table.add_row("window end to model", _latency(state.model_latency_s))
    return table


def _clusters(state: DemoState) -> Table:
    cap = state.plan.epsilon
    table = Table.grid(padding=(0, 3))
    for cluster in range(state.plan.cluster_count):
        spent = state.epsilon_by_cluster.get(cluster, 0.0)
        bar = ProgressBar(total=cap, completed=spent, width=_BAR_WIDTH)
        table.add_row(f"cluster {cluster}", bar, f"epsilon {spent:.3f} of {cap:g}")
    return table


def _now(state: DemoState, now_ms: int) -> str:
    window = state.plan.window_of(now_ms)
    if window < 0:
        return f"the first begins in {(state.plan.start_ms - now_ms) / 1000:.0f} s"
    last = state.plan.horizon_windows
    return f"{window + 1} of {last}" if window < last else f"all {last} are over"


def _accuracy(state: DemoState) -> str:
    newest = state.newest_accuracy
    return "no model yet" if newest is None else f"{newest:.3f}"


def _rejected(state: DemoState) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in state.rejected.items()) or "none"


def _latency(seconds: list[float]) -> str:
    if not seconds:
        return "none yet"
    return f"{seconds[-1]:.2f} s (half within {percentile(seconds, 50):.2f} s)"
