"""The bounded queue between host threads and the I/O thread."""

from __future__ import annotations

from collections import deque

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.values import Segment

__all__ = ["Outbox"]


class Outbox:
    """A bounded FIFO of finished segments.

    Host threads call `put` under their own lock; the I/O thread calls `pop`. Both are single operations on a deque, so neither
    waits for the other. Beyond the bounds the oldest segment is dropped and counted, unless the actor is configured to wait for
    credit, which bounds the queue by itself.
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
        """Add a segment, and drop the oldest ones beyond the bounds. Called by host threads."""
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
        """Remove and return the oldest segment, or None. Called by the I/O thread."""
        try:
            segment = self._items.popleft()
        except IndexError:
            return None
        self._bytes_popped += segment.nbytes
        self.popped_steps += segment.steps
        return segment

    def peek(self) -> Segment | None:
        """Return the oldest segment, or None. A host thread can drop it at the same time."""
        try:
            return self._items[0]
        except IndexError:
            return None
