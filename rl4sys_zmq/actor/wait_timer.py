"""The measurement of the time that host threads spend in waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class WaitTimer:
    """The time that threads have spent in ``with`` blocks of this object, summed over the threads.

    Any thread can use it. A block that a thread has entered and not left so far counts too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler can read `seconds` while its thread holds the lock
        self._waiting = 0
        self._at_s = self._total_s = 0.0

    def renew_lock(self) -> None:
        """Replace the lock, in a forked child."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        with self._lock:
            self._add_passed()
            self._waiting += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._add_passed()
            self._waiting -= 1

    def _add_passed(self) -> None:
        now = self._clock()
        self._total_s += self._waiting * (now - self._at_s)
        self._at_s = now

    @property
    def seconds(self) -> float:
        """The time until now, in thread-seconds."""
        with self._lock:
            self._add_passed()
            return self._total_s
