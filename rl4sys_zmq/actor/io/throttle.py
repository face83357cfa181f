"""The pauses and sleeps of the I/O thread, in which the interpreter (GIL) is free for the host's threads."""

from __future__ import annotations

import time

MAX_COMPUTE_S, PAUSE_S = 0.0005, 0.000_001
"""The longest computation without a pause, and the length of a pause, in seconds.

The kernel's timer slack extends a pause to about 0.05 ms.
"""
REST_S = 0.02
"""The length of one sleep of the busy I/O thread, in seconds.

The thread halts the host threads each time it runs. So it sleeps, and then handles at once all that has accumulated.
"""
BUSY_S = 0.05
"""The time between two segments, in seconds, below which the I/O thread counts as busy and sleeps.

If segments are rarer, the thread handles each of them at once.
"""


class IOThrottle:
    """The timing of one I/O thread, which leaves the interpreter (GIL) to the host's threads as much as possible.

    Only the I/O thread uses the object, except for `resting`, which host threads read.

    Attributes:
        resting: True while the thread sleeps to handle several segments at once. A host thread that queues a segment (run of
            steps to send) need not wake it then.
        busy: True if segments arrive in quick succession, so that the thread sleeps before its next turn.
    """

    def __init__(self) -> None:
        self.resting = False
        self.busy = False
        self._segments_at = float("-inf")
        self._paused_at = 0.0

    def turn(self, now: float, *, segments: bool) -> None:
        """Record the start of a turn: one pass of the thread through its loop.

        Args:
            now: The monotonic time, in seconds.
            segments: True if host threads have queued a segment (run of steps) since the last turn.
        """
        self._paused_at = now
        self.busy = segments and now - self._segments_at < BUSY_S
        if segments:
            self._segments_at = now

    def yield_to_host(self) -> None:
        """Let host threads run, if the last pause is more than `MAX_COMPUTE_S` ago. Called often during long work.

        Without these pauses, a host thread has to wait for the interpreter's switch interval.
        """
        if time.monotonic() - self._paused_at > MAX_COMPUTE_S:
            self.yield_now()

    def yield_now(self) -> None:
        """Let host threads run now."""
        time.sleep(PAUSE_S)
        self._paused_at = time.monotonic()
