"""The contract of a data store, checked on any class that claims to keep it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["DataStore", "check_data_store"]

_ITEMS = 2_000
"""How many one thread inserts while another one reads."""


class DataStore(Protocol):
    """What `rl4sys_zmq.serving.DataStoreBase` asks of a store; see there."""

    def insert(self, data: Any) -> None:
        """Stores one item under the next number."""

    def batch_insert(self, batch_data: Sequence[Any]) -> None:
        """Stores items in their order."""

    def latest_data_id(self) -> int:
        """The number of the newest item; -1 while there never was one."""

    def oldest_data_id(self) -> int:
        """The number of the oldest item that is held."""

    def get_latest_data(self, from_id: int) -> list[Any]:
        """Everything after `from_id` that is still held, oldest first."""

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Any]]:
        """What follows `from_id`, with its number."""

    def __len__(self) -> int:
        """How many items are held."""


def check_data_store(make: Callable[[int], DataStore], item: Callable[[int], Any], number: Callable[[Any], int]) -> None:
    """Checks that a store keeps the contract: numbers, order, what is dropped, and a thread that reads while another inserts.

    Args:
        make: an empty store of the capacity given.
        item: an item that is made of a number, and so tells it from others.
        number: that number, read from an item as the store returns it.

    Raises:
        AssertionError: when it does not.
    """
    for capacity in (1, 5):
        store, twin = make(capacity), list[int]()
        _check_state(store, twin, capacity)
        for size in (None, 1, 2, None, 0, 3, None, 4 * capacity):
            start = len(twin)
            twin += range(start, start + (1 if size is None else size))
            if size is None:
                store.insert(item(start))
            else:
                store.batch_insert([item(i) for i in twin[start:]])
            _check_state(store, twin, capacity, number)
    _check_threads(make(50), item, number)


def _check_state(store: DataStore, twin: list[int], capacity: int, number: Callable[[Any], int] = int) -> None:
    """Compares a store with the list of everything that was ever inserted."""
    held = twin[-capacity:]
    oldest = len(twin) - len(held)
    assert len(store) == len(held), f"holds {len(store)} items, not {len(held)}"
    assert store.latest_data_id() == len(twin) - 1, f"says that {store.latest_data_id()} is the latest, not {len(twin) - 1}"
    assert store.oldest_data_id() == oldest, f"says that {store.oldest_data_id()} is the oldest, not {oldest}"
    for from_id in range(-1, len(twin) + 1):
        expected = [i for i in held if i > from_id]
        found = [number(i) for i in store.get_latest_data(from_id)]
        assert found == expected, f"after {from_id} it returns {found}, not {expected}"
        for limit in (None, 0, 1, capacity):
            first, items = store.read_after(from_id, limit)
            assert [number(i) for i in items] == expected[:limit], f"read_after({from_id}, {limit}) returns other items"
            assert not items or first == number(items[0]), f"read_after({from_id}, {limit}) says {first} for {number(items[0])}"


def _check_threads(store: DataStore, item: Callable[[int], Any], number: Callable[[Any], int]) -> None:
    """A reader that follows a writer sees each item once, in order, under its own number, or not at all."""
    errors: list[BaseException] = []

    def insert() -> None:
        try:
            for i in range(0, _ITEMS, 4):
                store.batch_insert([item(j) for j in range(i, i + 3)])
                store.insert(item(i + 3))
        except BaseException as exc:  # noqa: BLE001 it is raised in the checking thread
            errors.append(exc)

    thread = threading.Thread(target=insert, name="check-data-store", daemon=True)
    thread.start()
    last = -1
    while last < _ITEMS - 1 and not errors:
        alive = thread.is_alive()
        first, items = store.read_after(last)
        assert first > last, f"asked for what follows {last}, it returned {first}"
        for offset, value in enumerate(items):
            assert number(value) == first + offset, f"item {first + offset} has the content of {number(value)}"
        last = max(last, first + len(items) - 1)
        assert alive or last == _ITEMS - 1, f"it returned nothing after {last}"
    thread.join()
    if errors:
        raise errors[0]
