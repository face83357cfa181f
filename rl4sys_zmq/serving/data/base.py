"""The base classes of data stores, and the simplest store: a bounded queue of any payloads."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import check_value, integer
from rl4sys_zmq.errors import Closed, ConfigError, DataError, StoreEmpty
from rl4sys_zmq.replay.folder import StoreFolder, new_lineage
from rl4sys_zmq.replay.layout import ArraySpec, StoreLayout, as_leaf, copy_payload
from rl4sys_zmq.replay.ring import Ids, RowRingBuffer
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values.trees import unflatten_names


def as_batch(batch_data: object) -> list[Any]:
    """Return the items of a batch as a list."""
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
        self.capacity = check_value("capacity", capacity, integer(1, (1 << 63) - 1))
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
        """Declare that the next inserted item does not follow the last one, because items between them were lost or rejected.

        `TrainerServer`, which fills the store, calls this. A store of trajectories then begins a new trajectory. Other
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


class ColumnStore(DataStoreBase, Resource):
    """A data store that keeps one array, the *column*, for each value of an item. An item is a nested dict of arrays.

    The first item determines keys, shapes and dtypes. Columns are in memory, or in memory-mapped files in a folder.

    Args:
        path: Folder for the columns. None: memory. A store of this class that is already in the folder is opened.
        options: Further options, as JSON values, saved in the folder. To open the folder again, the options and `capacity` must
            be the same.
    """

    _KIND: ClassVar[str]
    """The name of the store's class, saved in the folder and used in error messages."""

    def __init__(
        self, capacity: int, seed: int | None, path: str | os.PathLike[str] | None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(capacity)
        self._lock = threading.Lock()
        self._rng = _generator(seed)
        self._closed = False
        self._layout: StoreLayout | None = None
        self._folder = None if path is None else StoreFolder(path, self._KIND, {"capacity": self.capacity, **(options or {})})
        if self._folder is not None:
            self.lineage, self.on_disk = self._folder.lineage, True
        self._ring = RowRingBuffer(self.capacity, self._folder)

    def seed(self, seed: int | None = None) -> list[int]:
        """Start a new sequence of random numbers for samples. Return a list with the seed, which is random for None."""
        if seed is None:
            seed = secrets.randbits(63)
        rng = _generator(seed)
        with self._lock:
            self._rng = rng
        return [seed]

    def insert(self, data: Mapping[str, Any]) -> None:
        self.batch_insert([data])

    def latest_data_id(self) -> int:
        return self._ring.end - 1

    def oldest_data_id(self) -> int:
        return self._ring.begin

    def get_latest_data(self, from_id: int) -> list[dict[str, Any]]:
        """Return copies of the stored items with numbers above `from_id`, oldest first. `insert` accepts such items."""
        return self.read_after(from_id)[1]

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of the first stored item above `from_id`, and copies of at most `limit` items from there on."""
        with self._open():
            begin, end = self._ring.begin, self._ring.end
            first = max(begin, min(from_id + 1, end))
            stop = end if limit is None else min(end, first + limit)
            if stop <= first:
                return first, []
            leaves = self._gather(np.arange(first, stop), gap=first > from_id + 1)
            return first, [unflatten_names({path: block[row] for path, block in leaves.items()}) for row in range(stop - first)]

    def __len__(self) -> int:
        with self._lock:
            return self._ring.end - self._ring.begin

    def flush(self) -> None:
        """Write the folder's contents to the disk. Without a folder, do nothing."""
        with self._open():
            if self._folder is not None:
                self._folder.flush()

    def close(self) -> None:
        """Write the folder's contents to the disk, and release the folder. A second call does nothing.

        Afterwards `len`, `latest_data_id` and `oldest_data_id` still work. The other methods raise `Closed`.
        """
        with self._lock:
            self._closed = True
            if self._folder is not None:
                self._folder.close()

    @abstractmethod
    def _columns(self, layout: StoreLayout) -> dict[str, ArraySpec]:
        """Return the shape and dtype of each column, by the name of the column."""

    @abstractmethod
    def _gather(self, ids: Ids, *, gap: bool = False) -> dict[str, NDArray[Any]]:
        """Return the values of items, as arrays ``[batch, ...]`` by path. `gap` is True if the items before them are lost."""

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the store's lock in a ``with`` block. Raise `Closed` if the store is closed."""
        with self._lock:
            if self._closed:
                raise Closed(f"the {self._KIND} is closed")
            yield

    @contextlib.contextmanager
    def _opening(self) -> Iterator[StoreLayout | None]:
        """Yield the folder's shapes and dtypes, or None for a new store. If the ``with`` block raises, release the folder."""
        try:
            yield None if self._folder is None or self._folder.layout is None else StoreLayout(self._folder.layout)
        except BaseException:
            if self._folder is not None:
                self._folder.release()
            raise

    def _allocate(self, layout: StoreLayout) -> None:
        self._ring.allocate(layout.leaves, self._columns(layout))
        self._layout = layout

    def _draw_uniform(self, count: int) -> Ids:
        begin, end = self._ring.begin, self._ring.end
        if begin == end:
            raise StoreEmpty(f"the {self._KIND} is empty")
        return self._rng.integers(begin, end, count)


def _generator(seed: object) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"seed is {seed!r:.60}; expected None or an integer of at least 0", key="seed") from exc


def leaf_spec(path: str, value: object) -> ArraySpec:
    """Return the shape and dtype of `value`, which an item has at `path`."""
    array = as_leaf(path, value)
    return ArraySpec(array.shape, array.dtype)


def batch_count(batch_size: object) -> int:
    """Check a batch size, and return it as an int."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size < 1 << 48:
        raise DataError("batch_size", f"{batch_size!r:.60} is not a positive integer below 2^48")
    return int(batch_size)


@contextlib.contextmanager
def memory_error_as_data_error(count: int) -> Iterator[None]:
    """Convert a `MemoryError` of the ``with`` block to a `DataError` about a batch of `count` items."""
    try:
        yield
    except MemoryError as exc:
        raise DataError("batch_size", f"{count} items do not fit in memory") from exc
