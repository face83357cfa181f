"""The detection of a stalled client: its learner thread can use data, its actors request credit, but no data moves.

A stall is a fault of this library, never of the network: after a lost message, the actor still has credit, or sends it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.delivery.credit import CreditAllocator
from rl4sys_zmq.delivery.stream import SegmentStream

# The time without progress after which a client counts as stalled.
STALL_S = 1.0


def stall_reason(pool: CreditAllocator, live: Sequence[SegmentStream]) -> str:
    """Return the reason why a client can make no progress, as text; empty if it can.

    Call this only while the journal works, and while the learner thread runs and has received all replayed journal entries.
    """
    transit, usable = pool.transit, pool.usable_steps
    if transit.messages_on_way or usable <= 0:
        return ""  # the learner thread has something to do
    if any(s.credit_steps > s.accepted_steps for s in live):
        return ""  # an actor may send
    wanting = [s for s in live if s.submits and s.want_steps > s.accepted_steps]
    if not wanting:
        return ""
    return (
        f"the learner thread can use {usable} more steps; {len(wanting)} of {len(live)} actors request credit, and none has any; "
        f"{transit.waiting} are counted as waiting for the journal"
    )


class StallTimer:
    """A stopwatch that measures for how long one client has been stalled."""

    def __init__(self) -> None:
        self._progress: object = None
        self._since = 0.0

    def look(self, now: float, progress: object, reason: str) -> float:
        """Return the seconds since the first call that found the client stalled. `progress` differs after any progress."""
        if not reason or progress != self._progress:
            self._progress, self._since = progress if reason else None, now
        return now - self._since
