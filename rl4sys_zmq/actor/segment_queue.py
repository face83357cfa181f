"""The queue from which the I/O thread takes segments.

`MemorySegmentQueue` is the outbox itself; `spooled_queue` has the queue over a spool, which it fills from the outbox.

`Outbox` is the bounded queue between host threads and the I/O thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment

if TYPE_CHECKING:
    from rl4sys_zmq.actor.spool import Spool

__all__ = ["ENTRY_BYTES", "MemorySegmentQueue", "Outbox", "QueueHead", "SegmentQueue"]


class Outbox:
    """A bounded FIFO of finished segments.

    Host threads call `put` under their own lock; the I/O thread calls `pop`. Both are single operations on a deque, so neither
    waits for the other. Beyond the bounds the oldest segment is dropped and counted, unless the actor is configured to wait for
    credit, which bounds the queue by itself.
    """

    def __init__(self, max_items: int, max_bytes: int, *, drops: bool) -> None:
        self.dropped = Counters()
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
        """The bytes of all segments in the queue."""
        return self._bytes_in - self._bytes_popped - self._bytes_dropped

    @property
    def steps(self) -> int:
        """The steps of all segments in the queue."""
        return self.put_steps - self.popped_steps - self.dropped.get("steps")

    def put(self, segment: Segment) -> None:
        """Add a segment, and drop the oldest ones beyond the bounds. Called by host threads."""
        self.put_items += 1
        self.put_steps += segment.steps
        self._bytes_in += segment.nbytes
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
        """Remove and return the oldest segment, or None. Called by the I/O thread."""
        try:
            segment = self._items.popleft()
        except IndexError:
            return None
        self._bytes_popped += segment.nbytes
        self.popped_steps += segment.steps
        return segment

    def peek(self) -> Segment | None:
        """Return the oldest segment, or None. A host thread can drop it at the same time."""
        try:
            return self._items[0]
        except IndexError:
            return None


ENTRY_BYTES = 65_536
"""A generous bound on the bytes of a segment's header in a message."""


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The properties of the oldest segment that sending and dropping need.

    Attributes:
        generation: The generation of the policy that acted: the number of the learner thread that published it.
        oldest_version: The lowest version among its steps.
        nbytes: The bytes of its columns.
        frames: The number of separate frames that it needs.
    """

    generation: int
    oldest_version: int
    steps: int
    nbytes: int
    frames: int


class SegmentQueue(Resource):
    """A FIFO of segments without a sequence number. Used in the I/O thread; other threads read only the properties.

    Attributes:
        spool: The spool that keeps the segments, None for a queue in memory.
        in_hand: The number of segments that are moving from one queue to the next, or to the session. It is raised before
            they leave the first and cleared once they are in the second. A thread that reads `items`, then this, then the
            session, misses no segment.
    """

    spool: Spool | None = None

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.in_hand = 0

    @property
    @abstractmethod
    def items(self) -> int:
        """The number of queued segments."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The steps of the queued segments."""

    @abstractmethod
    def peek(self) -> QueueHead | None:
        """Return the head of the oldest segment that can be taken."""

    @abstractmethod
    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Return the oldest segments, which the session keeps from then on. The first can exceed `max_bytes`."""

    @abstractmethod
    def drop(self, reason: str) -> bool:
        """Drop the oldest segment and count it as `reason`. Return False if that is impossible now."""

    def fill(self) -> bool:
        """Move some segments from the outbox into the spool. Return False if the outbox is empty."""
        return False

    def release(self, durable: int) -> None:
        """Release the segments below this number, which the learner's journal has."""

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """Apply the learner's marks to the segments of an earlier start, and return those for the session.

        Without a spool, and while its disk cannot be used, return None.
        """
        return None

    def tick(self) -> None:
        """Do the work that has become due."""

    def next_deadline(self) -> float:
        """Return the monotonic time at which `tick` must be called, infinity for never."""
        return float("inf")

    @property
    def submitted(self) -> int:
        """The number of segments that the host has finished, over all starts of a spool."""
        return self.outbox.put_items

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments dropped in this queue, by reason."""
        return {k: int(v) for k, v in self.outbox.dropped.snapshot().items() if k != "steps"}

    def close(self) -> None:
        """Close the spool, if there is one."""


class MemorySegmentQueue(SegmentQueue):
    """The outbox as a queue. Segments are packed as they are taken."""

    @property
    def items(self) -> int:
        """The number of queued segments."""
        return len(self.outbox)

    @property
    def steps(self) -> int:
        """The steps of the queued segments."""
        return self.outbox.steps

    def peek(self) -> QueueHead | None:
        """Return the head of the oldest segment, which a host thread can drop at the same time."""
        segment = self.outbox.peek()
        if segment is None:
            return None
        return QueueHead(segment.generation, int(segment.versions.min()), segment.steps, segment.nbytes, _large(segment))

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Pack and return the oldest segments."""
        out: list[PackedSegment] = []
        size = 0
        while len(out) < max_items:
            head = self.outbox.peek()
            if head is None or (out and size + head.nbytes > max_bytes):
                break
            segment = self.outbox.pop()
            if segment is None:
                break
            out.append(pack_segment(segment))
            size += segment.nbytes
        return out

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment."""
        if self.outbox.pop() is not None:
            self.outbox.dropped.add(reason)
        return True


def _large(segment: Segment) -> int:
    """Return an upper bound on how many of the segment's columns need a separate frame."""
    columns = 5 + len(segment.observation_leaves) + len(segment.extras) + len(segment.initial)
    return columns if segment.nbytes >= ENTRY_BYTES else 0
