"""A test function for authors of data stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")

_ITEMS = 2_000
"""Number of items in the test in which one thread inserts and another reads."""


class DataStoreUnderTest(Protocol[Item]):
    """The interface of a data store as `check_data_store` uses it: some methods of `rl4sys_zmq.serving.DataStoreBase`."""

    def insert(self, data: Item) -> None:
        """Store one item. Items are numbered from 0 in the order of insertion."""

    def batch_insert(self, batch_data: Sequence[Item]) -> None:
        """Store several items, which get consecutive numbers in their order."""

    def latest_data_id(self) -> int:
        """Return the number of the newest item, or -1 before the first insertion."""

    def oldest_data_id(self) -> int:
        """Return the number of the oldest item in the store. For an empty store, return the number of the next item."""

    def get_latest_data(self, from_id: int) -> list[Item]:
        """Return the items in the store with numbers above `from_id`, oldest first."""

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[Item]]:
        """Return the number of the first item in the store above `from_id`, and a list of at most `limit` items from there on."""

    def __len__(self) -> int:
        """Return the number of items in the store."""


def check_data_store(
    make: Callable[[int], DataStoreUnderTest[Item]], item: Callable[[int], Item], number: Callable[[Item], int]
) -> None:
    """Check that a data store behaves as `rl4sys_zmq.serving.DataStoreBase` requires.

    The check covers the numbers and the order of items, items that are dropped from a full store, and reading while another
    thread inserts.

    Args:
        make: Function that creates an empty store of the given capacity.
        item: Function that creates an item from an integer. Different integers must give different items.
        number: Function that returns the integer from which an item was created, for an item that the store returned.

    Raises:
        AssertionError: If the store violates a requirement.
    """
    for capacity in (1, 5):
        store, twin = make(capacity), list[int]()
        _check_state(store, twin, capacity, number)
        for size in (None, 1, 2, None, 0, 3, None, 4 * capacity):
            start = len(twin)
            twin += range(start, start + (1 if size is None else size))
            if size is None:
                store.insert(item(start))
            else:
                store.batch_insert([item(i) for i in twin[start:]])
            _check_state(store, twin, capacity, number)
    _check_threads(make(50), item, number)


def _check_state(store: DataStoreUnderTest[Item], twin: list[int], capacity: int, number: Callable[[Item], int]) -> None:
    """Check that a store has the newest items, with their numbers. `twin` has the integers of all items inserted so far."""
    held = twin[-capacity:]
    oldest = len(twin) - len(held)
    assert len(store) == len(held), f"the store has {len(store)} items; expected {len(held)}"
    assert store.latest_data_id() == len(twin) - 1, f"latest_data_id() is {store.latest_data_id()}; expected {len(twin) - 1}"
    assert store.oldest_data_id() == oldest, f"oldest_data_id() is {store.oldest_data_id()}; expected {oldest}"
    for from_id in range(-1, len(twin) + 1):
        expected = [i for i in held if i > from_id]
        actual = [number(i) for i in store.get_latest_data(from_id)]
        assert actual == expected, f"get_latest_data({from_id}) returns {actual}; expected {expected}"
        for limit in (None, 0, 1, capacity):
            first, items = store.read_after(from_id, limit)
            assert [number(i) for i in items] == expected[:limit], f"read_after({from_id}, {limit}) returns the wrong items"
            assert not items or first == number(items[0]), (
                f"read_after({from_id}, {limit}) returns {first} for {number(items[0])}"
            )


def _check_threads(store: DataStoreUnderTest[Item], item: Callable[[int], Item], number: Callable[[Item], int]) -> None:
    """Check that a thread that reads during inserts gets each item at most once, in order and with the correct number."""
    errors: list[BaseException] = []

    def insert() -> None:
        try:
            for i in range(0, _ITEMS, 4):
                store.batch_insert([item(j) for j in range(i, i + 3)])
                store.insert(item(i + 3))
        except BaseException as exc:  # noqa: BLE001 raised again in the checking thread
            errors.append(exc)

    thread = threading.Thread(target=insert, name="check-data-store", daemon=True)
    thread.start()
    last = -1
    while last < _ITEMS - 1 and not errors:
        alive = thread.is_alive()
        first, items = store.read_after(last)
        assert first > last, f"read_after({last}) returned the number {first}"
        for offset, value in enumerate(items):
            assert number(value) == first + offset, f"item {first + offset} has the content of {number(value)}"
        last = max(last, first + len(items) - 1)
        assert alive or last == _ITEMS - 1, f"read_after({last}) returned nothing, though items follow"
    thread.join()
    if errors:
        raise errors[0]
