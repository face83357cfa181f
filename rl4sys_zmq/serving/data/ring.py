"""Columns of rows under consecutive numbers, in memory or in a folder; the oldest rows make room for new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import DataError, StoreError
from rl4sys_zmq.serving.data.folder import Folder
from rl4sys_zmq.serving.data.layout import Leaf, as_leaf, zeros

__all__ = ["Ids", "Ring"]

Ids = NDArray[np.int64]
_SPAN = "/span"


class Ring:
    """Rows ``begin <= id < end``, each at ``id % capacity`` of every column. It has no lock: its owner does.

    In a folder, a process that dies at any point leaves whole rows: a row leaves the span before it is overwritten, and enters
    it after it is written.

    Args:
        capacity: rows.
        folder: where the columns are; None for memory.
    """

    def __init__(self, capacity: int, folder: Folder | None) -> None:
        self.capacity = capacity
        self._folder = folder
        self._columns: dict[str, NDArray[Any]] = {}
        self._span = np.zeros(2, np.int64)

    @property
    def begin(self) -> int:
        """The number of the oldest row; `end` when there is none."""
        return int(self._span[0])

    @property
    def end(self) -> int:
        """The number of the next row."""
        return int(self._span[1])

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def allocate(self, layout: Mapping[str, Leaf], columns: Mapping[str, Leaf]) -> None:
        """Makes the columns, or opens those that are in the folder.

        Args:
            layout: of an item, for the folder's manifest.
            columns: of a row.

        Raises:
            StoreError: when they cannot be made, or those that are there are not these.
            ConfigError: when they do not fit in memory.
        """
        whole = {name: Leaf((self.capacity, *leaf.shape), leaf.dtype) for name, leaf in columns.items()}
        if self._folder is None:
            self._columns = {name: zeros(leaf) for name, leaf in whole.items()}
            return
        whole[_SPAN] = Leaf((2,), np.dtype("<i8"))
        found = self._folder.create(layout, whole) if self._folder.layout is None else self._folder.columns(whole)
        self._span, self._columns = found.pop(_SPAN), found
        if not 0 <= self.begin <= self.end <= self.begin + self.capacity:
            raise StoreError(self._folder.path, "its counters are impossible: it is damaged; delete the folder to start anew")

    def skip_to(self, number: int) -> None:
        """The next row gets this number; there are none yet."""
        self._span[:] = number

    def make_room(self, count: int) -> Ids:
        """Gives up the rows that `count` new ones will overwrite; returns their numbers."""
        begin = self.begin
        self._span[0] = max(begin, min(self.end, self.end + count - self.capacity))
        return np.arange(begin, self.begin)

    def append(self, blocks: Mapping[str, NDArray[Any]], count: int) -> None:
        """Writes `count` rows of all columns, at most the capacity; there must be room."""
        end = self.end
        rows: Any = end % self.capacity if count == 1 else np.arange(end, end + count) % self.capacity
        for name, block in blocks.items():
            self._columns[name][rows] = block[0] if count == 1 else block
        self._span[1] = end + count

    def gather(self, name: str, ids: Ids) -> NDArray[Any]:
        """The rows of a column with these numbers: a copy ``[*ids.shape, ...]``."""
        taken: NDArray[Any] = self._columns[name][ids % self.capacity]
        return taken

    def held(self, key: str, ids: object) -> Ids:
        """Numbers that somebody gave, checked.

        Raises:
            DataError: when they are not one dimension of integers, or the rows of some are not held.
        """
        array = as_leaf(key, ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise DataError(key, f"shape {array.shape} and dtype {array.dtype}, not one dimension of integers")
        lost = array[(array < self.begin) | (array >= self.end)]
        if lost.size:
            raise DataError(key, f"{lost.size} that are not held, such as {lost[0]}; held are {self.begin} to {self.end - 1}")
        return array.astype(np.int64)
