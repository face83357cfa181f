"""The contract of a data store: items under numbers that are never given twice, the oldest dropped first."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from rl4sys_zmq.errors import ConfigError, DataError

__all__ = ["DataStoreBase", "as_batch", "new_lineage"]


def new_lineage() -> int:
    """A random lineage, in 1 .. 2^63 - 1."""
    return 1 + secrets.randbelow((1 << 63) - 1)


def as_batch(batch_data: object) -> list[Any]:
    """The items of a batch.

    Raises:
        DataError: when it is no sequence.
    """
    if not isinstance(batch_data, Iterable):
        raise DataError("batch_data", f"{batch_data!r:.60} is no sequence of items")
    return list(batch_data)


class DataStoreBase(ABC):
    """Holds the last items that were inserted, at most `capacity`; subclass it for a store of your own.

    Items are numbered 0, 1, 2, ... in the order of their insertion; a number is never given twice, and an item that is
    dropped to make room takes its number with it. What is held is always the newest items, without holes:
    ``len(store) == store.latest_data_id() - store.oldest_data_id() + 1``.

    One thread inserts while others read, so a store has a lock of its own, and every method here may be called from any
    thread. `rl4sys_zmq.testing.check_data_store` checks all of this.

    Attributes:
        capacity: the most items that are held.
        lineage: which numbering this is: a random number in 1 .. 2^63 - 1, another for each store. One that is kept on disk keeps
            its own. A trainer knows by it that an item under an old number is a new one.
        on_disk: whether it outlives its process.

    Raises:
        ConfigError: when the capacity is not a positive integer.
    """

    def __init__(self, capacity: int) -> None:
        if type(capacity) is not int or not 1 <= capacity < 1 << 63:
            raise ConfigError(f"a capacity is a positive integer, not {capacity!r:.60}", key="capacity")
        self.capacity = capacity
        self.lineage = new_lineage()
        self.on_disk = False

    @abstractmethod
    def insert(self, data: Any) -> None:
        """Stores one item under the next number.

        Raises:
            DataError: when it does not fit; then nothing was stored.
        """

    @abstractmethod
    def latest_data_id(self) -> int:
        """The number of the newest item; -1 while there never was one."""

    @abstractmethod
    def get_latest_data(self, from_id: int) -> list[Any]:
        """Everything after `from_id` that is still held, oldest first; -1 asks for everything."""

    @abstractmethod
    def __len__(self) -> int:
        """How many items are held."""

    def batch_insert(self, batch_data: Sequence[Any]) -> None:
        """Stores items in their order.

        The stores of this library store all of them or, when one does not fit, none. This default inserts one by one.

        Raises:
            DataError: when one does not fit.
        """
        for data in as_batch(batch_data):
            self.insert(data)

    def gap(self) -> None:
        """What is inserted next does not follow what is there: items between them were lost, or were refused.

        A trainer says so. A store without trajectories has nothing to do.
        """

    def oldest_data_id(self) -> int:
        """The number of the oldest item that is held; when there is none, the number that the next one will get."""
        while True:
            latest, held = self.latest_data_id(), len(self)
            if self.latest_data_id() == latest:
                return latest - held + 1

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
        """What follows `from_id`, with its number: what a client sends, and what it may then call sent.

        Args:
            from_id: the last number that is not wanted; -1 for everything.
            limit: the most items to return.

        Returns:
            The number of the first item, and the items, which have consecutive numbers. The number is larger than
            ``from_id + 1`` when items in between were dropped already.
        """
        while True:
            first = max(self.oldest_data_id(), from_id + 1)
            items = self.get_latest_data(first - 1)
            if self.oldest_data_id() <= first:  # so `first` was still there when the items were read
                return first, items if limit is None else items[: max(0, limit)]
