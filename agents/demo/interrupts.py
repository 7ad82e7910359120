"""Ctrl-C at any moment: raised where it is harmless, held back where it would leave a leftover."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt, but not inside `held` blocks.

    A context manager for the main thread; the former handlers are put back at the end.
    """

    def __init__(self) -> None:
        self._held = 0
        self._is_pending = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            former = signal.signal(number, self._receive)
            self._stack.callback(signal.signal, number, former)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the block finish; an interrupt that came meanwhile is raised at its end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._is_pending and not self._held:
            self._is_pending = False
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._is_pending = True
        else:
            raise KeyboardInterrupt


class CleanUp(ExitStack):
    """An ExitStack whose clean-up is not interrupted."""

    def __init__(self, interrupts: Interrupts) -> None:
        super().__init__()
        self._interrupts = interrupts

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        with self._interrupts.held():
            return bool(super().__exit__(kind, error, traceback))
