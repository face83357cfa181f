"""The queue of finished segments (runs of steps) on disk, for actors with a spool.

Actors without a spool do not import this module, because it imports sqlite.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.actor.io.segment_queue import Outbox, QueuedSegmentInfo, SegmentQueue
from rl4sys_zmq.actor.io.spool import Spool
from rl4sys_zmq.wire import PackedSegment

PUT_ITEMS = 32
"""The largest number of segments that go from memory into the spool in one transaction."""


class SpooledSegmentQueue(SegmentQueue):
    """The queue of finished segments (runs of steps) of an actor that stores them on disk before it sends them.

    The segments go from the outbox (a queue in memory) to the spool (the queue on disk).
    """

    def __init__(self, outbox: Outbox, spool: Spool) -> None:
        super().__init__(outbox)
        self.spool: Spool = spool

    @property
    def items(self) -> int:
        """The number of segments (runs of steps) on disk (spool) and in memory (outbox) that have not been sent."""
        return self.spool.untaken_items + len(self.outbox)

    @property
    def steps(self) -> int:
        """The number of steps of the segments (runs of steps) that `items` counts."""
        return self.spool.untaken_steps + self.outbox.steps

    def peek(self) -> QueuedSegmentInfo | None:
        """Return the properties of the oldest unsent segment (run of steps) on disk. Return None before `reconcile`."""
        return self.spool.peek() if self.spool.reconciled else None

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """Return the oldest segments (runs of steps) on disk that were not sent. They stay on disk until `release`."""
        return self.spool.take(max_items, max_bytes)

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment (run of steps) on disk that was not sent. Return False if the disk fails."""
        return self.spool.drop_head(1, reason) == 1

    def fill(self) -> bool:
        """Move up to `PUT_ITEMS` segments (runs of steps) from memory to disk. Return False if there were none in memory."""
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

    def release(self, durable: int) -> None:
        """Delete the segments (runs of steps) with sequence numbers below `durable`. The learner has recorded them."""
        self.spool.release(durable)

    def reconcile(self, received: int, durable: int) -> Sequence[PackedSegment] | None:
        """Find out which segments (runs of steps) of an earlier start the learner has received. See `Spool.reconcile`."""
        return self.spool.reconcile(received, durable)

    def tick(self) -> None:
        """Do the work on disk whose time has come, such as deletions that were delayed."""
        self.spool.tick()

    def next_deadline(self) -> float:
        """Return the monotonic time at which `tick` must be called, in seconds. Infinity if no work is due."""
        return self.spool.next_deadline()

    @property
    def submitted(self) -> int:
        """The number of segments (runs of steps) that the host has finished, over all starts with this file."""
        lost = sum(super().dropped.values())
        return self.spool.submitted + len(self.outbox) + lost

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped segments (runs of steps) by reason: on disk over all starts, and in memory since this start."""
        counts = self.spool.dropped
        for reason, count in super().dropped.items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def close(self) -> None:
        """Close the file. Its segments (runs of steps) stay on disk for the next start."""
        while self.fill():
            pass
        self.spool.close()
