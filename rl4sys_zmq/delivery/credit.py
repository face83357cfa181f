"""How a learner thread's demand is shared between the actors that feed it.

Credit is absolute: a limit on the steps of a stream, so that a lost or repeated ack does no harm. An actor says how far it
would like to go (`want_steps`); the pool grants what the demand allows, in turn, and only to those who want. An actor may
send a segment as long as it is below its limit, so one segment may reach over it: the pool counts what came, not what was
granted, and no fraction of a segment is ever stuck behind a limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.delivery.transit import Transit

__all__ = ["IDLE_S", "CreditPool"]

IDLE_S = 1.0
"""How long an actor may sit on credit before it is offered to others, in seconds."""


class CreditPool:
    """The credit of one learner thread's life.

    Attributes:
        transit: what the learner thread was given and has not taken.
        limit_steps: how many steps the learner thread can take in all since its start.
        min_version: the least version that actors should start a segment with.
    """

    def __init__(self) -> None:
        self.transit = Transit()
        self.limit_steps = 0
        self.min_version = 0

    @property
    def usable_steps(self) -> int:
        """Steps that the learner thread can use beyond those that it has taken."""
        return self.limit_steps - self.transit.taken.steps

    @property
    def free_steps(self) -> int:
        """Steps that the learner thread can use beyond all that it was given."""
        return self.usable_steps - self.transit.steps

    def demand(self, usable_steps: int, messages: int, min_version: int) -> None:
        """Take the learner thread's word for what it has taken and what more it can use; the limit never shrinks.

        Args:
            usable_steps: how many more steps it can use.
            messages: how many messages it has taken in this life.
            min_version: the least version that actors should start a segment with.

        Raises:
            ProtocolError: If `messages` is impossible.
        """
        self.transit.take(messages)
        self.limit_steps = max(self.limit_steps, self.transit.taken.steps + usable_steps)
        self.min_version = max(self.min_version, min_version)

    def grant(self, streams: Iterable[Stream], now: float) -> list[Stream]:
        """Raises the credit of the streams that want more, and returns those.

        The streams with the fewest steps accepted come first, so that actors of unequal speed are served alike. Credit that
        its actor has left unused for `IDLE_S` is granted once more, to another: nobody may starve a batch by holding on to
        a share of it. Should the idle actor use it after all, the batch after that begins with older data.
        """
        members = list(streams)
        unused = {id(s): max(0, s.credit_steps - s.accepted_steps) for s in members}
        idle = {id(s) for s in members if now - s.progress_at >= IDLE_S}
        free = self.free_steps - sum(n for key, n in unused.items() if key not in idle)
        granted = []
        for stream in sorted(members, key=lambda s: s.accepted_steps):
            own = unused[id(stream)] if id(stream) in idle else 0  # for others it is free, not for the one that has it
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
        """Takes back what a stream has not used, because its actor has fallen silent."""
        stream.credit_steps = min(stream.credit_steps, stream.accepted_steps)
        stream.want_steps = min(stream.want_steps, stream.accepted_steps)
