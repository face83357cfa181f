"""The credit pool, which shares the demand of one learner thread between its actors.

Credit is an absolute limit on the steps of a stream, so a lost or repeated ack does no harm. An actor requests credit up to
`want_steps`. The pool grants what the demand allows, and only to actors that request it. An actor may send a whole segment while
it is below its limit, so one segment can exceed the limit. The pool therefore counts the steps received, not the steps granted.
"""

from __future__ import annotations

from collections.abc import Iterable

from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.delivery.transit import Transit

__all__ = ["IDLE_S", "CreditPool"]

IDLE_S = 1.0
"""The time after which unused credit of one actor is granted to another as well, in seconds."""


class CreditPool:
    """The credit that one learner thread gives to the streams of its client, from its start to its end (a *generation*).

    Attributes:
        transit: The data on the way to the learner thread.
        limit_steps: How many steps the learner thread can use in all since its start.
        min_version: The lowest policy version that actors should start a segment with.
    """

    def __init__(self) -> None:
        self.transit = Transit()
        self.limit_steps = 0
        self.min_version = 0

    @property
    def usable_steps(self) -> int:
        """The number of steps that the learner thread can use beyond those that it has received."""
        return self.limit_steps - self.transit.taken.steps

    @property
    def free_steps(self) -> int:
        """The number of steps that the learner thread can use beyond those received, waiting and on the way."""
        return self.usable_steps - self.transit.steps

    def demand(self, usable_steps: int, messages: int, min_version: int) -> None:
        """Record the demand that the learner thread reports. The limit never decreases.

        Args:
            usable_steps: How many more steps the learner thread can use.
            messages: How many messages it has received in this generation.
            min_version: The lowest policy version that actors should start a segment with.

        Raises:
            ProtocolError: If `messages` exceeds the number sent, or is less than reported before.
        """
        self.transit.take(messages)
        self.limit_steps = max(self.limit_steps, self.transit.taken.steps + usable_steps)
        self.min_version = max(self.min_version, min_version)

    def grant(self, streams: Iterable[Stream], now: float) -> list[Stream]:
        """Raise the credit of the streams that request more. Return those streams.

        The streams with the fewest accepted steps come first, so that slow and fast actors get equal shares. Credit that an actor
        has not used for `IDLE_S` is granted to another actor as well. Otherwise an idle actor could prevent a batch from filling.
        If the idle actor uses its credit later, the next batch starts with older data.
        """
        members = list(streams)
        unused = {id(s): max(0, s.credit_steps - s.accepted_steps) for s in members}
        idle = {id(s) for s in members if now - s.progress_at >= IDLE_S}
        free = self.free_steps - sum(n for key, n in unused.items() if key not in idle)
        granted = []
        for stream in sorted(members, key=lambda s: s.accepted_steps):
            own = unused[id(stream)] if id(stream) in idle else 0  # free for other streams only
            wanted = stream.want_steps - max(stream.credit_steps, stream.accepted_steps)
            share = min(wanted, free - own)
            if share <= 0:
                continue
            if stream.credit_steps <= stream.accepted_steps:
                stream.progress_at = now
            stream.credit_steps = max(stream.credit_steps, stream.accepted_steps) + share
            free -= share
            granted.append(stream)
        return granted

    @staticmethod
    def reclaim(stream: Stream) -> None:
        """Take back the unused credit of a stream whose actor is silent."""
        stream.credit_steps = min(stream.credit_steps, stream.accepted_steps)
        stream.want_steps = min(stream.want_steps, stream.accepted_steps)
