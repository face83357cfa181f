"""The detection of a stalled client: its learner thread can use data, an actor requests credit, and nothing moves.

A stall is a fault of this library, never of the network. If a message is lost, the actor still has credit or resends.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.delivery.credit import CreditPool
from rl4sys_zmq.delivery.stream import Stream

__all__ = ["STALL_S", "StallWatch", "stall_reason"]

STALL_S = 1.0
"""The longest time without progress before a client counts as stalled, in seconds."""


def stall_reason(pool: CreditPool, live: Sequence[Stream]) -> str:
    """Return why a client can make no progress, or an empty string if it can.

    Call this only while the journal commits entries and the learner thread runs and has received all replayed entries.

    Args:
        pool: The credit of the learner thread.
        live: The streams of the live actors.
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


class StallWatch:
    """The time for which one client has been stalled."""

    def __init__(self) -> None:
        self._progress: object = None
        self._since = 0.0

    def look(self, now: float, progress: object, reason: str) -> float:
        """Record the present state of the client. Call it regularly.

        Args:
            now: The time, in seconds.
            progress: A value that changes with any progress.
            reason: The result of `stall_reason`.

        Returns:
            For how many seconds the client has been stalled, as seen by earlier calls; 0 if it is not.
        """
        if not reason or progress != self._progress:
            self._progress, self._since = progress if reason else None, now
        return now - self._since
