"""The column of observations of a growing segment, for spaces that are trees of arrays."""

from __future__ import annotations

import numpy as np

from rl4sys_zmq.values.observations import ObservationLeaves, leaves_of
from rl4sys_zmq.values.spaces import ObservationSpace
from rl4sys_zmq.values.trees import Tree

__all__ = ["TreeColumn", "new_column"]


class TreeColumn:
    """A tree of columns that is used as one array: each index reads or writes a row, or a slice of rows, of all of them."""

    __slots__ = ("_columns", "_leaves")

    def __init__(self, leaves: ObservationLeaves, rows: int) -> None:
        self._leaves = leaves
        self._columns = [np.empty((rows, *space.shape), dtype=space.dtype) for space in leaves.spaces]

    def __setitem__(self, row: int, observation: Tree) -> None:
        for column, value in zip(self._columns, self._leaves.flatten(observation), strict=True):
            column[row] = value

    def __getitem__(self, index: int | slice) -> Tree:
        return self._leaves.unflatten(column[index] for column in self._columns)

    def copy_row(self, row: int) -> Tree:
        """Return a copy of one observation."""
        return self._leaves.unflatten(np.array(column[row]) for column in self._columns)

    def grow(self, rows: int) -> None:
        """Add this number of rows."""
        self._columns = [np.concatenate([column, np.empty_like(column[:rows])]) for column in self._columns]


def new_column(space: ObservationSpace, rows: int) -> Tree:
    """Return a column for observations of a space: an array if its elements are arrays, else a `TreeColumn`."""
    if space.shape is None:
        return TreeColumn(leaves_of(space), rows)
    return np.empty((rows, *space.shape), dtype=space.dtype)
