"""Ctrl-C, SIGTERM and SIGHUP: the first raises an exception in the main thread, the second ends the process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

INTERRUPTED = 130
PATIENCE_S = 1.85
MAX_LINE_BYTES = 4096
_ASKED_TO_END = ("SIGINT", "SIGTERM", "SIGHUP")


class StopSignalReceived(BaseException):
    """Raised in the main thread when a signal asks this process to end. ``except Exception`` does not catch it."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signal.Signals(signum).name)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 0 for other signals."""
        return INTERRUPTED if self.signum == signal.SIGINT else 0


class SignalHandlers:
    """Handlers of Ctrl-C, SIGTERM and SIGHUP, as a context manager.

    The first signal raises `StopSignalReceived` in the main thread. A second signal ends the process,
    and so does the end of `patience_s` seconds.
    """

    current: SignalHandlers | None = None  # the active instance, or None outside of the ``with`` block

    def __init__(self) -> None:
        self.patience_s = PATIENCE_S  # longest time for cleaning up after the first signal
        # True if the first signal is only recorded, and `check` raises the exception, for a loop that must not be interrupted
        self.defers = False
        self._before: dict[int, Any] = {}
        self._stopping: StopSignalReceived | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _ASKED_TO_END):
                if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:  # respect nohup
                    self._before[number] = signal.signal(number, self._on_signal)
        SignalHandlers.current = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        SignalHandlers.current = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def received(self) -> bool:
        return self._stopping is not None

    def check(self) -> None:
        # The exception that the signal handler raised can be lost, for example in a finaliser.
        if self._stopping is not None:
            raise self._stopping

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._stopping is not None:
            os._exit(self._stopping.exit_code)
        self._stopping = StopSignalReceived(signum)
        self._timer = threading.Timer(self.patience_s, os._exit, [self._stopping.exit_code])
        self._timer.daemon = True
        self._timer.start()
        if not self.defers:
            raise self._stopping


def check_signals() -> None:
    """Raise `StopSignalReceived` if a signal has arrived. Long loops call this regularly."""
    if SignalHandlers.current is not None:
        SignalHandlers.current.check()


def end_with_stdin(on_line: Callable[[str], None] | None = None) -> None:
    """Start a thread that sends SIGTERM to this process when its stdin is closed, so that it ends with its parent.

    `on_line` gets each line of stdin. If the process does not end within a second more than `SignalHandlers.patience_s`, for
    example because its main thread is busy in native code, the thread ends it.
    """

    def watch() -> None:
        rest = b""
        try:
            while data := os.read(0, 4096):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-MAX_LINE_BYTES:]
                if on_line is not None:
                    for line in lines:
                        on_line(line.decode(errors="replace").strip())
        except OSError:
            pass  # stdin is already closed
        os.kill(os.getpid(), signal.SIGTERM)
        signals = SignalHandlers.current
        time.sleep((signals.patience_s if signals is not None else PATIENCE_S) + 1.0)
        os._exit(1)

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()
