"""The common base class of the data stores that keep their items in columns, in memory or in a folder."""

from __future__ import annotations

import contextlib
import os
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rl4sys_zmq.errors import Closed, ConfigError, DataError, StoreEmpty
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.serving.data.base import DataStoreBase
from rl4sys_zmq.serving.data.folder import Folder
from rl4sys_zmq.serving.data.layout import Leaf, StoreLayout
from rl4sys_zmq.serving.data.ring import Ids, Ring

__all__ = ["ColumnStore", "batch_count", "memory_error_as_data_error"]


class ColumnStore(DataStoreBase, Resource):
    """The base class of data stores that keep one array (*column*) for each leaf of an item.

    The first item fixes the columns: the keys, shapes and dtypes that all items must have. The columns are in memory, or in
    memory-mapped files in a folder.

    Args:
        capacity: Largest number of items. If it is reached, a new item overwrites the oldest.
        seed: Seed of the store's own random generator, which draws the samples.
        path: Folder for the columns; None keeps them in memory. If the folder contains a store of the same class, it is opened.
        options: Further options of the store, as JSON values. They are saved in the folder with the capacity. A store that is
            opened again must have the same capacity and options.

    Raises:
        ConfigError: If the capacity is not a positive integer, or the seed or the path is invalid.
        StoreError: If the folder cannot be used; see `Folder`.
    """

    _KIND: ClassVar[str]
    """The name of this kind of store in the manifest."""

    def __init__(
        self, capacity: int, seed: int | None, path: str | os.PathLike[str] | None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(capacity)
        self._lock = threading.Lock()
        try:
            self._rng = np.random.default_rng(seed)
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"seed is {seed!r:.60}; expected None or an integer of at least 0", key="seed") from exc
        self._closed = False
        self._layout: StoreLayout | None = None
        self._folder = None if path is None else Folder(path, self._KIND, {"capacity": capacity, **(options or {})})
        if self._folder is not None:
            self.lineage, self.on_disk = self._folder.lineage, True
        self._ring = Ring(capacity, self._folder)

    def insert(self, data: Mapping[str, Any]) -> None:
        """Store one item under the next number. Its arrays are copied.

        Raises:
            DataError: If the item does not fit (it names the key, with both shapes or dtypes). Nothing was stored.
            StoreError: If files cannot be created.
            ConfigError: If there is not enough memory.
            Closed: After `close`.
        """
        self.batch_insert([data])

    def latest_data_id(self) -> int:
        """Return the number of the newest item; -1 before the first."""
        return self._ring.end - 1

    def oldest_data_id(self) -> int:
        """Return the number of the oldest item that is held; if there is none, the next number."""
        return self._ring.begin

    def get_latest_data(self, from_id: int) -> list[dict[str, Any]]:
        """Return the held items after `from_id`, oldest first, as trees of arrays (copies) that `insert` accepts."""
        return self.read_after(from_id)[1]

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """Return the items after `from_id` with the number of the first, atomically; see `DataStoreBase.read_after`."""
        with self._open():
            begin, end = self._ring.begin, self._ring.end
            first = max(begin, min(from_id + 1, end))
            stop = end if limit is None else min(end, first + limit)
            return first, self._items(np.arange(first, stop), gap=first > from_id + 1) if stop > first else []

    def __len__(self) -> int:
        """Return the number of items that are held."""
        with self._lock:
            return self._ring.end - self._ring.begin

    def flush(self) -> None:
        """Write the folder's contents to the disk. Without a folder, do nothing.

        Raises:
            StoreError: If the disk fails.
            Closed: After `close`.
        """
        with self._open():
            if self._folder is not None:
                self._folder.flush()

    def close(self) -> None:
        """Flush and release the folder. A second call does nothing.

        Afterwards only the methods about held numbers work; the others raise `Closed`.

        Raises:
            StoreError: If the disk fails. The folder is released anyway.
        """
        with self._lock:
            self._closed = True
            if self._folder is not None:
                self._folder.close()

    @abstractmethod
    def _columns(self, layout: StoreLayout) -> dict[str, Leaf]:
        """Return the ring's columns for items of this layout."""

    @abstractmethod
    def _items(self, ids: Ids, gap: bool) -> list[dict[str, Any]]:
        """Return the items with these numbers. `gap` is True if items before the first one were dropped unread."""

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock, and raise `Closed` if the store is closed."""
        with self._lock:
            if self._closed:
                raise Closed(f"the {self._KIND} is closed")
            yield

    @contextlib.contextmanager
    def _opening(self) -> Iterator[StoreLayout | None]:
        """Yield the folder's layout to a constructor; release the folder if the constructor raises."""
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


def batch_count(batch_size: object) -> int:
    """Return a batch size, checked.

    Raises:
        DataError: If it is not a positive integer, or 2^48 or more.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size < 1 << 48:
        raise DataError("batch_size", f"{batch_size!r:.60} is not a positive integer below 2^48")
    return int(batch_size)


@contextlib.contextmanager
def memory_error_as_data_error(count: int) -> Iterator[None]:
    """Convert a `MemoryError` of a batch of this size.

    Raises:
        DataError: If the batch does not fit in memory.
    """
    try:
        yield
    except MemoryError as exc:
        raise DataError("batch_size", f"{count} items do not fit in memory") from exc
