"""The part that handles to worker processes share: a thread starts the process, and waits for its end."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable

from rl4sys_zmq.resource import Worker
from rl4sys_zmq.wire.thread_messages import ThreadFailed

REPLACED_KILL_S = 5.0
"""Time that a replaced worker process has to end by itself. Then it is killed."""

ABORT_WAIT_S = 2.0


class WatchThread(Worker):
    """A thread that starts one worker process, and waits for its end. `stop` kills the process."""

    def __init__(self, name: str, ended: Callable[[], None]) -> None:
        super().__init__(name)
        self.over = False  # True after the end of the process. `crash` and `failure` are then final.
        self.crash = ""
        self.failure: ThreadFailed | None = None
        self._ended = ended
        self._kill_at = math.inf

    @property
    @abstractmethod
    def silent_s(self) -> float:
        """The time since the last sign of life of the process, in seconds; 0 until the first, and after its end."""

    def kill_within(self, seconds: float) -> None:
        """Kill the process if it still runs after a time in seconds."""
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)


class WatchedWorker:
    """The methods of `LearnerThreadHandle` that a `WatchThread` answers. Any thread can call them."""

    _watch: WatchThread

    @property
    def alive(self) -> bool:
        """True from the creation of this object to the end of the process, or until the process counts as lost."""
        return not self._watch.over

    @property
    def crash(self) -> str:
        """The end of the process by itself, without a reported error, as text; empty in all other cases."""
        return self._watch.crash if self._watch.over else ""

    @property
    def failure(self) -> ThreadFailed | None:
        """The error that ended the process, or because of which no process can be started."""
        return self._watch.failure

    @property
    def silent_s(self) -> float:
        """The time since the last sign of life of the process, in seconds; 0 until the first, and after its end."""
        return self._watch.silent_s

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the process. Return False if it still runs after `timeout_s` seconds."""
        return self._watch.join(timeout_s)

    def abort(self) -> bool:
        """Kill the process. Return True if it has ended."""
        self._watch.stop()
        return self._watch.join(ABORT_WAIT_S)
