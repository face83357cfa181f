"""What the stores with columns have in common: one lock, numbers, a layout that the first item fixes, and a folder."""

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
from rl4sys_zmq.serving.data.layout import Layout, Leaf
from rl4sys_zmq.serving.data.ring import Ids, Ring

__all__ = ["ColumnStore", "batch_count", "fitting_memory"]


class ColumnStore(DataStoreBase, Resource):
    """A store of items with fixed columns, kept in memory or in memory-mapped files.

    Args:
        capacity: the most items that are held.
        seed: of the store's own random stream, with which it samples.
        path: a folder for the columns; None keeps them in memory. A folder that has a store of this kind is taken up.
        options: what is fixed with the folder besides the capacity.

    Raises:
        ConfigError: when the capacity is not a positive integer, or the seed or the path is none.
        StoreError: when the folder cannot be used; see `Folder`.
    """

    _KIND: ClassVar[str]
    """What the manifest calls such a store."""

    def __init__(
        self, capacity: int, seed: int | None, path: str | os.PathLike[str] | None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(capacity)
        self._lock = threading.Lock()
        try:
            self._rng = np.random.default_rng(seed)
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"{seed!r:.60} is no seed: None or an integer of at least 0 is", key="seed") from exc
        self._closed = False
        self._layout: Layout | None = None
        self._folder = None if path is None else Folder(path, self._KIND, {"capacity": capacity, **(options or {})})
        if self._folder is not None:
            self.lineage, self.on_disk = self._folder.lineage, True
        self._ring = Ring(capacity, self._folder)

    def insert(self, data: Mapping[str, Any]) -> None:
        """Stores one item under the next number; its arrays are copied.

        Raises:
            DataError: when it does not fit (names the key, with both shapes or dtypes); then nothing was stored.
            StoreError: when files cannot be made for it.
            ConfigError: when there is no memory for it.
            Closed: after `close`.
        """
        self.batch_insert([data])

    def latest_data_id(self) -> int:
        """The number of the newest item; -1 while there never was one."""
        return self._ring.end - 1

    def oldest_data_id(self) -> int:
        """The number of the oldest item that is held; when there is none, the number that the next one will get."""
        return self._ring.begin

    def get_latest_data(self, from_id: int) -> list[dict[str, Any]]:
        """Everything after `from_id` that is still held, oldest first, each as a tree of arrays that `insert` takes (copies)."""
        return self.read_after(from_id)[1]

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """What follows `from_id`, with its number, read at once; see `DataStoreBase.read_after`."""
        with self._open():
            begin, end = self._ring.begin, self._ring.end
            first = max(begin, min(from_id + 1, end))
            stop = end if limit is None else min(end, first + limit)
            return first, self._items(np.arange(first, stop), gap=first > from_id + 1) if stop > first else []

    def __len__(self) -> int:
        """How many items are held."""
        with self._lock:
            return self._ring.end - self._ring.begin

    def flush(self) -> None:
        """Has what is in the folder written to the disk; without a folder it does nothing.

        Raises:
            StoreError: when the disk refuses.
            Closed: after `close`.
        """
        with self._open():
            if self._folder is not None:
                self._folder.flush()

    def close(self) -> None:
        """Flushes and gives up the folder. A second call does nothing; other calls raise `Closed`, but those that say which
        numbers are held.

        Raises:
            StoreError: when the disk refuses; the folder is given up all the same.
        """
        with self._lock:
            self._closed = True
            if self._folder is not None:
                self._folder.close()

    @abstractmethod
    def _columns(self, layout: Layout) -> dict[str, Leaf]:
        """The ring's columns for items of this layout."""

    @abstractmethod
    def _items(self, ids: Ids, gap: bool) -> list[dict[str, Any]]:
        """The items with these numbers, for `read_after`; `gap` when items before the first one were dropped unread."""

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Holds the lock of a store that is not closed."""
        with self._lock:
            if self._closed:
                raise Closed(f"the {self._KIND} is closed")
            yield

    @contextlib.contextmanager
    def _opening(self) -> Iterator[Layout | None]:
        """For the constructor: what the folder has, which is let go of when that cannot be taken up."""
        try:
            yield None if self._folder is None or self._folder.layout is None else Layout(self._folder.layout)
        except BaseException:
            if self._folder is not None:
                self._folder.release()
            raise

    def _allocate(self, layout: Layout) -> None:
        self._ring.allocate(layout.leaves, self._columns(layout))
        self._layout = layout

    def _draw_uniform(self, count: int) -> Ids:
        begin, end = self._ring.begin, self._ring.end
        if begin == end:
            raise StoreEmpty(f"the {self._KIND} holds nothing yet")
        return self._rng.integers(begin, end, count)


def batch_count(batch_size: object) -> int:
    """A batch size, checked.

    Raises:
        DataError: when it is not a positive integer, or one that no memory holds.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size < 1 << 48:
        raise DataError("batch_size", f"{batch_size!r:.60} is not a positive integer that memory could hold")
    return int(batch_size)


@contextlib.contextmanager
def fitting_memory(count: int) -> Iterator[None]:
    """Says of a batch of this size that it does not fit, where it does not.

    Raises:
        DataError: then.
    """
    try:
        yield
    except MemoryError as exc:
        raise DataError("batch_size", f"{count} do not fit in memory") from exc
