"""The pauses and sleeps of the I/O thread, in which the interpreter (GIL) is free for the host's threads."""

from __future__ import annotations

import time

MAX_COMPUTE_S, PAUSE_S = 0.0005, 0.000_001
"""The longest computation without a pause, and the length of a pause (about 0.05 ms with timer slack)."""
REST_S = 0.02
"""The length of one sleep of the busy I/O thread, which then handles at once all that has accumulated."""
BUSY_S = 0.05
"""The time between two segments below which the I/O thread counts as busy and sleeps."""


class IOThrottle:
    """The timing of one I/O thread. Only that thread uses the object, except for `resting`."""

    def __init__(self) -> None:
        self.resting = False  # it sleeps to handle several segments at once: a host thread need not wake it
        self.busy = False  # true if segments arrive in quick succession, so that the thread sleeps before its next turn
        self._segments_at = float("-inf")
        self._paused_at = 0.0

    def turn(self, now: float, *, segments: bool) -> None:
        """Record the start of a pass of the thread through its loop."""
        self._paused_at = now
        self.busy = segments and now - self._segments_at < BUSY_S
        if segments:
            self._segments_at = now

    def yield_to_host(self) -> None:
        """Let host threads run, if the last pause is more than `MAX_COMPUTE_S` ago."""
        if time.monotonic() - self._paused_at > MAX_COMPUTE_S:
            self.yield_now()

    def yield_now(self) -> None:
        time.sleep(PAUSE_S)
        self._paused_at = time.monotonic()
