"""A sum tree, for random draws in proportion to changing weights (Schaul et al. 2015, appendix B.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumTree"]


class SumTree:
    """A binary tree of sums, to draw one of `size` indices (slots) at random in proportion to their masses (weights).

    All masses are 0 at the beginning.

    Every call handles many slots at once, in O(log size) numpy operations.

    Node ``i`` has the children ``2 i`` and ``2 i + 1``, node 1 is the root, and the leaves are the slots. A node is always
    recomputed from its children, so rounding errors do not accumulate.
    """

    def __init__(self, size: int) -> None:
        self._levels = max(1, (size - 1).bit_length())
        self._leaves = 1 << self._levels
        self._nodes = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all masses (weights)."""
        return float(self._nodes[1])

    def __getitem__(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the masses (weights) of the given slots (indices)."""
        masses: NDArray[np.float64] = self._nodes[self._leaves + slots]
        return masses

    def set(self, slots: NDArray[np.int64], masses: NDArray[np.float64] | float) -> None:
        """Set the masses (weights) of slots (indices).

        Masses must be finite and at least 0. If a slot is repeated, its last mass is used.
        """
        if not slots.size:
            return
        nodes = self._leaves + slots
        self._nodes[nodes] = masses
        for _ in range(self._levels):
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the slot (index) for each of the given numbers in ``[0, total)``, to draw slots by their masses (weights).

        The slots divide the range ``[0, total)`` in order; the part of a slot is as long as its mass. The result is the slot
        whose part contains the number. A slot of mass 0 is never returned, unless all masses are 0.
        """
        nodes = np.ones(marks.shape, np.int64)
        rest = marks.astype(np.float64)
        for _ in range(self._levels):
            left = self._nodes[2 * nodes]
            right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0)  # rounding can leave a rest beyond the last mass
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self._leaves
