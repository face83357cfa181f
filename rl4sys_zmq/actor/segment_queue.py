"""What the I/O thread takes segments from: the outbox itself here, or a spool that it fills from the outbox (`spool_supply`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment

if TYPE_CHECKING:
    from rl4sys_zmq.actor.spool import Spool

__all__ = ["ENTRY_BYTES", "QueueHead", "MemorySegmentQueue", "SegmentQueue"]

ENTRY_BYTES = 65_536
"""What a segment's header may take in a message, generously."""


@dataclass(frozen=True, slots=True)
class QueueHead:
    """What sending and dropping must know of the oldest segment that is not taken.

    Attributes:
        generation: of the policy that acted.
        oldest_version: the least version among its steps.
        steps: how many decisions it holds.
        nbytes: the bytes of its columns.
        frames: how many frames of its own it needs.
    """

    generation: int
    oldest_version: int
    steps: int
    nbytes: int
    frames: int


class SegmentQueue(Resource):
    """Segments that have no number yet, oldest first. Used in the I/O thread; the properties are read by others too.

    Attributes:
        spool: where they are kept, None for in memory.
        in_hand: segments that have left one queue and may not be in the next one yet, or in the session. Raised before the one,
            cleared after the other: who reads `items`, then this, then the session, sees each segment somewhere.
    """

    spool: Spool | None = None

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.in_hand = 0

    @property
    @abstractmethod
    def items(self) -> int:
        """How many wait."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Their steps."""

    @abstractmethod
    def peek(self) -> QueueHead | None:
        """What to know of the oldest that can be taken."""

    @abstractmethod
    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """The oldest ones, which are then the session's to keep; the first whatever its size."""

    @abstractmethod
    def drop(self, reason: str) -> bool:
        """Drops the oldest, counted as `reason`; False when that is impossible now."""

    def fill(self) -> bool:
        """Takes over some of what host threads have left; False when nothing is left there."""
        return False

    def release(self, durable: int) -> None:
        """The learner's journal has everything below this number."""

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """What was kept from an earlier start and goes to the session, in the light of the learner's marks; None without such."""
        return None

    def tick(self) -> None:
        """Does what the clock asks for."""

    def next_deadline(self) -> float:
        """When `tick` wants to be called, monotonic; infinity for never."""
        return float("inf")

    @property
    def submitted(self) -> int:
        """Segments finished by the host, over all starts of a spool."""
        return self.outbox.put_items

    @property
    def dropped(self) -> dict[str, int]:
        """How many of them were dropped here, by reason."""
        return {k: int(v) for k, v in self.outbox.dropped.snapshot().items() if k != "steps"}

    def close(self) -> None:
        """Lets go of what it holds."""


class MemorySegmentQueue(SegmentQueue):
    """The outbox, packed as it is taken."""

    @property
    def items(self) -> int:
        """How many wait."""
        return len(self.outbox)

    @property
    def steps(self) -> int:
        """Their steps."""
        return self.outbox.steps

    def peek(self) -> QueueHead | None:
        """The oldest, which a host thread may be dropping at this moment."""
        segment = self.outbox.peek()
        if segment is None:
            return None
        return QueueHead(segment.generation, int(segment.versions.min()), segment.steps, segment.nbytes, _large(segment))

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Packs the oldest ones."""
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
        """Drops the oldest."""
        if self.outbox.pop() is not None:
            self.outbox.dropped.add(reason)
        return True


def _large(segment: Segment) -> int:
    """How many of its columns need a frame of their own, at most."""
    return 6 if segment.nbytes >= ENTRY_BYTES else 0
