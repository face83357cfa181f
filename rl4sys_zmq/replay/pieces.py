"""The rows of a replay, with a state in pieces, of which a checkpoint writes only those that are new since the last one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.frames import SHARED_BYTES, FramePool, Make
from rl4sys_zmq.replay.layout import ArraySpec, zeros
from rl4sys_zmq.replay.ring import Ids, RowRingBuffer
from rl4sys_zmq.replay.space_columns import MASKS

_PIECES = 64
"""Pieces of a full ring. The newest piece is usually incomplete, and is written again by each checkpoint."""
_AT_ONCE = 1024
"""Largest number of rows that `ReplayRows.load` copies at once."""
_TURN = 64
"""Largest number of rows that are written to one shared column before the next one."""
_FRAMES, _SLOTS = "frames/", "slots/"


@dataclass(frozen=True, slots=True, eq=False)
class StatePiece:
    """A part of an algorithm's state that never changes, so that successive checkpoints can share one file of it.

    Attributes:
        name: Digest of the arrays, 32 hexadecimal digits.
        arrays: The arrays by name; None if the caller of `state` has this piece already.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]] | None


def make_piece(arrays: Mapping[str, NDArray[Any]]) -> StatePiece:
    digest = xxhash.xxh3_128()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return StatePiece(digest.hexdigest(), arrays)


