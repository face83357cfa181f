"""A bounded queue of payloads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from rl4sys_zmq.serving.data.base import DataStoreBase, as_batch
from rl4sys_zmq.serving.data.layout import copy_payload

__all__ = ["QueuedDataStore"]


class QueuedDataStore(DataStoreBase):
    """The last `capacity` payloads, to be read in order: the simple store for an edge device.

    A payload consists of None, booleans, numbers, strings, bytes, numpy arrays of numbers, and dicts (with string keys), lists
    and tuples of these, nested up to 14 deep. Its arrays are copied, so the caller can continue to write to its own.

    Args:
        capacity: Largest number of payloads.

    Raises:
        ConfigError: If the capacity is not a positive integer.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._lock = threading.Lock()
        self._items: deque[Any] = deque(maxlen=capacity)
        self._end = 0

    def insert(self, data: object) -> None:
        """Store a payload under the next number.

        Raises:
            DataError: If a part of it cannot be sent (it names the path). Nothing was stored.
        """
        self.batch_insert([data])

    def batch_insert(self, batch_data: Sequence[object]) -> None:
        """Store payloads in order: all of them or none.

        Raises:
            DataError: If a part of one of them cannot be sent. It names the path.
        """
        copies = [copy_payload(data) for data in as_batch(batch_data)]
        with self._lock:
            self._items.extend(copies)
            self._end += len(copies)

    def latest_data_id(self) -> int:
        """Return the number of the newest payload; -1 before the first."""
        return self._end - 1

    def oldest_data_id(self) -> int:
        """Return the number of the oldest payload that is held; if there is none, the next number."""
        with self._lock:
            return self._end - len(self._items)

    def get_latest_data(self, from_id: int) -> list[Any]:
        """Return the held payloads after `from_id`, oldest first. They are not copied; do not write to them."""
        return self.read_after(from_id)[1]

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
        """Return the payloads after `from_id` with the number of the first, atomically; see `DataStoreBase.read_after`."""
        with self._lock:
            oldest = self._end - len(self._items)
            first = max(oldest, min(from_id + 1, self._end))
            stop = None if limit is None else first - oldest + max(0, limit)
            return first, list(islice(self._items, first - oldest, stop))

    def __len__(self) -> int:
        """Return the number of payloads that are held."""
        return len(self._items)
