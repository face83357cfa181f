"""A data store that is a bounded queue of any payloads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from rl4sys_zmq.replay.layout import copy_payload
from rl4sys_zmq.serving.data.base import DataStoreBase, as_batch


class QueuedDataStore(DataStoreBase):
    """A data store that keeps the newest `capacity` payloads in order. It is the simplest store for an actor.

    A payload consists of None, booleans, numbers, strings, bytes and numpy arrays of numbers, which can be nested in dicts (with
    string keys), lists and tuples up to 14 levels deep. The store copies the arrays.

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
            DataError: If a part of the payload has a type that cannot be sent. The message has its path. Nothing was stored.
        """
        self.batch_insert([data])

    def batch_insert(self, batch_data: Sequence[object]) -> None:
        """Store several payloads in order. If one is invalid, store none.

        Raises:
            DataError: If a part of a payload has a type that cannot be sent. The message has its path.
        """
        copies = [copy_payload(data) for data in as_batch(batch_data)]
        with self._lock:
            self._items.extend(copies)
            self._end += len(copies)

    def latest_data_id(self) -> int:
        return self._end - 1

    def oldest_data_id(self) -> int:
        with self._lock:
            return self._end - len(self._items)

    def get_latest_data(self, from_id: int) -> list[Any]:
        """Return the stored payloads with numbers above `from_id`, oldest first. They are not copied; do not write to them."""
        return self.read_after(from_id)[1]

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
        with self._lock:
            oldest = self._end - len(self._items)
            first = max(oldest, min(from_id + 1, self._end))
            stop = None if limit is None else first - oldest + max(0, limit)
            return first, list(islice(self._items, first - oldest, stop))

    def __len__(self) -> int:
        return len(self._items)
