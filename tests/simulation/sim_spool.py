"""An actor's queue for the simulator: a FIFO in which numbers are positions, as `actor.spool` keeps it on a disk."""

from __future__ import annotations

import random
from collections import deque

from rl4sys_zmq.wire import PackedSegment

__all__ = ["SimSpool"]


class SimSpool:
    """Segments, oldest first; the first `taken` of them have numbers, from `base_seq` on.

    Attributes:
        rows: (segment, packed).
        base_seq: the number of the oldest.
        taken: how many have numbers.
        reconciled: it is known which.
        journal_id: as the last Welcome said.
    """

    def __init__(self) -> None:
        self.rows: deque[tuple[int, PackedSegment]] = deque()
        self.base_seq = self.taken = self.journal_id = 0
        self.reconciled = True
        self._released: list[tuple[int, PackedSegment]] = []

    @property
    def waiting(self) -> int:
        """How many have no number."""
        return len(self.rows) - self.taken

    @property
    def waiting_steps(self) -> int:
        """The steps of those."""
        return sum(packed.steps for _, packed in list(self.rows)[self.taken :])

    def put(self, segment: int, packed: PackedSegment, max_items: int) -> int | None:
        """Adds a segment; returns the one that had to be dropped for it."""
        self.rows.append((segment, packed))
        if self.waiting <= max_items or not self.reconciled:
            return None
        dropped, _ = self.rows[self.taken]
        del self.rows[self.taken]
        return dropped

    def take(self) -> tuple[int, int, PackedSegment]:
        """Gives the next segment its number."""
        segment, packed = self.rows[self.taken]
        self.taken += 1
        return self.base_seq + self.taken - 1, segment, packed

    def release(self) -> tuple[int, int]:
        """Gives up the oldest, which is durable; the disk may hear of it later."""
        self._released.append(self.rows.popleft())
        self.base_seq += 1
        self.taken -= 1
        return self.base_seq - 1, self._released[-1][0]

    def sync(self) -> None:
        """The disk has heard of everything."""
        self._released.clear()

    def forget_taken(self) -> list[int]:
        """Gives up all that have numbers, and begins to count anew."""
        gone = [self.rows.popleft()[0] for _ in range(self.taken)]
        self.base_seq = self.taken = 0
        self._released.clear()
        return gone

    def reopen(self, rng: random.Random) -> None:
        """The process is killed, and another one opens the file: nobody knows what has a number."""
        if rng.random() < 0.5:
            self.rows.extendleft(reversed(self._released))
            self.base_seq -= len(self._released)
        self._released.clear()
        self.taken = 0
        self.reconciled = False

    def reconcile(self, received: int, durable: int) -> tuple[list[tuple[int, int]], list[PackedSegment]]:
        """Takes the learner's word for it.

        Returns:
            What it has, and is given up, as (number, segment); and what it received and must be kept.
        """
        self.reconciled = True
        self.taken = max(0, min(received - self.base_seq, len(self.rows)))
        gone = []
        while self.taken and self.base_seq < durable:
            gone.append(self.release())
        self.sync()
        return gone, [packed for _, packed in list(self.rows)[: self.taken]]
