"""The storage for the observations or the actions of a segment (run of steps) that still grows.

It is one array, or several for Dict and Tuple spaces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4sys_zmq.values.observations import SpaceLeaves, leaves_of
from rl4sys_zmq.values.spaces import ActionSpace, ObservationSpace
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.layout import action_dtype


class TreeColumn:
    """A list of elements of a Dict or Tuple space: one array ``[rows, *leaf]`` for each leaf, used like a single array.

    Reading an index or a slice returns a tree of views of these rows. Assigning to an index writes one element.
    """

    __slots__ = ("_columns", "_leaves")

    def __init__(self, leaves: SpaceLeaves, rows: int, dtypes: Sequence[str]) -> None:
        self._leaves = leaves
        self._columns = [np.empty((rows, *space.shape), dtype=dtype) for space, dtype in zip(leaves.spaces, dtypes, strict=True)]

    def __setitem__(self, row: int, element: Tree) -> None:
        for column, value in zip(self._columns, self._leaves.flatten(element), strict=True):
            column[row] = value

    def __getitem__(self, index: int | slice) -> Tree:
        return self._leaves.unflatten(column[index] for column in self._columns)

    def copy_row(self, row: int) -> Tree:
        """Return a copy of the element in one row."""
        return self._leaves.unflatten(np.array(column[row]) for column in self._columns)

    def grow(self, rows: int) -> None:
        """Add `rows` rows to each array, at most as many as it has."""
        self._columns = [np.concatenate([column, np.empty_like(column[:rows])]) for column in self._columns]


def new_column(space: ObservationSpace, rows: int) -> Tree:
    """Return storage for `rows` observations: an array ``[rows, *obs]``, or a `TreeColumn` for a Dict or Tuple space."""
    if space.shape is None:
        leaves = leaves_of(space)
        return TreeColumn(leaves, rows, [leaf.dtype for leaf in leaves.spaces])
    return np.empty((rows, *space.shape), dtype=space.dtype)


def new_action_column(space: ActionSpace, rows: int) -> Tree:
    """Return storage for `rows` raw actions, in the dtypes of segments: an array, or a `TreeColumn` for a Dict or Tuple space."""
    if space.shape is None:
        leaves = leaves_of(space)
        return TreeColumn(leaves, rows, [action_dtype(leaf) for leaf in leaves.spaces])
    return np.empty((rows, *space.shape), dtype=action_dtype(space))
