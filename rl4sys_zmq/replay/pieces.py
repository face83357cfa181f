"""The state of a ring buffer in pieces, of which a checkpoint writes only those that are new since the last one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.replay.ring import Ids, RowRingBuffer

_PIECES = 64
"""Pieces of a full ring. The newest piece is usually incomplete, and is written again by each checkpoint."""
_AT_ONCE = 1024
"""Largest number of rows that `RowPieces.load` copies at once."""
_FRAMES, _SLOTS = "frames/", "slots/"


@dataclass(frozen=True, slots=True, eq=False)
class StatePiece:
    """A part of an algorithm's state that never changes, so that a checkpoint can share its file with the last checkpoint.

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


class RowPieces:
    """The division of a ring buffer's rows into pieces of equal size, for checkpoints. Only the newest piece can be incomplete.

    Columns whose names begin with ``/`` are not part of the state. A piece has equal large values once (`RowRingBuffer.share`).
    """

    def __init__(self, ring: RowRingBuffer) -> None:
        self._ring = ring
        self._size = -(-ring.capacity // _PIECES)
        self._known: dict[int, tuple[int, str]] = {}  # for a complete piece, its first row and its name when it was last copied

    def state(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """Return all rows as pieces, and the numbers of the rows. A piece whose name is in `stored` has no arrays."""
        begin, end = self._ring.begin, self._ring.end
        self._known = {number: known for number, known in self._known.items() if (number + 1) * self._size > begin}
        numbers = range(begin // self._size, -(-end // self._size)) if begin < end else ()
        pieces = [self._piece(number, begin, end, stored) for number in numbers]
        return {"begin": begin, "end": end, "pieces": pieces}

    def load(self, state: Mapping[str, Any], fill: Mapping[str, object]) -> None:
        """Restore the result of `state`, in which all pieces have arrays. `fill` has values for missing columns."""
        ring, begin, end = self._ring, int(state["begin"]), int(state["end"])
        if not 0 <= begin <= end <= begin + ring.capacity:
            raise ConfigError(
                f"the replay state has {end - begin} rows; expected at most {ring.capacity}, its buffer_size", key="buffer_size"
            )
        for part in state["pieces"]:
            for name in fill.keys() & part["piece"].arrays.keys() - ring.specs.keys():
                column = part["piece"].arrays[name]
                ring.add(name, ArraySpec(column.shape[1:], column.dtype), fill[name])
        ring.skip_to(begin)
        self._known = {}
        for part in state["pieces"]:
            self._append(int(part["first"]), int(part["rows"]), part["piece"], fill)
        if ring.end != end:
            raise ConfigError(f"the replay state has rows up to {ring.end}; expected {end}", key="buffer_size")

    def changed(self, places: Ids) -> None:
        """Note that rows at these indices of the ring were overwritten, so that their pieces are copied again."""
        for number in np.unique(self._ring.numbers(places) // self._size):
            self._known.pop(int(number), None)

    def clear(self) -> None:
        """Note that the ring was emptied."""
        self._known = {}

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
        ring = self._ring
        shared = ring.shared_names
        arrays = {name: ring.gather(name, ids) for name in ring.specs if not name.startswith("/") and name not in shared}
        for names in set(shared.values()):
            frames, slots = ring.frames(names, ids)
            arrays[_FRAMES + names[0]] = frames
            arrays |= {_SLOTS + name: block for name, block in zip(names, slots, strict=True)}
        return arrays

    def _append(self, first: int, rows: int, piece: StatePiece, fill: Mapping[str, object]) -> None:
        ring, arrays = self._ring, dict(piece.arrays or {})
        begin = ring.begin
        skipped = ring.end - first  # rows of a piece that were overwritten after it was written
        if not 0 <= skipped < rows:
            problem = f"a piece of the replay state has the rows {first} to {first + rows - 1}; expected {ring.end}"
            raise ConfigError(problem, key="buffer_size")
        self._check(rows, arrays, fill)
        for start in range(skipped, rows, _AT_ONCE):
            stop = min(start + _AT_ONCE, rows)
            blocks = {name: self._block(name, arrays, start, stop, fill.get(name, -1)) for name in ring.specs}
            ring.append(blocks, stop - start)
        number = first // self._size
        if first + rows == (number + 1) * self._size and first <= max(number * self._size, begin):
            self._known[number] = (first, piece.name)

    def _block(self, name: str, arrays: Mapping[str, NDArray[Any]], start: int, stop: int, fill: object) -> NDArray[Any]:
        """Return one column's values for the rows `start` to `stop` of a piece."""
        ring = self._ring
        if name in ring.shared_names:
            frames = arrays[_FRAMES + ring.shared_names[name][0]]
            return ring.shared_column(name).join(frames[arrays[_SLOTS + name][start:stop]])
        if name in arrays:
            return arrays[name][start:stop]
        leaf = ring.specs[name]
        return np.full((stop - start, *leaf.shape), fill, leaf.dtype)

    def _check(self, rows: int, arrays: Mapping[str, NDArray[Any]], fill: Mapping[str, object]) -> None:
        """Raise `ConfigError` if the arrays of a piece of `rows` rows are not those of this ring."""
        for name, leaf in self._ring.specs.items():
            if name.startswith("/") or (name in fill and name not in arrays):
                continue
            shared = self._ring.shared_names.get(name)
            stored = _SLOTS + name if shared else name
            actual = arrays[stored].shape if stored in arrays else None
            expected = (rows, self._ring.shared_column(name).frames_per_value) if shared else (rows, *leaf.shape)
            if actual != expected:
                raise ConfigError(f"{name} in the replay state has shape {actual}; expected {expected}", key="buffer_size")
