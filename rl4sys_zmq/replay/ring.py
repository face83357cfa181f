"""A ring buffer of rows with consecutive numbers, in memory or in a folder. New rows overwrite the oldest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import DataError, StoreFileError
from rl4sys_zmq.replay.folder import StoreFolder
from rl4sys_zmq.replay.layout import ArraySpec, as_leaf, zeros

Ids = NDArray[np.int64]
_SPAN = "/span"


class RowRingBuffer:
    """A ring buffer of rows, with one array (*column*) for each value of a row. Threads must not use it at the same time.

    The rows have consecutive numbers from `begin` up to, but without, `end`. Row ``id`` is at index ``id % capacity`` of every
    column. `begin` increases before a row is overwritten, and `end` increases after a row is written, so that a process that is
    killed at any point leaves only complete rows in a folder.

    Args:
        capacity: Number of rows.
        folder: Folder for the columns. None: they are in memory.
    """

    def __init__(self, capacity: int, folder: StoreFolder | None = None) -> None:
        self.capacity = capacity
        self._folder = folder
        self._columns: dict[str, NDArray[Any]] = {}
        self._span = np.zeros(2, np.int64)

    @property
    def begin(self) -> int:
        """The number of the oldest row. Equal to `end` if there are no rows."""
        return int(self._span[0])

    @property
    def end(self) -> int:
        """The number that the next row will get."""
        return int(self._span[1])

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def allocate(self, layout: Mapping[str, ArraySpec], columns: Mapping[str, ArraySpec]) -> None:
        """Create the columns, or open those in the folder."""
        whole = {name: self._whole(leaf) for name, leaf in columns.items()}
        if self._folder is None:
            self._columns = {name: zeros(leaf) for name, leaf in whole.items()}
            return
        whole[_SPAN] = ArraySpec((2,), np.dtype("<i8"))
        opened = self._folder.create(layout, whole) if self._folder.layout is None else self._folder.columns(whole)
        self._span, self._columns = opened.pop(_SPAN), opened
        if not 0 <= self.begin <= self.end <= self.begin + self.capacity:
            raise StoreFileError(
                self._folder.path, "its counters are impossible: it is damaged; delete the folder to start again"
            )

    def _whole(self, leaf: ArraySpec) -> ArraySpec:
        """Return the shape and dtype of a column, from those of one of its rows."""
        return ArraySpec((self.capacity, *leaf.shape), leaf.dtype)

    def column(self, name: str) -> NDArray[Any]:
        """Return a read-only view of a column, ``[capacity, ...]``. Later writes to the ring change the view."""
        view = self._columns[name].view()
        view.flags.writeable = False
        return view

    def skip_to(self, number: int) -> None:
        """Drop all rows, and set the number that the next row will get."""
        self._span[:] = number

    def make_room(self, count: int) -> Ids:
        """Drop the oldest rows, so that `count` new rows fit. Return the numbers of the dropped rows."""
        begin = self.begin
        self._span[0] = max(begin, min(self.end, self.end + count - self.capacity))
        return np.arange(begin, self.begin)

    def append(self, blocks: Mapping[str, NDArray[Any]], count: int) -> None:
        """Write `count` new rows to all columns. The caller must call `make_room` with this `count` first.

        `blocks` has the values by column, each ``[count, ...]``. `count` must not exceed the capacity.
        """
        end = self.end
        first = end % self.capacity
        before = min(count, self.capacity - first)  # the rows before the end of the columns; the others are at their beginning
        for name, block in blocks.items():
            column = self._columns[name]
            column[first : first + before] = block[:before]
            if before < count:
                column[: count - before] = block[before:]
        self._span[1] = end + count

    def gather(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return a copy of the rows with these numbers in one column, ``[*ids.shape, ...]``."""
        return self.take(name, ids % self.capacity)

    def take(self, name: str, places: Ids) -> NDArray[Any]:
        """Return a copy of the rows at these indices of one column, ``[*places.shape, ...]``."""
        taken: NDArray[Any] = self._columns[name][places]
        return taken

    def held(self, key: str, ids: object) -> Ids:
        """Check that the buffer has the rows with these numbers, and return the numbers as int64."""
        array = as_leaf(key, ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise DataError(key, f"shape {array.shape} and dtype {array.dtype}, not one dimension of integers")
        lost = array[(array < self.begin) | (array >= self.end)]
        if lost.size:
            raise DataError(
                key, f"{lost.size} that are not held, such as {lost[0]}; the held rows are {self.begin} to {self.end - 1}"
            )
        return array.astype(np.int64)
