"""The segment queue of actors with a spool. Only actors with a spool import this module, because it imports sqlite."""

from __future__ import annotations

from rl4sys_zmq.actor.io.segment_queue import Outbox, QueuedSegmentInfo, SegmentQueue
from rl4sys_zmq.actor.io.spool import Spool
from rl4sys_zmq.wire import PackedSegment

PUT_ITEMS = 32
"""The largest number of segments that go from memory into the spool in one transaction."""


class SpooledSegmentQueue(SegmentQueue):
    """The queue of an actor with a spool: segments go from the outbox to the spool before they are sent."""

    def __init__(self, outbox: Outbox, spool: Spool) -> None:
        super().__init__(outbox)
        self.spool: Spool = spool

    @property
    def items(self) -> int:
        return self.spool.untaken_items + len(self.outbox)

    @property
    def steps(self) -> int:
        return self.spool.untaken_steps + self.outbox.steps

    def peek(self) -> QueuedSegmentInfo | None:
        return self.spool.peek() if self.spool.reconciled else None

    def take(self) -> PackedSegment | None:
        return self.spool.take()

    def drop(self, reason: str) -> bool:
        return self.spool.drop_head(1, reason) == 1

    def fill(self) -> bool:
        batch: list[PackedSegment] = []
        self.in_hand = min(PUT_ITEMS, len(self.outbox))
        while len(batch) < self.in_hand and (segment := self.outbox.pop()) is not None:
            packed = self._packed(segment)
            if packed is not None:
                batch.append(packed)
        if batch:
            self.spool.put(batch)
        self.in_hand = 0
        return bool(batch)

    @property
    def submitted(self) -> int:
        lost = sum(super().dropped.values())
        return self.spool.submitted + len(self.outbox) + lost

    @property
    def dropped(self) -> dict[str, int]:
        counts = self.spool.dropped
        for reason, count in super().dropped.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def close(self) -> None:
        while self.fill():
            pass
        self.spool.close()
