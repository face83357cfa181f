"""A spool as the I/O thread's supply. Loaded by those that have one: it brings sqlite."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.segment_queue import QueueHead, SegmentQueue
from rl4sys_zmq.actor.spool import Spool
from rl4sys_zmq.wire import PackedSegment, pack_segment

__all__ = ["SpooledSegmentQueue"]

PUT_ITEMS = 32
"""How many segments go into the spool in one transaction."""


class SpooledSegmentQueue(SegmentQueue):
    """The spool, in front of the outbox."""

    def __init__(self, outbox: Outbox, spool: Spool) -> None:
        super().__init__(outbox)
        self.spool: Spool = spool

    @property
    def items(self) -> int:
        """How many wait, here or there."""
        return self.spool.untaken_items + len(self.outbox)

    @property
    def steps(self) -> int:
        """Their steps."""
        return self.spool.untaken_steps + self.outbox.steps

    def peek(self) -> QueueHead | None:
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
        self.in_hand = min(PUT_ITEMS, len(self.outbox))
        while len(batch) < self.in_hand and (segment := self.outbox.pop()) is not None:
            batch.append(pack_segment(segment))
        if batch:
            self.spool.put(batch)
        self.in_hand = 0
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
