"""The bounded queue between host threads and the I/O thread."""

from __future__ import annotations

from collections import deque

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.values import Segment

__all__ = ["Outbox"]


class Outbox:
    """Finished segments on their way out.

    Host threads call `put` (under a lock of their own), the I/O thread calls `pop`; both are single operations on a deque, so
    that neither ever waits for the other. Past its bounds the oldest segment is dropped and counted, unless the actor's
    policy is to wait for credit, which bounds the queue by itself.
    """

    def __init__(self, max_items: int, max_bytes: int, *, drops: bool) -> None:
        self.dropped = Counters()
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
        """The bytes of all segments in the queue."""
        return self._bytes_in - self._bytes_popped - self._bytes_dropped

    @property
    def steps(self) -> int:
        """The steps of all segments in the queue."""
        return self.put_steps - self.popped_steps - self.dropped.get("steps")

    def put(self, segment: Segment) -> None:
        """Takes a segment from a host thread; drops the oldest when there are too many."""
        self.put_items += 1
        self.put_steps += segment.steps
        self._bytes_in += segment.nbytes
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
        """Gives the oldest segment to the I/O thread."""
        try:
            segment = self._items.popleft()
        except IndexError:
            return None
        self._bytes_popped += segment.nbytes
        self.popped_steps += segment.steps
        return segment

    def peek(self) -> Segment | None:
        """The oldest segment, which a host thread may be dropping at this moment."""
        try:
            return self._items[0]
        except IndexError:
            return None
