"""The base class of data stores, and the simplest store: a bounded queue of any payloads."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from rl4sys_zmq.errors import ConfigError, DataError
from rl4sys_zmq.replay.folder import new_lineage
from rl4sys_zmq.replay.layout import copy_payload


def as_batch(batch_data: object) -> list[Any]:
    """Convert a batch to a list of items."""
    if not isinstance(batch_data, Iterable):
        raise DataError("batch_data", f"{batch_data!r:.60} is not a sequence of items")
    return list(batch_data)


class DataStoreBase(ABC):
    """The base class of data stores, which keep the newest `capacity` items. Derive a store of your own from it.

    Items are numbered 0, 1, 2, ... in the order of insertion. A number is never used twice. If the store is full, the oldest
    item is dropped. The numbers of the stored items are consecutive: ``len(store) == store.latest_data_id() -
    store.oldest_data_id() + 1``.

    Any thread can call any method at any time, so a store needs a lock. `rl4sys_zmq.testing.check_data_store` tests a store.

    Attributes:
        capacity: Largest number of items.
        lineage: Random number in 1 .. 2^63 - 1 that identifies the numbering of this store. A store on disk keeps the number. A
            new store has another number, so a trainer does not take its item 0 for item 0 of an earlier store.
        on_disk: True if the store survives the end of its process.

    Raises:
        ConfigError: If the capacity is not a positive integer.
    """

    def __init__(self, capacity: int) -> None:
        if type(capacity) is not int or not 1 <= capacity < 1 << 63:
            raise ConfigError(f"capacity must be a positive integer, not {capacity!r:.60}", key="capacity")
        self.capacity = capacity
        self.lineage = new_lineage()
        self.on_disk = False

    @abstractmethod
    def insert(self, data: Any) -> None:
        """Store one item under the next number.

        Raises:
            DataError: If the item does not have the form that the store requires. Nothing was stored.
        """

    @abstractmethod
    def latest_data_id(self) -> int:
        """Return the number of the newest item, or -1 before the first insertion."""

    @abstractmethod
    def get_latest_data(self, from_id: int) -> list[Any]:
        """Return the stored items with numbers above `from_id`, oldest first. -1 returns all."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of stored items."""

    def batch_insert(self, batch_data: Sequence[Any]) -> None:
        """Store several items in order.

        This default inserts the items one by one. The stores of this library store either all items or, if one is invalid, none.

        Raises:
            DataError: If an item does not have the form that the store requires.
        """
        for data in as_batch(batch_data):
            self.insert(data)

    def gap(self) -> None:
        """Mark a gap: the next inserted item does not follow the last one, because items between them were lost or rejected.

        The trainer's server, which fills the store, calls this. A store of trajectories then begins a new trajectory. Other
        stores do nothing.
        """

    def oldest_data_id(self) -> int:
        """Return the number of the oldest stored item. For an empty store, return the number that the next item will get."""
        while True:
            latest, held = self.latest_data_id(), len(self)
            if self.latest_data_id() == latest:
                return latest - held + 1

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
        """Return the stored items with numbers above `from_id`, and the number of the first of them.

        Args:
            from_id: Number of the last item that is not needed; -1 for all items.
            limit: Largest number of items to return. None: no limit.

        Returns:
            The number of the first returned item, and a list of the items, which have consecutive numbers. If the number is
            larger than ``from_id + 1``, the store has already dropped the items between them.
        """
        while True:
            first = max(self.oldest_data_id(), from_id + 1)
            items = self.get_latest_data(first - 1)
            if self.oldest_data_id() <= first:  # `first` was still held when the items were read
                return first, items if limit is None else items[: max(0, limit)]


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