class ReplayRows(RowRingBuffer):
    """The rows of a replay: a ring buffer whose large columns share equal values, with a state in pieces of equal size.

    Only the newest piece can be incomplete. Columns whose names begin with ``/`` are not part of the state. A column of masks is
    added once a row has a mask.

    Args:
        capacity: Number of rows.
        columns: The shape and dtype of one row of each column.
        observations: The shape and dtype of each array of an observation, by the names of its columns. Equal large values
            in these columns, such as images, and equal frames in them, are stored once.

    Attributes:
        make: Function that creates an array of zeros. It can be replaced before the columns are created.
    """

    def __init__(
        self, capacity: int, columns: Mapping[str, ArraySpec], observations: Mapping[tuple[str, ...], ArraySpec] | None = None
    ) -> None:
        super().__init__(capacity)
        self.make: Make = zeros
        self._plain = dict(columns)
        self._large: dict[tuple[str, ...], FramePool] = {}
        for names, leaf in (observations or {}).items():
            if leaf.nbytes >= SHARED_BYTES:
                self._large[names] = FramePool(capacity, leaf, lambda block: self.make(block))  # noqa: PLW0108 - it can be replaced
            else:
                self._plain |= dict.fromkeys(names, leaf)
        # For a column of large values, the pool of frames to whose slots its rows refer.
        self._pools = {name: pool for names, pool in self._large.items() for name in names}
        self._size = -(-capacity // _PIECES)
        self._known: dict[int, tuple[int, str]] = {}  # for a complete piece, its first row and its name when it was last copied

    @property
    def nbytes(self) -> int:
        """The size of a full ring in bytes, without masks."""
        row = sum(leaf.nbytes for leaf in self._plain.values())
        row += sum(8 * pool.frames_per_value for pool in self._pools.values())
        return self.capacity * row + sum(pool.nbytes for pool in self._large.values())

    @property
    def frames(self) -> int:
        """The number of frames of large observations, each of which can belong to several rows."""
        return sum(pool.used for pool in self._large.values())

    def create(self, *, reserve: bool = False) -> None:
        """Create the columns, unless they exist; with `reserve`, also the arrays of shared ones."""
        if self._columns:
            return
        self._columns = {name: self.make(self._whole(leaf)) for name, leaf in self._plain.items()}
        for name, pool in self._pools.items():
            self._columns[name] = np.full((self.capacity, pool.frames_per_value), -1, np.int64)
            if reserve:
                pool.reserve()

    def write(self, blocks: Mapping[str, NDArray[Any]], rows: int, masks: NDArray[np.bool_] | None = None) -> None:
        """Write new rows over the oldest ones, with masks ``[rows, n]``.

        A row that forbids every action, because no action was requested there, is stored as one that allows every action.
        """
        self.create()
        if masks is not None:
            self._add_masks(masks)
            blocks = {**blocks, MASKS: masks | ~masks.any(axis=1, keepdims=True)}
        elif MASKS in self:
            blocks = {**blocks, MASKS: np.ones((rows, self._columns[MASKS].shape[1]), np.bool_)}
        self.make_room(rows)
        self.append(blocks, rows)

    def append(self, blocks: Mapping[str, NDArray[Any]], count: int) -> None:
        if self._pools:
            end, before = self.end, min(count, self.capacity - self.end % self.capacity)
            for low, high in ((0, before), (before, count)):
                # Equal frames are only found among recently written frames, so the columns take turns after few rows.
                for start in range(low, high, _TURN):
                    stop, first = min(start + _TURN, high), (end + start) % self.capacity
                    for name, pool in self._pools.items():
                        self._refer(name, slice(first, first + stop - start), pool.put(blocks[name][start:stop]))
        super().append({name: block for name, block in blocks.items() if name not in self._pools}, count)

    def _refer(self, name: str, places: Any, slots: NDArray[np.int64]) -> None:
        """Write the numbers of slots into rows of a column of large values, whose values are in these slots.

        The caller has already counted these references. Those that the rows had before are released.
        """
        old = self._columns[name][places].copy()
        self._columns[name][places] = slots
        self._pools[name].release(old[old >= 0])

    def skip_to(self, number: int) -> None:
        super().skip_to(number)
        self._known = {}

    def drop_before(self, number: int) -> None:
        self._span[0] = max(self.begin, min(number, self.end))

    def keep_only(self, ids: Ids) -> None:
        """Drop all rows but these, which get new numbers. No column may be one that stores equal values once."""
        blocks = {name: self.gather(name, ids) for name in self._columns}
        self.skip_to(self.end)
        self.append(blocks, len(ids))

    def numbers(self, places: Ids) -> Ids:
        """Return the numbers of the rows at these indices of the columns."""
        begin = self.begin
        return begin + (places - begin) % self.capacity

    def take(self, name: str, places: Ids) -> NDArray[Any]:
        taken, pool = super().take(name, places), self._pools.get(name)
        return taken if pool is None else pool.join(pool.gather(taken))

    def overwrite(self, places: Ids, sources: Ids) -> None:
        """Copy the rows at the indices `sources` of all columns to the indices `places`."""
        for name, column in self._columns.items():
            if name in self._pools:
                self._pools[name].share(column[sources])
                self._refer(name, places, column[sources])
            else:
                column[places] = column[sources]
        for number in np.unique(self.numbers(places) // self._size):
            self._known.pop(int(number), None)

    def state(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """Return all rows as pieces, and the numbers `begin` and `end`. A piece whose name is in `stored` has no arrays."""
        begin, end = self.begin, self.end
        self._known = {number: known for number, known in self._known.items() if (number + 1) * self._size > begin}
        numbers = range(begin // self._size, -(-end // self._size)) if begin < end else ()
        pieces = [self._piece(number, begin, end, stored) for number in numbers]
        return {"begin": begin, "end": end, "pieces": pieces}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, in which all pieces have arrays."""
        begin, end = int(state["begin"]), int(state["end"])
        if not 0 <= begin <= end <= begin + self.capacity:
            raise ConfigError(
                f"the replay state has {end - begin} rows; expected at most {self.capacity}, its buffer_size", key="buffer_size"
            )
        self.create()
        for part in state["pieces"]:
            if MASKS in part["piece"].arrays:
                self._add_masks(part["piece"].arrays[MASKS])
        self.skip_to(begin)
        for part in state["pieces"]:
            self._append_piece(int(part["first"]), int(part["rows"]), part["piece"])
        if self.end != end:
            raise ConfigError(f"the replay state has rows up to {self.end}; expected {end}", key="buffer_size")

    def _add_masks(self, masks: NDArray[np.bool_]) -> None:
        """Create the column of masks, in which all earlier rows allow every action, unless it exists."""
        if MASKS not in self:
            self._columns[MASKS] = self.make(self._whole(ArraySpec(masks.shape[1:], np.dtype(np.bool_))))
            self._columns[MASKS][...] = True

    def _piece(self, number: int, begin: int, end: int, stored: Collection[str]) -> dict[str, Any]:
        stop = min((number + 1) * self._size, end)
        if number in self._known:
            first, name = self._known[number]
            if name in stored:
                return {"first": first, "rows": stop - first, "piece": StatePiece(name, None)}
        first = max(number * self._size, begin)
        piece = make_piece(self._copy(np.arange(first, stop)))
        if stop == (number + 1) * self._size:
            self._known[number] = (first, piece.name)
        return {"first": first, "rows": stop - first, "piece": piece}

    def _copy(self, ids: Ids) -> dict[str, NDArray[Any]]:
        """Return the arrays of a piece: plain columns, and for large values their different frames and each row's indices."""
        plain = self._columns.keys() - self._pools.keys()
        arrays = {name: self.gather(name, ids) for name in plain if not name.startswith("/")}
        for names, pool in self._large.items():
            used = np.stack([self._columns[name][ids % self.capacity] for name in names])
            slots, first, inverse = np.unique(used, return_index=True, return_inverse=True)
            order = np.argsort(first)
            indices = np.empty(len(order), np.int32)
            indices[order] = np.arange(len(order))
            arrays[_FRAMES + names[0]] = pool.gather(slots[order])
            rows = indices[inverse.reshape(used.shape)]
            arrays |= {_SLOTS + name: block for name, block in zip(names, rows, strict=True)}
        return arrays

    def _append_piece(self, first: int, rows: int, piece: StatePiece) -> None:
        arrays, begin = dict(piece.arrays or {}), self.begin
        skipped = self.end - first  # rows of a piece that were overwritten after it was written
        if not 0 <= skipped < rows:
            problem = f"a piece of the replay state has the rows {first} to {first + rows - 1}; expected {self.end}"
            raise ConfigError(problem, key="buffer_size")
        self._check(rows, arrays)
        plain = self._columns.keys() - self._pools.keys()
        for name in plain - arrays.keys():
            column = self._columns[name]
            arrays[name] = np.full((rows, *column.shape[1:]), True if name == MASKS else -1, column.dtype)
        for start in range(skipped, rows, _AT_ONCE):
            stop = min(start + _AT_ONCE, rows)
            blocks = {name: arrays[name][start:stop] for name in plain}
            for names, pool in self._large.items():
                frames = arrays[_FRAMES + names[0]]
                blocks |= {name: pool.join(frames[arrays[_SLOTS + name][start:stop]]) for name in names}
            self.append(blocks, stop - start)
        number = first // self._size
        if first + rows == (number + 1) * self._size and first <= max(number * self._size, begin):
            self._known[number] = (first, piece.name)

    def _check(self, rows: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise `ConfigError` if the arrays of a piece of `rows` rows are not those of this ring."""
        for name, column in self._columns.items():
            if name.startswith("/") or (name == MASKS and name not in arrays):
                continue
            stored, shape = _SLOTS + name if name in self._pools else name, (rows, *column.shape[1:])
            actual = arrays[stored].shape if stored in arrays else None
            if actual != shape:
                raise ConfigError(f"{name} in the replay state has shape {actual}; expected {shape}", key="buffer_size")
