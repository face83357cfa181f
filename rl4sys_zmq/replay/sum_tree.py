"""Random draws in proportion to changing weights (Schaul et al. 2016, appendix B.2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CHILDREN = 64
"""Children of a node. A wide tree needs few numpy calls, which take most of the time of small batches."""
_TOP = 4096
"""Largest number of nodes in the first level, which has no parents."""


class SumTree:
    """A tree of sums, to draw one of `size` indices (*slots*) in proportion to their masses, which are 0 at the beginning.

    Each level of the tree is an array. Node ``i`` of a level is the sum of the nodes ``64 i`` to ``64 i + 63`` of the next
    level. The last level has the masses. A node is always recomputed from its children, so rounding errors do not accumulate,
    and the sums depend only on the masses.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        nodes = -(-size // _CHILDREN)
        self._below = [np.zeros((nodes, _CHILDREN))]  # the levels below the first, each ``[nodes above, 64]``
        self._masses = self._below[0].reshape(-1)
        while nodes > _TOP:
            nodes = -(-nodes // _CHILDREN)
            self._below.insert(0, np.zeros((nodes, _CHILDREN)))
        self._top = np.zeros(nodes)
        self._ends: NDArray[np.float64] | None = None  # cumulated sums of the first level, while they are valid

    @property
    def total(self) -> float:
        return float(self._cumulated()[-1])

    def masses(self) -> NDArray[np.float64]:
        """Return a copy of the masses of all slots, ``[size]``."""
        return self._masses[: self._size].copy()

    def __getitem__(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        masses: NDArray[np.float64] = self._masses[slots]
        return masses

    def set(self, slots: NDArray[np.int64], masses: NDArray[np.float64] | float) -> None:
        """Set the masses of slots, finite and at least 0. If a slot is repeated, its last mass is used."""
        if not slots.size:
            return
        self._ends = None
        self._masses[slots] = masses
        nodes = slots
        for level in range(len(self._below) - 1, -1, -1):
            nodes = np.unique(nodes // _CHILDREN)
            above = self._below[level - 1].reshape(-1) if level else self._top
            above[nodes] = self._below[level][nodes].sum(axis=1)

    def find(self, marks: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the slot for each of these numbers in ``[0, total)``, which the slots divide in order, by their masses.

        A slot of mass 0 is never returned, unless all masses are 0.
        """
        ends = self._cumulated()
        nodes: NDArray[np.int64] = np.minimum(np.searchsorted(ends, marks, side="right"), _last_positive(self._top[None])[0])
        rest = np.maximum(marks - (ends[nodes] - self._top[nodes]), 0.0)
        rows = np.arange(len(marks))
        for level in self._below:
            children = level[nodes]
            sums = children.cumsum(axis=1)
            chosen = (sums > rest[:, None]).argmax(axis=1)
            beyond = np.flatnonzero(rest >= sums[:, -1])  # rounding can leave a rest beyond the last mass
            if beyond.size:
                chosen[beyond] = _last_positive(children[beyond])
            rest = np.maximum(rest - (sums[rows, chosen] - children[rows, chosen]), 0.0)
            nodes = nodes * _CHILDREN + chosen
        return nodes

    def _cumulated(self) -> NDArray[np.float64]:
        if self._ends is None:
            self._ends = self._top.cumsum()
        return self._ends


def _last_positive(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the last positive number in each row; the last index if there is none."""
    last: NDArray[np.int64] = rows.shape[1] - 1 - (rows[:, ::-1] > 0).argmax(axis=1)
    return last
