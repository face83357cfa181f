"""The queues of finished segments, from host threads to the I/O thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment

if TYPE_CHECKING:
    from rl4sys_zmq.actor.io.spool import Spool

log = get_logger(__name__)


class Outbox:
    """A bounded FIFO of finished segments. Host threads `put` under a lock of theirs, the I/O thread calls `pop`.

    Both are single operations on a deque, so neither side waits for the other. If the queue is full, the oldest segment is
    dropped and counted. With ``overflow: wait`` nothing is dropped: the learner's credit limits the length of the queue.
    """

    def __init__(self, max_items: int, max_bytes: int, *, drops: bool) -> None:
        self.dropped = Counters()  # number of dropped segments by reason, and under `steps` the number of their steps
        self.put_items = 0
        self.put_steps = 0
        self._max_items, self._max_bytes = max_items, max_bytes
        self._drops = drops
        self._items: deque[Segment] = deque()
        self._bytes_in = self._bytes_popped = self._bytes_dropped = 0
        self.popped_steps = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def nbytes(self) -> int:
        return self._bytes_in - self._bytes_popped - self._bytes_dropped

    @property
    def steps(self) -> int:
        return self.put_steps - self.popped_steps - self.dropped.get("steps")

    def put(self, segment: Segment) -> None:
        """Add a segment. If the queue is then too long, drop the oldest segments."""
        steps, nbytes = segment.steps, segment.nbytes  # a signal handler can run, and raise, in these calls and not below
        self.put_items += 1
        self.put_steps += steps
        self._bytes_in += nbytes
        self._items.append(segment)
        while self._drops and (len(self._items) > self._max_items or self.nbytes > self._max_bytes) and len(self._items) > 1:
            try:
                oldest = self._items.popleft()
            except IndexError:
                return
            self._bytes_dropped += oldest.nbytes
            self.dropped.add("overflow")
            self.dropped.add("steps", oldest.steps)

    def pop(self) -> Segment | None:
        try:
            segment = self._items.popleft()
        except IndexError:
            return None
        self._bytes_popped += segment.nbytes
        self.popped_steps += segment.steps
        return segment

    def peek(self) -> Segment | None:
        """Return the oldest segment, None if the queue is empty. A host thread can drop it at the same time."""
        try:
            return self._items[0]
        except IndexError:
            return None

    def newest_version(self, steps: int, generation: int) -> int:
        """Return the lowest policy version among the newest segments that together have `steps` steps, or 0."""
        lowest = None
        for segment in reversed(self._items.copy()):
            if segment.generation != generation:
                break
            oldest = int(segment.versions.min())
            lowest = oldest if lowest is None else min(lowest, oldest)
            steps -= segment.steps
            if steps <= 0:
                return lowest
        return 0


ENTRY_BYTES = 65_536
"""An upper limit on the size of a segment's header in a message, in bytes."""


@dataclass(frozen=True, slots=True)
class QueuedSegmentInfo:
    """The properties of one queued segment that decide when it is sent or dropped."""

    generation: int
    oldest_version: int  # lowest policy version among the segment's steps
    steps: int
    nbytes: int  # size of the segment's columns, in bytes


class SegmentQueue(Resource):
    """A FIFO of finished segments that have not been sent: in memory, or in the subclass on disk.

    The I/O thread uses it. Other threads read only the properties.

    Attributes:
        in_hand: The number of segments that are moving from the outbox to the spool, or from the queue to the session. The
            number is set before they leave the first place, and cleared once they are in the second. So a thread that reads
            `items`, then `in_hand`, then the session's count misses no segment.
    """

    spool: Spool | None = None

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.in_hand = 0

    @property
    def items(self) -> int:
        return len(self.outbox)

    @property
    def steps(self) -> int:
        return self.outbox.steps

    def peek(self) -> QueuedSegmentInfo | None:
        """Return the properties of the segment that `take` returns next, or None if there is none."""
        segment = self.outbox.peek()
        if segment is None:
            return None
        return QueuedSegmentInfo(segment.generation, int(segment.versions.min()), segment.steps, segment.nbytes)

    def take(self) -> PackedSegment | None:
        """Remove and return the oldest segment, encoded for the message; None if there is none that can be sent."""
        segment = self.outbox.pop()
        return self._packed(segment) if segment is not None else None

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment and count it as dropped for `reason`. Return False if the disk fails."""
        if self.outbox.pop() is not None:
            self.outbox.dropped.add(reason)
        return True

    def _packed(self, segment: Segment) -> PackedSegment | None:
        """Return a segment encoded for the message. If that fails, count it as dropped and return None."""
        try:
            return pack_segment(segment)
        except (ProtocolError, TypeError, ValueError):
            if not self.outbox.dropped.get("not_encodable"):
                log.exception("a segment of %d steps can't be encoded, and is dropped", segment.steps)
            self.outbox.dropped.add("not_encodable")
            return None

    def fill(self) -> bool:
        """Move some segments from the outbox to the spool. Return False if there are none."""
        return False

    @property
    def submitted(self) -> int:
        """The number of segments that the host has finished; of a spool, over all starts."""
        return self.outbox.put_items

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments dropped before they were sent, by reason; of a spool, over all starts."""
        return {k: int(v) for k, v in self.outbox.dropped.snapshot().items() if k != "steps"}

    def close(self) -> None:
        """Close the spool, if there is one."""
