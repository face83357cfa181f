"""The queues of finished segments between host threads and the session, and the sending of segments in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rl4sys_zmq.actor.io.host_link import SessionParameters
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import Action, ActorSession
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment

if TYPE_CHECKING:
    from rl4sys_zmq.actor.io.spool import Spool


log = get_logger(__name__)


class Outbox:
    """A bounded FIFO of finished segments. Host threads call `put` under a common lock, the I/O thread calls `pop`.

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
        """Return the lowest policy version among the newest segments that have `steps` steps together; 0 if there are too few."""
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


@immutable
class QueuedSegmentInfo:
    """The properties of one queued segment that decide when it is sent or dropped."""

    generation: int
    oldest_version: int  # lowest policy version among the segment's steps
    steps: int
    nbytes: int  # size of the segment's columns, in bytes


class SegmentQueue(Resource):
    """A FIFO of finished segments that have not been sent. This class keeps them in memory, a subclass on disk.

    The I/O thread uses the queue. Other threads only read its properties.

    Attributes:
        in_hand: The number of segments that are moving from the outbox to the spool, or from the queue to the session. The
            number is set before a move and cleared after it. So a thread that reads `items`, then `in_hand`, then the session's
            count misses no segment.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.in_hand = 0

    @property
    def spool(self) -> Spool | None:
        """The queue itself if it is on disk."""
        return None

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
        """Remove and return the oldest segment, encoded for the message; None if no segment can be sent."""
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
        """Move some segments from the outbox to the spool. Return False if no segment was moved."""
        return False

    @property
    def submitted(self) -> int:
        """The number of segments that the host has finished; with a spool, over all starts of the actor."""
        return self.outbox.put_items

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments dropped before they were sent, by reason; with a spool, over all starts of the actor."""
        return {k: int(v) for k, v in self.outbox.dropped.snapshot().items() if k != "steps"}

    def close(self) -> None:
        """Close the spool, if there is one."""


MAX_BATCH_STEPS = 16_384
MAX_BATCH_ITEMS, MAX_BATCH_BYTES = 64, 1 << 20
"""The limits of one message, beyond its first ``send_frequency`` segments.

A message with one segment costs the learner nearly as much as a message with 16.
"""
MAX_BODY_FRAMES = 200
CREDIT_AHEAD_S = 0.5
"""The time after a message during which the actor requests credit in advance, to save a round trip each."""


class BatchSender:
    """The sender that passes segments from the queue to the session, in batches. The I/O thread uses it."""

    def __init__(
        self, config: AgentConfig, segment_queue: SegmentQueue, session: ActorSession, yield_to_host: Callable[[], None]
    ) -> None:
        self.session_parameters: SessionParameters | None = None  # in the last `Welcome`, None before the first
        self.first_version = 0  # newest policy version when this actor first joined the learner thread that now trains
        self._linger_s = config.linger_ms / 1000
        self._min_batch_items = max(1, config.send_frequency)
        self._prefers_new = config.overflow == "drop_oldest"
        self._evaluates = not config.explore
        self._segment_queue, self._session, self._yield_to_host = segment_queue, session, yield_to_host
        self._oldest_since: float | None = None
        self._shipped_at = float("-inf")
        self._shipped_steps = 0

    @property
    def next_deadline(self) -> float:
        """The monotonic time at which the oldest queued segment must be sent; infinity if none can be sent."""
        if self._oldest_since is None or not self._session.can_take():
            return float("inf")
        return self._oldest_since + self._linger_s

    @property
    def assigned_steps(self) -> int:
        """The number of steps that the host has finished and that are no longer queued: they were sent or dropped."""
        return self._segment_queue.outbox.put_steps - self._segment_queue.steps

    def send_due(self, now: float, held: tuple[int, int] | None, *, urgent: bool) -> Iterator[list[Action]]:
        """Pass queued segments to the session, if it is time. The caller carries out each yielded list of actions at once."""
        segment_queue, session = self._segment_queue, self._session
        if held is not None:
            self._drop_stale(*held)
        if not segment_queue.items:
            self._oldest_since = None
            return
        if self._oldest_since is None:
            self._oldest_since = now
        due = (
            urgent
            or segment_queue.items >= self._min_batch_items
            or now - self._oldest_since >= self._linger_s
            or session.sent_steps + segment_queue.steps >= session.credit_steps
        )
        shipped = 0
        while due and session.can_take():
            batch = self._take_batch()
            if not batch:
                break
            shipped += sum(packed.steps for packed in batch)
            actions = session.take(now, batch, ahead_steps=self._ahead(now, shipped))
            segment_queue.in_hand = 0
            yield actions
        if shipped:
            self._shipped_at, self._shipped_steps = now, shipped
        if not segment_queue.items:
            self._oldest_since = None

    def wanted_steps(self, now: float, asked_steps: int) -> int:
        """Return the total number of steps for which the actor needs credit: all steps sent so far, and the next ones."""
        need = max(self._segment_queue.steps, asked_steps - self.assigned_steps, self._ahead(now, self._shipped_steps))
        return self._session.sent_steps + need

    def _ahead(self, now: float, steps: int) -> int:
        return steps if now - self._shipped_at < CREDIT_AHEAD_S else 0

    def _take_batch(self) -> list[PackedSegment]:
        segment_queue = self._segment_queue
        batch: list[PackedSegment] = []
        steps = size = frames = 0
        limit = self.session_parameters.max_message_bytes if self.session_parameters is not None else 0
        while steps < MAX_BATCH_STEPS and frames < MAX_BODY_FRAMES and len(batch) < max(self._min_batch_items, MAX_BATCH_ITEMS):
            self._yield_to_host()
            head = segment_queue.peek()
            if head is None or (batch and (not self._session.has_room(len(batch), steps) or size + 2 * head.nbytes > limit)):
                break
            if len(batch) >= self._min_batch_items and size + head.nbytes > MAX_BATCH_BYTES:
                break
            if head.nbytes + ENTRY_BYTES > limit:
                if not segment_queue.drop("too_large"):
                    break
                continue
            segment_queue.in_hand = len(batch) + 1
            packed = segment_queue.take()
            if packed is None:
                segment_queue.in_hand = len(batch)
                break
            batch.append(packed)
            steps, size, frames = steps + packed.steps, size + packed.nbytes, frames + len(packed.large)
        return batch

    def _drop_stale(self, generation: int, version: int) -> None:
        """Drop segments of policy versions on which the learner would not train, or to which the credit does not apply."""
        segment_queue, session_parameters = self._segment_queue, self.session_parameters
        if (
            segment_queue.spool is not None
            or self._evaluates
            or session_parameters is None
            or session_parameters.max_policy_lag < 0
            or session_parameters.on_lag != "drop"
        ):
            return
        lowest = version - session_parameters.max_policy_lag
        room = self._session.credit_steps - self._session.sent_steps
        # A host that collects faster than the learner trains sends its newest segments.
        if self._prefers_new and room > 0 and not self._session.leaving:
            lowest = max(lowest, segment_queue.outbox.newest_version(room, generation))
        while (head := segment_queue.peek()) is not None:
            oldest = head.oldest_version
            if head.generation != generation:  # no newer than the first version of the current generation
                oldest = min(oldest, self.first_version)
            if oldest >= lowest or not segment_queue.drop("lag"):
                return
