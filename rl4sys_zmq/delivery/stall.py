"""Notice that a client stands still although it could go on: its learner thread wants data, an actor has some, nothing moves.

That is a fault of this library, never of the network: where a message is lost, an actor has credit or sends again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.delivery.credit import CreditPool
from rl4sys_zmq.delivery.stream import Stream

__all__ = ["STALL_S", "StallWatch", "stall_reason"]

STALL_S = 1.0
"""How long a client may stand still while it could go on, in seconds."""


def stall_reason(pool: CreditPool, live: Sequence[Stream]) -> str:
    """Return why nothing can move, or an empty string when something can.

    Call this only while the journal takes data, and while the learner thread runs and has caught up with the journal.

    Args:
        pool: the credit of the learner thread's life.
        live: the streams of the actors that are in touch.
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
        f"the learner thread can use {usable} more steps, {len(wanting)} of {len(live)} actors ask for credit, and none has any; "
        f"{transit.waiting} are counted as waiting for the journal"
    )


class StallWatch:
    """Measure for how long a client has stood still without a reason."""

    def __init__(self) -> None:
        self._progress: object = None
        self._since = 0.0

    def look(self, now: float, progress: object, reason: str) -> float:
        """Look at a client.

        Args:
            now: the time, in seconds.
            progress: changes whenever anything moves.
            reason: why nothing can move; empty when something can.

        Returns:
            For how many seconds it has stood still, by what earlier looks have seen; 0 when it does not.
        """
        if not reason or progress != self._progress:
            self._progress, self._since = progress if reason else None, now
        return now - self._since
