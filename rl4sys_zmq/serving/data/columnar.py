"""The base class of data stores that keep their items in numpy arrays."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rl4sys_zmq.errors import Closed, ConfigError, DataError, StoreEmpty
from rl4sys_zmq.replay.folder import StoreFolder
from rl4sys_zmq.replay.layout import ArraySpec, StoreLayout
from rl4sys_zmq.replay.ring import Ids, RowRingBuffer
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.serving.data.base import DataStoreBase


class ColumnStore(DataStoreBase, Resource):
    """A data store that keeps one array, the *column*, for each value of an item, which is a dict of arrays and can be nested.

    The first item determines keys, shapes and dtypes. Columns are in memory, or in memory-mapped files in a folder.

    Args:
        path: Folder for the columns. None: memory. A store of the same class that the folder has is opened.
        options: Further options, as JSON values, saved in the folder. A folder is opened with the same ones and `capacity`.
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
        self._folder = None if path is None else StoreFolder(path, self._KIND, {"capacity": capacity, **(options or {})})
        if self._folder is not None:
            self.lineage, self.on_disk = self._folder.lineage, True
        self._ring = RowRingBuffer(capacity, self._folder)

    def seed(self, seed: int | None = None) -> list[int]:
        """Start a new sequence of random numbers for samples."""
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
        """Return copies of the stored items with numbers above `from_id`, oldest first. `insert` accepts them."""
        return self.read_after(from_id)[1]

    def read_after(self, from_id: int, limit: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """Return copies of the stored items with numbers above `from_id`, at most `limit`, and the number of the first."""
        with self._open():
            begin, end = self._ring.begin, self._ring.end
            first = max(begin, min(from_id + 1, end))
            stop = end if limit is None else min(end, first + limit)
            return first, self._items(np.arange(first, stop), gap=first > from_id + 1) if stop > first else []

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
        """Return the shape and dtype of each column."""

    @abstractmethod
    def _items(self, ids: Ids, gap: bool) -> list[dict[str, Any]]:
        """Return the items with the given numbers. `gap` is True if earlier ones were requested and are lost."""

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the store's lock. Raise `Closed` if the store is closed."""
        with self._lock:
            if self._closed:
                raise Closed(f"the {self._KIND} is closed")
            yield

    @contextlib.contextmanager
    def _opening(self) -> Iterator[StoreLayout | None]:
        """Yield the layout of the store in the folder, or None for a new store. If the block raises, release the folder."""
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


def batch_count(batch_size: object) -> int:
    """Check a batch size, and return it as an int."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or not 1 <= batch_size < 1 << 48:
        raise DataError("batch_size", f"{batch_size!r:.60} is not a positive integer below 2^48")
    return int(batch_size)


@contextlib.contextmanager
def memory_error_as_data_error(count: int) -> Iterator[None]:
    """Convert a `MemoryError` to a `DataError` about a batch of `count` items."""
    try:
        yield
    except MemoryError as exc:
        raise DataError("batch_size", f"{count} items do not fit in memory") from exc
