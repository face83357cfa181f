"""The contract of a data store: items with unique numbers, of which the oldest are dropped first."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from rl4sys_zmq.errors import ConfigError, DataError

__all__ = ["DataStoreBase", "as_batch", "new_lineage"]


def new_lineage() -> int:
    """Return a lineage, a random number in 1 .. 2^63 - 1 that identifies the numbering of a store's items."""
    return 1 + secrets.randbelow((1 << 63) - 1)


def as_batch(batch_data: object) -> list[Any]:
    """Return the items of a batch.

    Raises:
        DataError: If it is not iterable.
    """
    if not isinstance(batch_data, Iterable):
        raise DataError("batch_data", f"{batch_data!r:.60} is not a sequence of items")
    return list(batch_data)


class DataStoreBase(ABC):
    """A store of the last `capacity` items that were inserted; subclass it for a store of your own.

    Items are numbered 0, 1, 2, ... in the order of insertion. A number is never used twice; an item that is dropped to make
    room takes its number with it. The store always holds the newest items, without holes: ``len(store) ==
    store.latest_data_id() - store.oldest_data_id() + 1``.

    One thread inserts while others read, so a store has its own lock, and any thread can call any method.
    `rl4sys_zmq.testing.check_data_store` checks this contract.

    Attributes:
        capacity: Largest number of items.
        lineage: Random number in 1 .. 2^63 - 1 that identifies the numbering; no two stores have the same. A store on disk keeps
            its lineage. With it a trainer detects that an item with an old number is new.
        on_disk: True if the store outlives its process.

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
            DataError: If it does not fit. Nothing was stored.
        """

    @abstractmethod
    def latest_data_id(self) -> int:
        """Return the number of the newest item; -1 before the first."""

    @abstractmethod
    def get_latest_data(self, from_id: int) -> list[Any]:
        """Return the held items after `from_id`, oldest first; -1 returns all."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items that are held."""

    def batch_insert(self, batch_data: Sequence[Any]) -> None:
        """Store items in order.

        The stores of this library store all of them or, if one does not fit, none. This default inserts one by one.

        Raises:
            DataError: If an item does not fit.
        """
        for data in as_batch(batch_data):
            self.insert(data)

    def gap(self) -> None:
        """Note that items were lost or rejected before the next one, so it does not follow the last one.

        A trainer calls this. A store without trajectories does nothing.
        """

    def oldest_data_id(self) -> int:
        """Return the number of the oldest item that is held; if there is none, the next number."""
        while True:
            latest, held = self.latest_data_id(), len(self)
            if self.latest_data_id() == latest:
                return latest - held + 1

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
        """Return the number of the first item after `from_id` in the store, and the items from there on. A client sends them.

        Args:
            from_id: Number of the last item that is not needed; -1 for all items.
            limit: Largest number of items to return.

        Returns:
            The number of the first returned item, and the items, which have consecutive numbers. The number is larger than
            ``from_id + 1`` if the store has already dropped items after `from_id`.
        """
        while True:
            first = max(self.oldest_data_id(), from_id + 1)
            items = self.get_latest_data(first - 1)
            if self.oldest_data_id() <= first:  # `first` was still held when the items were read
                return first, items if limit is None else items[: max(0, limit)]
