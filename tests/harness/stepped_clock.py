"""A wall clock that is wrong, in this process: a day ahead, a day back, or at the beginning of time."""

from __future__ import annotations

import time


def step_clock(seconds: float) -> None:
    """Whoever asks for the time from now on is told so many seconds more; what runs monotonically does not change."""
    told_s, told_ns = time.time, time.time_ns
    time.time = lambda: told_s() + seconds
    time.time_ns = lambda: told_ns() + int(seconds * 1e9)
