"""The limit on the learner's resident memory. libzmq has none: it buffers incomplete messages without a bound."""

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
"""Time over the limit after which all connections are closed, in seconds."""

END_S = 6.0
"""Time over the limit after which the learner ends, in seconds."""


class MemoryWatch(Worker):
    """The thread ``rl4sys-memory``, which checks the resident size every `LOOK_S` seconds.

    Over the limit, each check closes the connections that have completed no message for a while, since libzmq keeps an
    incomplete message until it is complete. After `CUT_ALL_S` seconds over the limit, all connections are closed once; actors
    reconnect and lose nothing. After `END_S` seconds the thread ends with `MemoryExceeded`, and the learner ends too.
    """

    def __init__(self, limit_bytes: int, cut: Callable[[bool], int], on_end: Callable[[], None]) -> None:
        """Create the thread object. `start` starts the thread.

        Args:
            limit_bytes: Limit on the resident memory of the process, in bytes.
            cut: Closes connections (all of them if its argument is True) and returns their number. Called in this thread.
            on_end: Called in this thread when the memory is still over the limit after `END_S` seconds.
        """
        super().__init__("rl4sys-memory")
        self._limit_bytes, self._cut, self._on_end = limit_bytes, cut, on_end
        self._over_since: float | None = None
        self._cut_all = False
        self._stopping = threading.Event()

    def run(self) -> None:
        """Check the memory until `stop`.

        Raises:
            MemoryExceeded: If the memory is over the limit for `END_S` seconds.
        """
        while not self._stopping.wait(LOOK_S):
            self.look(resident_bytes(), time.monotonic())

    def look(self, used_bytes: int, now: float) -> None:
        """Compare the memory with the limit, and close connections if it is over.

        Args:
            used_bytes: Resident memory of the process.
            now: Time on the monotonic clock, in seconds.

        Raises:
            MemoryExceeded: If the memory is over the limit for `END_S` seconds.
        """
        if used_bytes <= self._limit_bytes:
            self._over_since, self._cut_all = None, False
            return
        if self._over_since is None:
            self._over_since = now
            log.warning("%d MiB are used, the limit is %d MiB; closing connections", used_bytes >> 20, self._limit_bytes >> 20)
        over_s = now - self._over_since
        if over_s >= END_S:
            raise MemoryExceeded(used_bytes, self._limit_bytes)
        all_connections = over_s >= CUT_ALL_S and not self._cut_all
        self._cut_all |= all_connections
        with suppress(Closed):
            count = self._cut(all_connections)
            if count:
                log.warning(
                    "%d connections closed%s", count, "" if all_connections else " that had completed no message for a while"
                )
        give_back_memory()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def on_death(self, error: BaseException) -> None:
        """Stop the learner too."""
        self._on_end()
