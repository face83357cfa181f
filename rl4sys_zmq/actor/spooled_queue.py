"""The segment queue over a spool. Imported only by actors that have one, because it imports sqlite."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.actor.segment_queue import Outbox, QueueHead, SegmentQueue
from rl4sys_zmq.actor.spool import Spool
from rl4sys_zmq.wire import PackedSegment, pack_segment

__all__ = ["SpooledSegmentQueue"]

PUT_ITEMS = 32
"""The largest number of segments that go into the spool in one transaction."""


class SpooledSegmentQueue(SegmentQueue):
    """A spool that is filled from the outbox, as a segment queue."""

    def __init__(self, outbox: Outbox, spool: Spool) -> None:
        super().__init__(outbox)
        self.spool: Spool = spool

    @property
    def items(self) -> int:
        """The number of segments without a number, in the spool and in the outbox."""
        return self.spool.untaken_items + len(self.outbox)

    @property
    def steps(self) -> int:
        """The steps of those segments."""
        return self.spool.untaken_steps + self.outbox.steps

    def peek(self) -> QueueHead | None:
        """Return the head of the oldest segment in the spool, or None before `reconcile`."""
        return self.spool.peek() if self.spool.reconciled else None

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Return the oldest segments of the spool, which keeps them until `release`."""
        return self.spool.take(max_items, max_bytes)

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment in the spool."""
        return self.spool.drop_head(1, reason) == 1

    def fill(self) -> bool:
        """Move some segments from the outbox into the spool."""
        batch: list[PackedSegment] = []
        self.in_hand = min(PUT_ITEMS, len(self.outbox))
        while len(batch) < self.in_hand and (segment := self.outbox.pop()) is not None:
            batch.append(pack_segment(segment))
        if batch:
            self.spool.put(batch)
        self.in_hand = 0
        return bool(batch)

    def release(self, durable: int) -> None:
        """Release the segments that the learner's journal has."""
        self.spool.release(durable)

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """Apply the learner's marks, as `Spool.reconcile` does."""
        return self.spool.reconcile(received, durable)

    def tick(self) -> None:
        """Do the spool's work that has become due."""
        self.spool.tick()

    def next_deadline(self) -> float:
        """Return the time at which the spool's next work is due."""
        return self.spool.next_deadline()

    @property
    def submitted(self) -> int:
        """The number of segments finished over all starts."""
        lost = sum(super().dropped.values())
        return self.spool.submitted + len(self.outbox) + lost

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments dropped in the spool over all starts, and before the spool in this start, by reason."""
        counts = self.spool.dropped
        for reason, count in super().dropped.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def close(self) -> None:
        """Close the spool. Its segments stay on disk for the next start."""
        while self.fill():
            pass
        self.spool.close()
