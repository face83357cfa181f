"""Sums of ranges in a binary tree, to draw in proportion to masses that change (Schaul et al. 2015, appendix B.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumTree"]


class SumTree:
    """Masses of `size` slots, at first 0. Every call works on many slots at once, in O(log size) numpy steps.

    Node ``i`` has the children ``2 i`` and ``2 i + 1``, node 1 is the root, and the leaves are the slots. A node is always
    computed from its children anew, so rounding doesn't add up over time.
    """

    def __init__(self, size: int) -> None:
        self._levels = max(1, (size - 1).bit_length())
        self._leaves = 1 << self._levels
        self._nodes = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._nodes[1])

    def __getitem__(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """The masses of some slots."""
        masses: NDArray[np.float64] = self._nodes[self._leaves + slots]
        return masses

    def set(self, slots: NDArray[np.int64], masses: NDArray[np.float64] | float) -> None:
        """Sets masses, which are finite and not negative; of a slot that is named twice, the last one holds."""
        if not slots.size:
            return
        nodes = self._leaves + slots
        self._nodes[nodes] = masses
        for _ in range(self._levels):
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """For each mark in ``[0, total)``, the slot in whose stretch of the masses, laid end to end, it falls.

        A slot of mass 0 is never found while there is another.
        """
        nodes = np.ones(marks.shape, np.int64)
        rest = marks.astype(np.float64)
        for _ in range(self._levels):
            left = self._nodes[2 * nodes]
            right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0)  # rounding may leave a rest beyond the last mass
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self._leaves
