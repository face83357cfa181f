"""The segment queue on disk, for actors with a spool. Other actors do not import this module, because it imports sqlite."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.actor.segment_queue import Outbox, QueuedSegmentInfo, SegmentQueue
from rl4sys_zmq.actor.spool import Spool
from rl4sys_zmq.wire import PackedSegment, pack_segment

__all__ = ["SpooledSegmentQueue"]

PUT_ITEMS = 32
"""The largest number of segments that go from memory into the spool in one transaction."""


class SpooledSegmentQueue(SegmentQueue):
    """The segment queue of an actor with a spool: segments go from the outbox (in memory) to disk before they are sent."""

    def __init__(self, outbox: Outbox, spool: Spool) -> None:
        super().__init__(outbox)
        self.spool: Spool = spool

    @property
    def items(self) -> int:
        """The number of segments in the spool and in the outbox that have not been sent."""
        return self.spool.untaken_items + len(self.outbox)

    @property
    def steps(self) -> int:
        """The number of steps of the segments that `items` counts."""
        return self.spool.untaken_steps + self.outbox.steps

    def peek(self) -> QueuedSegmentInfo | None:
        """Return the properties of the oldest segment in the spool that was not sent. Return None before `reconcile`."""
        return self.spool.peek() if self.spool.reconciled else None

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Return the oldest segments of the spool that were not sent. They stay on disk until `release`."""
        return self.spool.take(max_items, max_bytes)

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment in the spool that was not sent. Return False if the disk fails."""
        return self.spool.drop_head(1, reason) == 1

    def fill(self) -> bool:
        """Move up to `PUT_ITEMS` segments from the outbox into the spool. Return False if the outbox was empty."""
        batch: list[PackedSegment] = []
        self.in_hand = min(PUT_ITEMS, len(self.outbox))
        while len(batch) < self.in_hand and (segment := self.outbox.pop()) is not None:
            batch.append(pack_segment(segment))
        if batch:
            self.spool.put(batch)
        self.in_hand = 0
        return bool(batch)

    def release(self, durable: int) -> None:
        """Delete the segments with sequence numbers below `durable`. The learner has recorded them."""
        self.spool.release(durable)

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """Find out which segments of an earlier start the learner has received, as `Spool.reconcile` describes."""
        return self.spool.reconcile(received, durable)

    def tick(self) -> None:
        """Do the spool's work that has become due."""
        self.spool.tick()

    def next_deadline(self) -> float:
        """Return the monotonic time at which `tick` must be called, in seconds. Infinity if no work is due."""
        return self.spool.next_deadline()

    @property
    def submitted(self) -> int:
        """The number of segments that the host has finished, over all starts with this spool."""
        lost = sum(super().dropped.values())
        return self.spool.submitted + len(self.outbox) + lost

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped segments by reason: in the spool over all starts, and in the outbox since this start."""
        counts = self.spool.dropped
        for reason, count in super().dropped.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def close(self) -> None:
        """Close the spool. Its segments stay on disk for the next start."""
        while self.fill():
            pass
        self.spool.close()
