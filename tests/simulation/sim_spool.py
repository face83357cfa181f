"""The queue of a simulated actor: a FIFO in which a number is a position, as in the spool of `actor.io.spool`."""

import random
from collections import deque

from rl4sys_zmq.wire import PackedSegment


class SimSpool:
    """A queue of segments, oldest first. The first `taken` of them have numbers, from `base_seq` on."""

    def __init__(self) -> None:
        self.rows: deque[tuple[int, PackedSegment]] = deque()
        self.base_seq = self.taken = self.journal_id = 0
        self.reconciled = True
        self._released: list[tuple[int, PackedSegment]] = []

    @property
    def waiting(self) -> int:
        return len(self.rows) - self.taken

    @property
    def waiting_steps(self) -> int:
        return sum(packed.steps for _, packed in list(self.rows)[self.taken :])

    def put(self, segment: int, packed: PackedSegment, max_items: int) -> int | None:
        self.rows.append((segment, packed))
        if self.waiting <= max_items or not self.reconciled:
            return None
        dropped, _ = self.rows[self.taken]
        del self.rows[self.taken]
        return dropped

    def take(self) -> tuple[int, int, PackedSegment]:
        """Give the next segment its number, and return both."""
        segment, packed = self.rows[self.taken]
        self.taken += 1
        return self.base_seq + self.taken - 1, segment, packed

    def release(self) -> tuple[int, int]:
        """Remove the oldest segment, which is durable. The change may reach the disk later."""
        self._released.append(self.rows.popleft())
        self.base_seq += 1
        self.taken -= 1
        return self.base_seq - 1, self._released[-1][0]

    def sync(self) -> None:
        self._released.clear()

    def forget_taken(self) -> list[int]:
        """Remove and return all segments that have numbers, and restart the numbering at 0."""
        gone = [self.rows.popleft()[0] for _ in range(self.taken)]
        self.base_seq = self.taken = 0
        self._released.clear()
        return gone

    def reopen(self, rng: random.Random) -> None:
        """Open the queue in a new process after a kill. It is not known which segments have numbers."""
        if rng.random() < 0.5:
            self.rows.extendleft(reversed(self._released))
            self.base_seq -= len(self._released)
        self._released.clear()
        self.taken = 0
        self.reconciled = False

    def reconcile(self, received: int, durable: int) -> tuple[list[tuple[int, int]], list[PackedSegment]]:
        """Number the segments by the marks of the learner, and remove the durable ones."""
        self.reconciled = True
        self.taken = max(0, min(received - self.base_seq, len(self.rows)))
        gone = []
        while self.taken and self.base_seq < durable:
            gone.append(self.release())
        self.sync()
        return gone, [packed for _, packed in list(self.rows)[: self.taken]]
