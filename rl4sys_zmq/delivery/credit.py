"""The credit that one learner thread grants to its actors, and the detection of clients that are stalled in spite of it.

Credit is the total number of steps since a stream began, not an increment, so a lost or repeated `Ack` does no harm. An actor
that has used less than its credit may send a whole segment, so the last segment can exceed the credit. The allocator therefore
counts the steps received, not the steps granted.

`LearnerThreadBacklog` counts the accepted data on the way to the learner thread. Data is *waiting* from its acceptance until the
gateway sends it, and then *in transit* until the learner thread reports that it has received the message. Each amount is added
and later subtracted unchanged, so that the counts stay exact.

A client is stalled if its learner thread can use data, its actors request credit, but no data moves. This is a fault of this
library, never of the network: after a lost message, the actor still has credit, or sends it again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.wire.messages import Ack


@dataclass(slots=True)
class DataAmount:
    """The size of some data: numbers of steps, segments and bytes."""

    steps: int = 0  # number of environment steps, without the steps of refused segments
    items: int = 0  # number of segments, without refused segments
    nbytes: int = 0  # size of the whole messages, in bytes

    def add(self, other: DataAmount) -> None:
        self.steps += other.steps
        self.items += other.items
        self.nbytes += other.nbytes

    def subtract(self, other: DataAmount) -> None:
        self.steps -= other.steps
        self.items -= other.items
        self.nbytes -= other.nbytes

    def __bool__(self) -> bool:
        return bool(self.steps or self.items or self.nbytes)

    def __str__(self) -> str:
        return f"{self.steps} steps in {self.items} segments of {self.nbytes} bytes"


class LearnerThreadBacklog:
    """The counts of the accepted data that one learner thread has not received so far.

    Data waits until the gateway sends it to the thread; then it is in transit.
    """

    def __init__(self) -> None:
        self.waiting = DataAmount()  # accepted, but not sent so far, because the journal must commit it first
        self.in_transit = DataAmount()  # sent, but not reported as received so far
        self.taken = DataAmount()  # received by the learner thread since its start
        self.messages = 0  # number of messages that the learner thread has received since its start
        self._queue: deque[DataAmount] = deque()

    @property
    def steps(self) -> int:
        """The number of steps that wait or are in transit."""
        return self.waiting.steps + self.in_transit.steps

    @property
    def items(self) -> int:
        """The number of segments that wait or are in transit."""
        return self.waiting.items + self.in_transit.items

    @property
    def nbytes(self) -> int:
        """The number of bytes that wait or are in transit."""
        return self.waiting.nbytes + self.in_transit.nbytes

    @property
    def messages_on_way(self) -> int:
        return len(self._queue)

    def accept(self, load: DataAmount) -> None:
        """Count accepted data as waiting."""
        self.waiting.add(load)

    def send(self, load: DataAmount, *, waited: bool) -> None:
        """Count one message sent to the learner thread. `waited` is False for data that `accept` did not count."""
        if waited:
            self.waiting.subtract(load)
        self.in_transit.add(load)
        self._queue.append(load)

    def take(self, messages: int) -> None:
        """Record the learner thread's report that it has received `messages` messages since its start.

        Raises:
            ProtocolError: If the number is more than the number of messages sent, or less than in an earlier report.
        """
        fresh = messages - self.messages
        if not 0 <= fresh <= len(self._queue):
            problem = f"{messages} messages reported as received; {self.messages} were before, {len(self._queue)} are on the way"
            raise ProtocolError(RefusalReason.RANGE, problem)
        for _ in range(fresh):
            load = self._queue.popleft()
            self.in_transit.subtract(load)
            self.taken.add(load)
        self.messages = messages

    def correct_waiting(self) -> DataAmount | None:
        """Set the count of waiting data to zero. Return the wrong count, or None if it was zero.

        A wrong count would reduce the actors' credit forever. Call this only while the journal has nothing to commit or to
        deliver again: then no data waits.
        """
        if not self.waiting:
            return None
        wrong, self.waiting = self.waiting, DataAmount()
        return wrong


# Segments that actors may have waiting for one learner thread, those included that the journal is writing. With a quarter of
# it, one fast actor had to wait for credit.
CREDIT_ITEMS = 4096

# The same for the size of their messages.
CREDIT_BYTES = 256 << 20

# Hard limit on the segments that wait for one learner thread; messages beyond it are refused. It is higher than the credit,
# because each actor can exceed its credit by one segment.
QUEUE_ITEMS = 8192

# Space for some messages without segments.
QUEUE_MESSAGES = QUEUE_ITEMS + 16

# Segments that a new actor can send before the learner has accepted its first one.
NEWCOMER_ITEMS = 64

# A new actor gets credit for at most this part of the steps that the learner thread can still use, or for one segment if that
# is more. The limit grows with the actor's rate (`CreditAllocator.limit_request`).
FIRST_REQUEST_DIVISOR = 64

# In addition to one segment, an actor can hold credit for the steps that it delivers in this time.
AHEAD_S = 1.0

# Limits of the times for which one actor leaves credit to another one: the shortest pace that is compared, the least delay
# after which a due delivery counts as late, and the time after which any delivery does. Delays of the network and of the
# system are often longer than the interval between two messages of a fast actor.
MIN_PACE_S, LATE_S, IDLE_S = 5e-3, 0.05, 1.0

# Time after which the allocator looks again if an actor has no credit because others have it.
RETRY_S = 5e-3


class CreditAllocator:
    """The object that divides the steps that one learner thread can use among its client's actors, as credit."""

    def __init__(self) -> None:
        self.retry_at = math.inf  # call `grant` again at this time even without news
        self.transit = LearnerThreadBacklog()
        self.limit_steps = 0  # the steps that the learner thread can use, counted from its start. It never decreases.
        self.grants = 0
        self.min_version = 0  # the lowest policy version with which actors should start a segment

    @property
    def usable_steps(self) -> int:
        """The number of steps that the learner thread can use beyond those that it has received."""
        return self.limit_steps - self.transit.taken.steps

    @property
    def free_steps(self) -> int:
        """The number of steps that the learner thread can use beyond those received, waiting or in transit to it."""
        return self.usable_steps - self.transit.steps

    def demand(self, usable_steps: int, messages: int, min_version: int) -> None:
        """Record a learner thread's report: the steps that it can still use, and the messages received since its start.

        `min_version` is the lowest policy version with which actors should start a segment.
        """
        self.transit.take(messages)
        self.limit_steps = max(self.limit_steps, self.transit.taken.steps + usable_steps)
        self.min_version = max(self.min_version, min_version)

    def grant(self, streams: Iterable[SegmentStream], now: float) -> list[SegmentStream]:
        """Raise the credit of actors that request more, and return their streams. Set `retry_at`, the time of the next attempt.

        The actor that has waited longest comes first. An actor gets an equal share, and at least one segment, of the free
        steps, less those that other actors are expected to deliver first (`_set_aside`).
        """
        self.retry_at = math.inf
        free = self.free_steps
        if free < 1:
            return []
        members = list(streams)
        wanting = [s for s in members if s.want_steps > max(s.credit_steps, s.accepted_steps)]
        wanting.sort(key=lambda s: (s.ready_at, s.accepted_steps))
        credited = [s for s in members if s.credit_steps > s.accepted_steps]
        set_aside: dict[float, float] = {}
        granted = []
        for position, stream in enumerate(wanting):
            pace_s = 2.0 ** math.ceil(math.log2(max(stream.pace_s, MIN_PACE_S)))  # few values, each of which is summed up once
            if pace_s not in set_aside:
                set_aside[pace_s] = self._set_aside(members, credited, pace_s, now)
            unused = stream.unused_steps
            if not unused and free - set_aside[pace_s] < 1:
                self.retry_at = now + RETRY_S
                continue
            others = max(0.0, set_aside[pace_s] - _expected_steps(stream, pace_s, now))
            room = int(free - others - unused)
            share = max(room // (len(wanting) - position), math.ceil(stream.accepted_steps / max(1, stream.received)), 1)
            share = min(share, room, stream.want_steps - stream.accepted_steps - unused)
            if share < 1:
                continue
            if not unused:
                credited.append(stream)
            before = {pace: _expected_steps(stream, pace, now) for pace in set_aside}
            if not unused and stream.accepted_steps > stream.ready_steps:
                stream.ready_at, stream.ready_steps = now, stream.accepted_steps
            stream.credit_steps = stream.accepted_steps + unused + share
            for pace, steps in before.items():
                set_aside[pace] += _expected_steps(stream, pace, now) - steps
            granted.append(stream)
        self.grants += len(granted)
        return granted

    def _set_aside(self, streams: Sequence[SegmentStream], credited: Sequence[SegmentStream], pace_s: float, now: float) -> float:
        """Return how many free steps the actors in `credited` will use before an actor that delivers after `pace_s` seconds.

        The result is 0 if faster actors use all free steps in that time.
        """
        # These are the steps that actors of about the same pace or a faster one can deliver, unless they are late. An actor
        # never waits for a slower one. If faster actors fill the batch before the actor can deliver, its steps belong to a
        # later batch, and it leaves nothing.
        faster = sum(s.rate for s in streams if 4 * s.pace_s < pace_s and now - s.ready_at < IDLE_S)
        if faster * pace_s >= self.free_steps:
            return 0.0
        return sum(_expected_steps(stream, pace_s, now) for stream in credited)

    @staticmethod
    def reclaim(stream: SegmentStream) -> None:
        """Take back the credit that a silent actor has not used, so that other actors can get it."""
        stream.credit_steps = min(stream.credit_steps, stream.accepted_steps)
        stream.want_steps = min(stream.want_steps, stream.accepted_steps)

    def shares(self, live: Sequence[SegmentStream], journal_bytes: int) -> tuple[int, int]:
        """Return the limits on the data that each actor can have in flight: a number of segments and a number of bytes.

        The number of segments is the free part of `CREDIT_ITEMS`, divided by the number of actors that have sent data. So an
        actor that sends nothing takes nothing from the others. The number of bytes is the free part of `CREDIT_BYTES`, or
        `journal_bytes` (the free bytes of the journal) if that is less, divided by the number of all actors that can send.
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

        The limit is the number of steps that the actor has sent, those that it delivers in `AHEAD_S` seconds, and the larger
        of one segment (`rollout_length` steps) and 1/`FIRST_REQUEST_DIVISOR` of the steps that the learner thread can still
        use. Credit that was granted stays: the actor may have used it already.
        """
        first = max(1, rollout_length, self.free_steps // FIRST_REQUEST_DIVISOR)
        delivered = stream.rate * AHEAD_S if stream.accepted_steps else 0
        return min(want_steps, max(stream.credit_steps, stream.accepted_steps + first + int(delivered)))

    def ack(self, stream: SegmentStream, generation: int, shares: tuple[int, int]) -> Ack:
        """Return the `Ack` message for the actor of a stream, with the limits that `shares` has returned."""
        items = shares[0] if stream.accepted_steps else min(shares[0], NEWCOMER_ITEMS)
        return stream.ack(generation=generation, free_items=items, free_bytes=shares[1], min_version=self.min_version)


def _expected_steps(stream: SegmentStream, pace_s: float, now: float) -> float:
    """Return how many steps a stream is expected to deliver before an actor that delivers after `pace_s` seconds."""
    late_s = min(stream.pace_s + max(2 * pace_s, LATE_S), IDLE_S)
    if not stream.useful or stream.pace_s > 2 * pace_s or now - stream.ready_at > late_s:
        return 0.0
    return min(stream.unused_steps, 2 * stream.burst_steps)


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
        """Return for how many seconds the client has been stalled; 0 if it is not.

        Args:
            now: The present time, in seconds.
            progress: A value that differs from that of the last call if data has moved since then.
            reason: The result of `stall_reason`; empty if the client can make progress.
        """
        if not reason or progress != self._progress:
            self._progress, self._since = progress if reason else None, now
        return now - self._since
