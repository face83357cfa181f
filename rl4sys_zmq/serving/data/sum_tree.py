"""A binary tree of sums, for sampling in proportion to masses that change (Schaul et al. 2015, appendix B.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumTree"]


class SumTree:
    """The masses of `size` slots, initially 0. Every call handles many slots at once, in O(log size) numpy steps.

    Node ``i`` has the children ``2 i`` and ``2 i + 1``, node 1 is the root, and the leaves are the slots. A node is always
    recomputed from its children, so rounding errors do not accumulate.
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
        """Return the masses of some slots."""
        masses: NDArray[np.float64] = self._nodes[self._leaves + slots]
        return masses

    def set(self, slots: NDArray[np.int64], masses: NDArray[np.float64] | float) -> None:
        """Set masses, which must be finite and not negative. If a slot is repeated, its last mass is used."""
        if not slots.size:
            return
        nodes = self._leaves + slots
        self._nodes[nodes] = masses
        for _ in range(self._levels):
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return for each mark in ``[0, total)`` its slot, with the masses laid end to end.

        A slot of mass 0 is never found while another slot has mass.
        """
        nodes = np.ones(marks.shape, np.int64)
        rest = marks.astype(np.float64)
        for _ in range(self._levels):
            left = self._nodes[2 * nodes]
            right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0)  # rounding can leave a rest beyond the last mass
            rest = np.where(right, rest - left, rest)
            nodes = 2 * nodes + right
        return nodes - self._leaves
