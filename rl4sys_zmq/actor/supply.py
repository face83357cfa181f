"""What the I/O thread takes segments from: the outbox itself, or a spool that it fills from the outbox."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.spool import Spool
from rl4sys_zmq.actor.spool_file import SpoolHead
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment

__all__ = ["MemorySupply", "SpoolSupply", "Supply"]

PUT_ITEMS = 32
"""How many segments go into the spool in one transaction."""

ENTRY_BYTES = 65_536
"""What a segment's header may take in a message, generously."""


class Supply(Resource):
    """Segments that have no number yet, oldest first. Used in the I/O thread; the properties are read by others too."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox

    @property
    @abstractmethod
    def items(self) -> int:
        """How many wait."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Their steps."""

    @abstractmethod
    def peek(self) -> SpoolHead | None:
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
        """The learner's ledger has everything below this number."""

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


class MemorySupply(Supply):
    """The outbox, packed as it is taken."""

    @property
    def items(self) -> int:
        """How many wait."""
        return len(self.outbox)

    @property
    def steps(self) -> int:
        """Their steps."""
        return self.outbox.steps

    def peek(self) -> SpoolHead | None:
        """The oldest, which a host thread may be dropping at this moment."""
        segment = self.outbox.peek()
        if segment is None:
            return None
        return SpoolHead(segment.generation, int(segment.versions.min()), segment.steps, segment.nbytes, _large(segment))

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


class SpoolSupply(Supply):
    """The spool, in front of the outbox."""

    def __init__(self, outbox: Outbox, spool: Spool) -> None:
        super().__init__(outbox)
        self.spool = spool

    @property
    def items(self) -> int:
        """How many wait, here or there."""
        return self.spool.untaken_items + len(self.outbox)

    @property
    def steps(self) -> int:
        """Their steps."""
        return self.spool.untaken_steps + self.outbox.steps

    def peek(self) -> SpoolHead | None:
        """The oldest in the spool."""
        return self.spool.peek() if self.spool.reconciled else None

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """The oldest in the spool, which keeps them until `release`."""
        return self.spool.take(max_items, max_bytes)

    def drop(self, reason: str) -> bool:
        """Drops the oldest in the spool."""
        return self.spool.drop_head(1, reason) == 1

    def fill(self) -> bool:
        """Puts some of what the outbox holds into the spool."""
        batch: list[PackedSegment] = []
        while len(batch) < PUT_ITEMS and (segment := self.outbox.pop()) is not None:
            batch.append(pack_segment(segment))
        if batch:
            self.spool.put(batch)
        return bool(batch)

    def release(self, durable: int) -> None:
        """Forgets what the learner has."""
        self.spool.release(durable)

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """See `Spool.reconcile`."""
        return self.spool.reconcile(received, durable)

    def tick(self) -> None:
        """Late deletions, drops by age, another try of the disk."""
        self.spool.tick()

    def next_deadline(self) -> float:
        """When the spool has something to do."""
        return self.spool.next_deadline()

    @property
    def submitted(self) -> int:
        """Over all starts."""
        lost = sum(super().dropped.values())
        return self.spool.submitted + len(self.outbox) + lost

    @property
    def dropped(self) -> dict[str, int]:
        """Over all starts in the spool; those before it, in this one."""
        counts = self.spool.dropped
        for reason, count in super().dropped.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def close(self) -> None:
        """Closes the spool; a learner gets the rest another time."""
        while self.fill():
            pass
        self.spool.close()


def _large(segment: Segment) -> int:
    """How many of its columns need a frame of their own, at most."""
    return 6 if segment.nbytes >= ENTRY_BYTES else 0
