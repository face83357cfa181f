"""The queues of finished segments (runs of steps), from the threads of the host program to the thread that sends them.

Host threads put segments into the `Outbox`, a bounded queue in memory. The I/O thread takes them from a `SegmentQueue`: either
`MemorySegmentQueue`, which reads the outbox directly, or `SpooledSegmentQueue`, which first moves them to disk (the spool).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
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
    """A bounded FIFO of finished segments (runs of steps), from the host's threads to the I/O thread, which sends them.

    Host threads call `put` under a lock of theirs, and the I/O thread calls `pop`. Both are single operations on a deque, so
    neither side waits for the other. If the queue is full, the oldest segment is dropped and counted. With ``overflow: wait``
    nothing is dropped: the learner's permission to send (credit) limits the length of the queue.

    Attributes:
        dropped: The number of dropped segments by reason, and under ``steps`` the number of their steps.
        put_items: The number of segments added since the start.
        put_steps: The number of steps added since the start.
        popped_steps: The number of steps removed by `pop` since the start.
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
        """The size of all segments (runs of steps) in the queue, in bytes."""
        return self._bytes_in - self._bytes_popped - self._bytes_dropped

    @property
    def steps(self) -> int:
        """The number of steps of all segments (runs of steps) in the queue."""
        return self.put_steps - self.popped_steps - self.dropped.get("steps")

    def put(self, segment: Segment) -> None:
        """Add a segment (run of steps). If the queue is then too long, drop the oldest segments. Called by host threads."""
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
        """Remove and return the oldest segment (run of steps). Return None if the queue is empty. Called by the I/O thread."""
        try:
            segment = self._items.popleft()
        except IndexError:
            return None
        self._bytes_popped += segment.nbytes
        self.popped_steps += segment.steps
        return segment

    def peek(self) -> Segment | None:
        """Return the oldest segment (run of steps) without removing it, or None if the queue is empty.

        A host thread can drop that segment at the same time.
        """
        try:
            return self._items[0]
        except IndexError:
            return None

    def newest_version(self, steps: int, generation: int) -> int:
        """Return the lowest policy version among the newest segments (runs of steps) that together have at least `steps` steps.

        If only `steps` more steps can be sent, segments with lower versions are not worth sending. Return 0 if the queue does
        not have so many steps of the policy's `generation` (number of a learner thread).
        """
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
    """The properties of one queued segment (run of steps) that decide when it is sent or dropped.

    Attributes:
        generation: The generation of the policy that acted: the number of the learner thread that published the policy.
        oldest_version: The lowest policy version among the segment's steps.
        steps: The number of steps.
        nbytes: The size of the segment's columns, in bytes.
    """

    generation: int
    oldest_version: int
    steps: int
    nbytes: int


class SegmentQueue(Resource):
    """The interface of a FIFO of finished segments (runs of steps) that have not been sent. It is in memory or on disk.

    The I/O thread uses it. Other threads read only the properties.

    Attributes:
        outbox: The queue in memory into which host threads put segments.
        spool: The segments on disk, None for a queue in memory.
        in_hand: The number of segments that are moving from the outbox to the spool, or from the queue to the session. The
            number is set before they leave the first place, and cleared once they are in the second. So a thread that reads
            `items`, then `in_hand`, then the session's count misses no segment.
    """

    spool: Spool | None = None

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.in_hand = 0

    @property
    @abstractmethod
    def items(self) -> int:
        """The number of queued segments (runs of steps)."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of steps of the queued segments (runs of steps)."""

    @abstractmethod
    def peek(self) -> QueuedSegmentInfo | None:
        """Return the properties of the segment (run of steps) that `take` returns next, or None if there is none."""

    @abstractmethod
    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Remove and return the oldest segments (runs of steps), for the session to send.

        Args:
            max_items: The largest number of segments.
            max_bytes: The largest size of all segments together, in bytes. The first segment can exceed it.

        Returns:
            The segments. A segment that cannot be encoded is dropped and counted, and ends the list early.
        """

    @abstractmethod
    def drop(self, reason: str) -> bool:
        """Drop the oldest segment (run of steps) and count it as dropped for `reason`. Return False if the disk fails."""

    def _packed(self, segment: Segment) -> PackedSegment | None:
        """Return a segment (run of steps) encoded for the message. If that fails, count it as dropped and return None."""
        try:
            return pack_segment(segment)
        except (ProtocolError, TypeError, ValueError):
            if not self.outbox.dropped.get("not_encodable"):
                log.exception("a segment of %d steps can't be encoded, and is dropped", segment.steps)
            self.outbox.dropped.add("not_encodable")
            return None

    def fill(self) -> bool:
        """Move some segments (runs of steps) from memory (the outbox) to disk (the spool).

        Return False if the outbox is empty or there is no spool.
        """
        return False

    def release(self, durable: int) -> None:
        """Delete segments (runs of steps) that the learner has recorded from disk: those with numbers below `durable`."""

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """Find out which segments (runs of steps) of an earlier start the learner has received. Delete those it has recorded.

        Args:
            received: The next sequence number that the learner expects.
            durable: The learner has recorded all segments with lower numbers than this. They are deleted.

        Returns:
            The segments that the learner has received but not recorded, for the session to keep. None without a spool, or while
            the disk fails.
        """
        return None

    def tick(self) -> None:
        """Do the work on disk whose time has come, such as deletions that were delayed."""

    def next_deadline(self) -> float:
        """Return the monotonic time at which `tick` must be called, in seconds. Infinity if no work is due."""
        return float("inf")

    @property
    def submitted(self) -> int:
        """The number of segments (runs of steps) that the host has finished; of a queue on disk, over all starts."""
        return self.outbox.put_items

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments (runs of steps) dropped before they were sent, by reason."""
        return {k: int(v) for k, v in self.outbox.dropped.snapshot().items() if k != "steps"}

    def close(self) -> None:
        """Close the file of a queue on disk (spool). A queue in memory has nothing to close."""


class MemorySegmentQueue(SegmentQueue):
    """The queue of finished segments (runs of steps) of an actor that stores none on disk.

    It reads the outbox (the queue that host threads fill), and encodes each segment when it is taken.
    """

    @property
    def items(self) -> int:
        """The number of queued segments (runs of steps)."""
        return len(self.outbox)

    @property
    def steps(self) -> int:
        """The number of steps of the queued segments (runs of steps)."""
        return self.outbox.steps

    def peek(self) -> QueuedSegmentInfo | None:
        """Return the properties of the oldest segment (run of steps), or None if there is none.

        A host thread can drop that segment at the same time.
        """
        segment = self.outbox.peek()
        if segment is None:
            return None
        return QueuedSegmentInfo(segment.generation, int(segment.versions.min()), segment.steps, segment.nbytes)

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Remove the oldest segments (runs of steps), and return them encoded for the message."""
        out: list[PackedSegment] = []
        size = 0
        while len(out) < max_items:
            head = self.outbox.peek()
            if head is None or (out and size + head.nbytes > max_bytes):
                break
            segment = self.outbox.pop()
            if segment is None:
                break
            packed = self._packed(segment)
            if packed is None:
                break  # the caller has not seen the size of the next segment
            out.append(packed)
            size += segment.nbytes
        return out

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment (run of steps), if there is one. Return True."""
        if self.outbox.pop() is not None:
            self.outbox.dropped.add(reason)
        return True
