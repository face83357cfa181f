"""The storage for the observations of a segment (run of steps) that still grows.

It is one array, or several for Dict and Tuple spaces.
"""

from __future__ import annotations

import numpy as np

from rl4sys_zmq.values.observations import ObservationLeaves, leaves_of
from rl4sys_zmq.values.spaces import ObservationSpace
from rl4sys_zmq.values.trees import Tree

__all__ = ["TreeColumn", "new_column"]


class TreeColumn:
    """A list of observations of a Dict or Tuple space: one array ``[rows, *leaf]`` for each leaf, used like a single array.

    Reading an index or a slice returns a tree of views of these rows. Assigning to an index writes one observation.
    """

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
        """Return a copy of the observation in one row."""
        return self._leaves.unflatten(np.array(column[row]) for column in self._columns)

    def grow(self, rows: int) -> None:
        """Add `rows` rows to each array, at most as many as it has."""
        self._columns = [np.concatenate([column, np.empty_like(column[:rows])]) for column in self._columns]


def new_column(space: ObservationSpace, rows: int) -> Tree:
    """Return storage for `rows` observations: an array ``[rows, *obs]``, or a `TreeColumn` for a Dict or Tuple space."""
    if space.shape is None:
        return TreeColumn(leaves_of(space), rows)
    return np.empty((rows, *space.shape), dtype=space.dtype)
