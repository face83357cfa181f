"""The credit pool, which divides the steps that one learner thread can use among its actors.

Credit is the total number of steps that an actor may have sent since the numbering of its segments began. Because it is a total
and not an increment, a lost or repeated ack does no harm. An actor requests credit up to `want_steps`. The pool grants what the
learner thread can use, and only to actors that request it. An actor below its limit may send a whole segment, so the last
segment can exceed the limit. The pool therefore counts the steps received, not the steps granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.delivery.transit import LearnerThreadBacklog
from rl4sys_zmq.wire.messages import Ack

__all__ = ["CREDIT_BYTES", "CREDIT_ITEMS", "IDLE_S", "QUEUE_ITEMS", "QUEUE_MESSAGES", "CreditAllocator"]

CREDIT_ITEMS = 4096
"""Number of segments that actors are allowed to have waiting for one learner thread. It includes the segments that the journal is
writing. With a quarter of it, one fast actor had to wait for credit."""

CREDIT_BYTES = 256 << 20
"""Size of the messages that actors are allowed to have waiting for one learner thread, in bytes."""

QUEUE_ITEMS = 8192
"""Hard limit on the number of segments that wait for one learner thread. The learner refuses messages beyond this limit. It is
higher than the credit, because each actor can exceed its credit by one segment."""

QUEUE_MESSAGES = QUEUE_ITEMS + 16
"""The length of the queue of messages to one learner thread. It has space for some messages without segments."""

NEWCOMER_ITEMS = 64
"""Largest number of segments that a new actor can send before the learner has accepted its first one."""

FIRST_REQUEST_DIVISOR = 64
"""A new actor gets credit for at most 1/`FIRST_REQUEST_DIVISOR` of the steps that the learner thread can still use, or for one
segment if that is more. The limit grows with the steps that the actor sends (`CreditAllocator.limit_request`)."""

IDLE_S = 1.0
"""The time in seconds after which unused credit (permission to send) of an actor is granted to another actor as well."""


class CreditAllocator:
    """The credit (permission to send steps) that one learner thread grants to its actors, from the thread's start to its end.

    Attributes:
        transit: The counts of the data between the gateway (the learner's network thread) and the learner thread.
        limit_steps: The total number of steps that the learner thread can use, counted from its start.
        min_version: The lowest policy version with which actors should start a segment.
    """

    def __init__(self) -> None:
        self.transit = LearnerThreadBacklog()
        self.limit_steps = 0
        self.min_version = 0

    @property
    def usable_steps(self) -> int:
        """The number of steps that the learner thread can use in addition to the steps that it has received."""
        return self.limit_steps - self.transit.taken.steps

    @property
    def free_steps(self) -> int:
        """The number of further steps that the learner thread can use, after those received, waiting or in transit to it."""
        return self.usable_steps - self.transit.steps

    def demand(self, usable_steps: int, messages: int, min_version: int) -> None:
        """Record a learner thread's report of how much data it can use, so that `grant` can let actors send more.

        `limit_steps` never decreases.

        Args:
            usable_steps: How many more steps the learner thread can use.
            messages: How many messages the learner thread has received since its start.
            min_version: The lowest policy version with which actors should start a segment.

        Raises:
            ProtocolError: If `messages` is more than the number of messages sent, or less than in an earlier report.
        """
        self.transit.take(messages)
        self.limit_steps = max(self.limit_steps, self.transit.taken.steps + usable_steps)
        self.min_version = max(self.min_version, min_version)

    def grant(self, streams: Iterable[SegmentStream], now: float) -> list[SegmentStream]:
        """Raise the credit (permission to send steps) of actors that request more. Return the streams of these actors.

        A stream is the learner's record of the segments of one actor.

        The streams with the fewest accepted steps come first, so that slow and fast actors get equal shares. Credit that an actor
        has not used for `IDLE_S` seconds is granted to another actor as well. Otherwise an idle actor could prevent a batch from
        filling. If the idle actor uses its credit later, the next batch starts with older data.
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
    def reclaim(stream: SegmentStream) -> None:
        """Take back the credit (permission to send steps) that a silent actor has not used, so that other actors can get it."""
        stream.credit_steps = min(stream.credit_steps, stream.accepted_steps)
        stream.want_steps = min(stream.want_steps, stream.accepted_steps)

    def shares(self, live: Sequence[SegmentStream], journal_bytes: int) -> tuple[int, int]:
        """Return the limits on the data that each actor can have in flight: a number of segments and a number of bytes.

        The free segments are divided by the number of actors that have sent data. So an actor that has joined but sends nothing
        does not reduce the limits of the others. The free bytes are divided by the number of all actors that can send.

        Args:
            live: The streams of the connected actors.
            journal_bytes: Free space of the journal (the record of accepted segments), in bytes.
        """
        senders = [s for s in live if s.submits]
        workers = sum(s.accepted_steps > 0 for s in senders)
        items = max(0, CREDIT_ITEMS - self.transit.items)
        free = max(0, min(CREDIT_BYTES - self.transit.nbytes, journal_bytes))
        if not items or not free:
            return 0, 0
        return max(1, items // max(1, workers)), max(1, free // max(1, len(senders)))

    def limit_request(self, stream: SegmentStream, want_steps: int, rollout_length: int) -> int:
        """Return the credit that an actor can request at present: `want_steps`, up to a limit that protects the other actors.

        Credit is the total number of steps that an actor is allowed to have sent. The limit is twice the number of steps that
        the actor has sent, plus the larger of one segment and 1/`FIRST_REQUEST_DIVISOR` of the free steps (the steps that the
        learner thread can still use).

        Args:
            stream: The record of the actor's segments.
            want_steps: The credit that the actor requests, in steps.
            rollout_length: The largest number of steps of a segment.
        """
        first = max(1, rollout_length, self.free_steps // FIRST_REQUEST_DIVISOR)
        return min(want_steps, 2 * stream.accepted_steps + first)

    def ack(self, stream: SegmentStream, generation: int, shares: tuple[int, int]) -> Ack:
        """Return the `Ack` message, which tells an actor the segments that were received and the data that it can still send.

        Args:
            stream: The record of the actor's segments.
            generation: The generation of the policy: the number of the learner thread.
            shares: The limits on segments and bytes in flight, as the method `shares` returns them.
        """
        items = shares[0] if stream.accepted_steps else min(shares[0], NEWCOMER_ITEMS)
        return stream.ack(generation=generation, free_items=items, free_bytes=shares[1], min_version=self.min_version)
