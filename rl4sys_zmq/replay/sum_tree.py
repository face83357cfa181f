"""A sum tree, for random draws in proportion to changing weights (Schaul et al. 2016, appendix B.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumTree"]

_BITS = 4
_CHILDREN = 1 << _BITS
"""Number of children of a node. With 16, a call for 64 slots takes half the time that it takes with two."""
_FEW = 256
"""Number of nodes up to which a node that occurs several times is computed several times, which is faster than a sort."""


class SumTree:
    """A tree of sums, to draw one of `size` indices (slots) at random in proportion to their masses (weights).

    All masses are 0 at the beginning. Every call handles many slots at once, in O(log size) numpy operations.

    Each level of the tree is an array. Node ``i`` of a level is the sum of the nodes ``16 i`` to ``16 i + 15`` of the next level.
    The last level has the masses. A node is always recomputed from its children, so rounding errors do not accumulate, and the
    sums depend only on the masses.
    """

    def __init__(self, size: int) -> None:
        levels = []
        nodes = size
        while not levels or nodes > 1:
            nodes = -(-nodes // _CHILDREN)
            levels.append(np.zeros((nodes, _CHILDREN)))
        self._levels = levels[::-1]
        self._masses = levels[0].reshape(-1)
        self._size = size

    @property
    def total(self) -> float:
        """The sum of all masses (weights)."""
        return float(self._levels[0].sum())

    def masses(self) -> NDArray[np.float64]:
        """Return a copy of the masses (weights) of all slots, ``[size]``."""
        return self._masses[: self._size].copy()

    def __getitem__(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the masses (weights) of the given slots (indices)."""
        masses: NDArray[np.float64] = self._masses[slots]
        return masses

    def set(self, slots: NDArray[np.int64], masses: NDArray[np.float64] | float) -> None:
        """Set the masses (weights) of slots (indices).

        Masses must be finite and at least 0. If a slot is repeated, its last mass is used.
        """
        if not slots.size:
            return
        self._masses[slots] = masses
        nodes = slots
        for upper, lower in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            nodes = nodes >> _BITS if len(nodes) <= _FEW else np.unique(nodes >> _BITS)
            upper.reshape(-1)[nodes] = lower[nodes].sum(axis=1)

    def find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the slot (index) for each of the given numbers in ``[0, total)``, to draw slots by their masses (weights).

        The slots divide the range ``[0, total)`` in order; the part of a slot is as long as its mass. The result is the slot
        whose part contains the number. A slot of mass 0 is never returned, unless all masses are 0.
        """
        nodes = np.zeros(marks.shape, np.int64)
        rest = marks.astype(np.float64)
        rows = np.arange(len(marks))
        for level in self._levels:
            children = level[nodes]
            ends = children.cumsum(axis=1)
            last = _CHILDREN - 1 - (children[:, ::-1] > 0).argmax(axis=1)  # rounding can leave a rest beyond the last mass
            chosen = np.minimum((ends <= rest[:, None]).sum(axis=1), last)
            rest = np.maximum(rest - (ends[rows, chosen] - children[rows, chosen]), 0.0)
            nodes = nodes * _CHILDREN + chosen
        return nodes
