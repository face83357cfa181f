"""How the I/O thread shares the interpreter with the host: when it rests, and how long it computes at a stretch."""

from __future__ import annotations

import time

__all__ = ["REST_S", "IoScheduler"]

HOLD_S, BREATH_S = 0.0005, 0.000_001
"""How long the thread may compute at a stretch, and for how long it then sleeps: 0.05 ms, by the kernel's timer slack."""
REST_S = 0.02
"""How long it lets segments and acks gather when nobody waits for them: at each of its turns the host's threads stand still."""
BUSY_S = 0.05
"""Segments that come further apart than this are few: each is sent at once, and no rest follows."""


class IoScheduler:
    """The pace of one I/O thread. Used in that thread, but for `resting`, which hosts read.

    Attributes:
        resting: a host need not ring: the thread looks at the outbox at the end of its rest.
        busy: the next turn may begin with a rest, since segments come one after the other.
    """

    def __init__(self) -> None:
        self.resting = False
        self.busy = False
        self._segments_at = float("-inf")
        self._breath_at = 0.0

    def turn(self, now: float, *, segments: bool) -> None:
        """Begins a turn, at `now` by the monotonic clock; `segments` says whether hosts have left any since the last one."""
        self._breath_at = now
        self.busy = segments and now - self._segments_at < BUSY_S
        if segments:
            self._segments_at = now

    def yield_to_host(self) -> None:
        """In the middle of long work, lets the host's threads have the interpreter: else they wait for its switch interval."""
        if time.monotonic() - self._breath_at > HOLD_S:
            self.give_way()

    def give_way(self) -> None:
        """Lets the host's threads have the interpreter now."""
        time.sleep(BREATH_S)
        self._breath_at = time.monotonic()
