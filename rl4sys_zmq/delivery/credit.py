"""How a learner thread's demand is shared between the actors that feed it.

Credit is absolute: a limit on the steps of a stream, so that a lost or repeated ack does no harm. An actor says how far it
would like to go (`want_steps`); the pool grants what the demand allows, in turn, and only to those who want. An actor may
send a segment as long as it is below its limit, so one segment may reach over it: the pool counts what came, not what was
granted, and no fraction of a segment is ever stuck behind a limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from rl4sys_zmq.delivery.stream import Stream

__all__ = ["IDLE_S", "CreditPool"]

IDLE_S = 1.0
"""How long an actor may sit on credit before it is offered to others, in seconds."""


class CreditPool:
    """The credit of one learner thread's life.

    Attributes:
        limit_steps: how many steps the learner thread can take in all since its start.
        delivered_steps: how many it was given.
        min_version: the least version that actors should start a segment with.
    """

    def __init__(self) -> None:
        self.limit_steps = 0
        self.min_version = 0
        self.delivered_steps = 0

    def demand(self, limit_steps: int, min_version: int) -> None:
        """Takes the learner thread's word for how much it can use; a limit never shrinks."""
        self.limit_steps = max(self.limit_steps, limit_steps)
        self.min_version = max(self.min_version, min_version)

    def delivered(self, steps: int) -> None:
        """Notes steps that were accepted for the learner thread."""
        self.delivered_steps += steps

    def grant(self, streams: Iterable[Stream], now: float) -> list[Stream]:
        """Raises the credit of the streams that want more, and returns those.

        The streams with the fewest steps accepted come first, so that actors of unequal speed are served alike. Credit that
        its actor has left unused for `IDLE_S` is granted once more, to another: nobody may starve a batch by holding on to
        a share of it. Should the idle actor use it after all, the batch after that begins with older data.
        """
        members = list(streams)
        unused = {id(s): max(0, s.credit_steps - s.accepted_steps) for s in members}
        idle = {id(s) for s in members if now - s.progress_at >= IDLE_S}
        free = self.limit_steps - self.delivered_steps - sum(n for key, n in unused.items() if key not in idle)
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
