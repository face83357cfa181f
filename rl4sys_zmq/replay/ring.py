"""A ring buffer of rows with consecutive numbers, in memory or in a folder. New rows overwrite the oldest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import DataError, StoreFileError
from rl4sys_zmq.replay.folder import StoreFolder
from rl4sys_zmq.replay.frames import FrameColumn, Make, frame_pool
from rl4sys_zmq.replay.layout import ArraySpec, as_leaf, zeros

Ids = NDArray[np.int64]
_SPAN = "/span"
_TURN = 64
"""Largest number of rows that are written to one shared column before the next one."""


class RowRingBuffer:
    """A ring buffer of rows, with one array (*column*) for each value of a row. Threads must not use it at the same time.

    The rows have consecutive numbers from `begin` up to, but without, `end`. Row ``id`` is at index ``id % capacity`` of every
    column. `begin` increases before a row is overwritten, and `end` increases after a row is written, so that a process that is
    killed at any point leaves only complete rows in a folder.

    Args:
        capacity: Number of rows.
        folder: Folder for the columns. None: the function `make` creates the columns.

    Attributes:
        make: Function that creates an array of zeros. It can be replaced before the columns are created.
        shared_names: For each column that `share` has created, the names of all columns of that call.
    """

    def __init__(self, capacity: int, folder: StoreFolder | None = None) -> None:
        self.capacity = capacity
        self._folder = folder
        self.make: Make = zeros
        self._columns: dict[str, NDArray[Any]] = {}
        self._shared: dict[str, FrameColumn] = {}
        self.shared_names: dict[str, tuple[str, ...]] = {}
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
        return name in self._columns or name in self._shared

    def allocate(self, layout: Mapping[str, ArraySpec], columns: Mapping[str, ArraySpec]) -> None:
        """Create the columns, or open those in the folder."""
        whole = {name: ArraySpec((self.capacity, *leaf.shape), leaf.dtype) for name, leaf in columns.items()}
        if self._folder is None:
            self._columns = {name: self.make(leaf) for name, leaf in whole.items()}
            return
        whole[_SPAN] = ArraySpec((2,), np.dtype("<i8"))
        opened = self._folder.create(layout, whole) if self._folder.layout is None else self._folder.columns(whole)
        self._span, self._columns = opened.pop(_SPAN), opened
        if not 0 <= self.begin <= self.end <= self.begin + self.capacity:
            raise StoreFileError(
                self._folder.path, "its counters are impossible: it is damaged; delete the folder to start again"
            )

    def column(self, name: str) -> NDArray[Any]:
        """Return a read-only view of a column, ``[capacity, ...]``. Later writes to the ring change the view."""
        view = self._columns[name].view()
        view.flags.writeable = False
        return view

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """The shape and dtype of one row of each column."""
        columns = {name: ArraySpec(column.shape[1:], column.dtype) for name, column in self._columns.items()}
        return columns | {name: column.leaf for name, column in self._shared.items()}

    def add(self, name: str, leaf: ArraySpec, fill: object) -> None:
        """Create one more column, in which every row has the value `fill`. The ring must have no folder."""
        self._columns[name] = self.make(ArraySpec((self.capacity, *leaf.shape), leaf.dtype))
        self._columns[name][...] = fill

    def share(self, names: Iterable[str], leaf: ArraySpec) -> None:
        """Create columns for large values, such as images. Equal values, and equal frames in them, are stored once."""
        pool, group = frame_pool(self.capacity, leaf, self.make), tuple(names)
        self._shared |= {name: FrameColumn(self.capacity, leaf, pool) for name in group}
        self.shared_names |= dict.fromkeys(group, group)

    @property
    def stored_frames(self) -> int:
        """The number of frames that all shared columns together store."""
        return sum(self._shared[group[0]].pool.used for group in set(self.shared_names.values()))

    def reserve(self) -> None:
        """Create the arrays of shared columns now. The ring must be empty."""
        for column in self._shared.values():
            column.pool.reserve()

    def frames(self, names: tuple[str, ...], ids: Ids) -> tuple[NDArray[Any], list[NDArray[np.int32]]]:
        """Return the different frames of rows, and each row's indices among them. `names` are the columns of one `share` call."""
        columns = [self._shared[name] for name in names]
        used = np.stack([c.slots(ids % self.capacity) for c in columns])
        slots, first, inverse = np.unique(used, return_index=True, return_inverse=True)
        order = np.argsort(first)
        indices = np.empty(len(order), np.int32)
        indices[order] = np.arange(len(order))
        return columns[0].pool.gather(slots[order]), list(indices[inverse.reshape(used.shape)])

    def shared_column(self, name: str) -> FrameColumn:
        """Return a column that `share` has created."""
        return self._shared[name]

    def skip_to(self, number: int) -> None:
        """Drop all rows, and set the number that the next row will get."""
        self._span[:] = number

    def make_room(self, count: int) -> Ids:
        """Drop the oldest rows, so that `count` new rows fit. Return the numbers of the dropped rows."""
        begin = self.begin
        self._span[0] = max(begin, min(self.end, self.end + count - self.capacity))
        return np.arange(begin, self.begin)

    def drop_before(self, number: int) -> None:
        self._span[0] = max(self.begin, min(number, self.end))

    def append(self, blocks: Mapping[str, NDArray[Any]], count: int) -> None:
        """Write `count` rows to all columns, after `make_room`. `count` must not exceed the capacity."""
        end = self.end
        first = end % self.capacity
        before = min(count, self.capacity - first)  # the rows before the end of the columns; the others are at their beginning
        for name, block in blocks.items():
            if name not in self._shared:
                column = self._columns[name]
                column[first : first + before] = block[:before]
                if before < count:
                    column[: count - before] = block[before:]
        for name, start, stop in self._shared_pieces(before, count):
            self._shared[name].write((end + start) % self.capacity, blocks[name][start:stop])
        self._span[1] = end + count

    def gather(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return a copy of the rows with these numbers in one column, ``[*ids.shape, ...]``."""
        return self.take(name, ids % self.capacity)

    def numbers(self, places: Ids) -> Ids:
        """Return the numbers of the rows at these indices of the columns."""
        begin = self.begin
        return begin + (places - begin) % self.capacity

    def take(self, name: str, places: Ids) -> NDArray[Any]:
        """Return a copy of the rows at these indices of one column, ``[*places.shape, ...]``."""
        if name in self._shared:
            return self._shared[name].take(places)
        taken: NDArray[Any] = self._columns[name][places]
        return taken

    def overwrite(self, places: Ids, sources: Ids) -> None:
        """Copy the rows at the indices `sources` of all columns to the indices `places`."""
        for column in self._columns.values():
            column[places] = column[sources]
        for shared in self._shared.values():
            shared.overwrite(places, sources)

    def _shared_pieces(self, before: int, count: int) -> Iterator[tuple[str, int, int]]:
        """Yield shared columns and ranges of `count` new rows to write. The first `before` rows fit before the end of a column.

        Equal frames are only found among recently written frames, so the columns take turns after few rows.
        """
        if self._shared:
            for low, high in ((0, before), (before, count)):
                for start in range(low, high, _TURN):
                    yield from ((name, start, min(start + _TURN, high)) for name in self._shared)

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
