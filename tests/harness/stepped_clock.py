"""A wrong wall clock for this process: a day ahead, a day behind, or at the beginning of time."""

import time


def step_clock(seconds: float) -> None:
    """Move the wall clock of this process by this number of seconds. Monotonic clocks do not change."""
    told_s, told_ns = time.time, time.time_ns
    time.time = lambda: told_s() + seconds
    time.time_ns = lambda: told_ns() + int(seconds * 1e9)
