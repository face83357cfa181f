"""The bound on the learner's memory that libzmq does not have: its resident size is watched, and something is done about it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rl4sys_zmq.errors import Closed, MemoryExceeded
from rl4sys_zmq.learner.memory import give_back_memory, resident_bytes
from rl4sys_zmq.resource import Worker

__all__ = ["CUT_ALL_S", "END_S", "MemoryWatch"]

log = logging.getLogger(__name__)

LOOK_S = 0.2
CUT_ALL_S = 2.0
"""After so long over the limit all connections are ended, in seconds."""

END_S = 6.0
"""After so long over the limit the learner ends."""


class MemoryWatch(Worker):
    """The thread ``rl4sys-memory``. It looks five times a second and owns nothing else.

    Over the limit, connections that have finished no message for a while are ended, and again at each look: libzmq keeps an
    unfinished message until its end comes. When that is not enough, all are: actors dial again by themselves, and lose nothing.
    When that does not help either, the thread dies of `MemoryExceeded`, and the learner with it.
    """

    def __init__(self, limit_bytes: int, cut: Callable[[bool], int], on_end: Callable[[], None]) -> None:
        """Makes it; `start` starts it.

        Args:
            limit_bytes: what the process may hold.
            cut: ends connections, given whether all of them; returns how many. Called in this thread.
            on_end: called when nothing has helped.
        """
        super().__init__("rl4sys-memory")
        self._limit_bytes, self._cut, self._on_end = limit_bytes, cut, on_end
        self._over_since: float | None = None
        self._cut_all = False
        self._stopping = threading.Event()

    def run(self) -> None:
        """The thread's body.

        Raises:
            MemoryExceeded: when nothing has helped.
        """
        while not self._stopping.wait(LOOK_S):
            self.look(resident_bytes(), time.monotonic())

    def look(self, used_bytes: int, now: float) -> None:
        """Does what is due, when so much is used.

        Raises:
            MemoryExceeded: when nothing has helped.
        """
        if used_bytes <= self._limit_bytes:
            self._over_since, self._cut_all = None, False
            return
        if self._over_since is None:
            self._over_since = now
            log.warning("%d MiB are used, of %d: connections are ended", used_bytes >> 20, self._limit_bytes >> 20)
        over_s = now - self._over_since
        if over_s >= END_S:
            raise MemoryExceeded(used_bytes, self._limit_bytes)
        everybody = over_s >= CUT_ALL_S and not self._cut_all
        self._cut_all |= everybody
        with suppress(Closed):
            count = self._cut(everybody)
            if count:
                log.warning("%d connections ended%s", count, "" if everybody else ", which had finished no message for a while")
        give_back_memory()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()

    def on_death(self, error: BaseException) -> None:
        """Ends the learner too."""
        self._on_end()
