"""A ring of rows with consecutive numbers, in memory or in a folder; new rows overwrite the oldest."""

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
    """Rows ``begin <= id < end``, each at ``id % capacity`` of every column. It has no lock: the store locks.

    A row leaves the span before it is overwritten, and enters it after it is written. A process that is killed at any point
    therefore leaves only whole rows in a folder.

    Args:
        capacity: Number of rows.
        folder: Folder of the columns; None for memory.
    """

    def __init__(self, capacity: int, folder: Folder | None) -> None:
        self.capacity = capacity
        self._folder = folder
        self._columns: dict[str, NDArray[Any]] = {}
        self._span = np.zeros(2, np.int64)

    @property
    def begin(self) -> int:
        """The number of the oldest row; `end` if there is none."""
        return int(self._span[0])

    @property
    def end(self) -> int:
        """The number of the next row."""
        return int(self._span[1])

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def allocate(self, layout: Mapping[str, Leaf], columns: Mapping[str, Leaf]) -> None:
        """Create the columns, or open those in the folder.

        Args:
            layout: Leaves of an item, for the folder's manifest.
            columns: Columns of a row.

        Raises:
            StoreError: If the columns cannot be created, or those in the folder are different.
            ConfigError: If they do not fit in memory.
        """
        whole = {name: Leaf((self.capacity, *leaf.shape), leaf.dtype) for name, leaf in columns.items()}
        if self._folder is None:
            self._columns = {name: zeros(leaf) for name, leaf in whole.items()}
            return
        whole[_SPAN] = Leaf((2,), np.dtype("<i8"))
        found = self._folder.create(layout, whole) if self._folder.layout is None else self._folder.columns(whole)
        self._span, self._columns = found.pop(_SPAN), found
        if not 0 <= self.begin <= self.end <= self.begin + self.capacity:
            raise StoreError(self._folder.path, "its counters are impossible: it is damaged; delete the folder to start again")

    def skip_to(self, number: int) -> None:
        """Set the number of the next row. The ring must be empty."""
        self._span[:] = number

    def make_room(self, count: int) -> Ids:
        """Drop the rows that `count` new ones will overwrite, and return their numbers."""
        begin = self.begin
        self._span[0] = max(begin, min(self.end, self.end + count - self.capacity))
        return np.arange(begin, self.begin)

    def append(self, blocks: Mapping[str, NDArray[Any]], count: int) -> None:
        """Write `count` rows of all columns, at most the capacity. Call `make_room` first."""
        end = self.end
        rows: Any = end % self.capacity if count == 1 else np.arange(end, end + count) % self.capacity
        for name, block in blocks.items():
            self._columns[name][rows] = block[0] if count == 1 else block
        self._span[1] = end + count

    def gather(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return the rows of a column with these numbers: a copy ``[*ids.shape, ...]``."""
        taken: NDArray[Any] = self._columns[name][ids % self.capacity]
        return taken

    def held(self, key: str, ids: object) -> Ids:
        """Return row numbers of a caller, checked.

        Raises:
            DataError: If they are not one dimension of integers, or some rows are not held.
        """
        array = as_leaf(key, ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise DataError(key, f"shape {array.shape} and dtype {array.dtype}, not one dimension of integers")
        lost = array[(array < self.begin) | (array >= self.end)]
        if lost.size:
            raise DataError(
                key, f"{lost.size} that are not held, such as {lost[0]}; the held rows are {self.begin} to {self.end - 1}"
            )
        return array.astype(np.int64)
