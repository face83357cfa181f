"""The schedule by which the I/O thread leaves the interpreter to the host."""

from __future__ import annotations

import time

__all__ = ["REST_S", "IoScheduler"]

MAX_COMPUTE_S, PAUSE_S = 0.0005, 0.000_001
"""The longest computation without a pause, and the pause (0.05 ms, by the kernel's timer slack), in seconds."""
REST_S = 0.02
"""The length of a rest, in seconds. Each turn halts the host threads, so one turn handles all that accumulates."""
BUSY_S = 0.05
"""The interval above which segments are rare, in seconds: each is sent at once, and no rest follows."""


class IoScheduler:
    """The timing of one I/O thread. Only that thread uses it, except for `resting`, which host threads read.

    Attributes:
        resting: True while a host thread need not set the wakeup: the thread reads the outbox at the end of its rest.
        busy: True if the next turn can begin with a rest, because segments arrive in quick succession.
    """

    def __init__(self) -> None:
        self.resting = False
        self.busy = False
        self._segments_at = float("-inf")
        self._paused_at = 0.0

    def turn(self, now: float, *, segments: bool) -> None:
        """Begin a turn at the monotonic time `now`. `segments` is True if host threads have added any since the last turn."""
        self._paused_at = now
        self.busy = segments and now - self._segments_at < BUSY_S
        if segments:
            self._segments_at = now

    def yield_to_host(self) -> None:
        """In the middle of long work, let host threads run. Otherwise they wait for the interpreter's switch interval."""
        if time.monotonic() - self._paused_at > MAX_COMPUTE_S:
            self.yield_now()

    def yield_now(self) -> None:
        """Let host threads run now."""
        time.sleep(PAUSE_S)
        self._paused_at = time.monotonic()
