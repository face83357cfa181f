"""Prioritized sampling of the rows of a buffer (Schaul et al. 2015, the proportional variant)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import DataError
from rl4sys_zmq.replay.ring import Ids, RowRingBuffer
from rl4sys_zmq.replay.spans import DrawableSteps
from rl4sys_zmq.replay.sum_tree import SumTree

__all__ = ["RowPriorities"]

_ROUNDS = 8
"""Number of attempts to draw rows (steps) at random until enough of them can be sampled.

After these, the missing rows are drawn from a list of all rows that can be sampled.
"""
_LEAST = 1e-300
"""Smallest mass (weight in random draws) of a row. It is above 0, so that every row can be drawn."""


class RowPriorities:
    """The priorities of the rows (steps) in a buffer, and random draws of rows by priority.

    A row is drawn in proportion to its *mass*, ``(priority + epsilon) ** alpha``. A new row gets the largest mass so far.

    Args:
        capacity: Capacity of the ring, in rows.
        alpha: Exponent; see `PrioritySampler`.
        epsilon: Constant that is added to each priority; see `PrioritySampler`.

    Attributes:
        exponents: The pair of `alpha` and `epsilon`.
    """

    def __init__(self, capacity: int, alpha: float, epsilon: float) -> None:
        self.exponents = alpha, epsilon
        self._tree = SumTree(capacity)
        self._greatest = 1.0
        self._known = 0  # the number of the first row without a mass

    def masses(self, ring: RowRingBuffer, ids: Ids) -> NDArray[np.float64]:
        """Return the mass (weight in random draws), ``(priority + epsilon) ** alpha``, of each of the given rows.

        The rows must still be in the buffer.
        """
        self._add_new(ring)
        return self._tree[ids % ring.capacity]

    def update(self, ring: RowRingBuffer, ids: NDArray[Any], priorities: NDArray[Any]) -> int:
        """Set the priorities of rows (steps of the buffer). Ignore rows that were overwritten.

        Args:
            ring: The ring buffer that contains the rows.
            ids: ``[n]``, numbers of the rows.
            priorities: ``[n]``, the new priorities.

        Returns:
            The number of rows whose priority was set.

        Raises:
            DataError: If the two arrays are not one-dimensional and of the same length, a number is not that of a past or present
                row, or a priority is negative or so large that its mass (see `masses`) is not finite. No priority was set.
        """
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError("indices", f"shape {ids.shape} and dtype {ids.dtype}, not one dimension of integers")
        if priorities.shape != ids.shape:
            raise DataError("priorities", f"shape {priorities.shape}, for indices of shape {ids.shape}")
        if ids.size and not 0 <= ids.min() <= ids.max() < ring.end:
            raise DataError("indices", f"from {ids.min()} to {ids.max()}; the rows so far are 0 to {ring.end - 1}")
        alpha, epsilon = self.exponents
        values = priorities.astype(np.float64)
        if not np.all((values >= 0) & np.isfinite(values)):
            raise DataError("priorities", "one of them is negative or not finite")
        with np.errstate(over="ignore", under="ignore"):
            masses = np.maximum((values + epsilon) ** alpha, _LEAST)
            most = masses.max(initial=0.0) * ring.capacity
        if not np.isfinite(most):
            raise DataError("priorities", f"{values.max():g} is too large for alpha {alpha:g}")
        self._add_new(ring)
        held = ids >= ring.begin
        self._tree.set(ids[held].astype(np.int64) % ring.capacity, masses[held])
        self._greatest = max(self._greatest, float(masses[held].max(initial=0.0)))
        return int(np.count_nonzero(held))

    def draw(self, ring: RowRingBuffer, count: int, allowed: DrawableSteps, rng: np.random.Generator) -> Ids:
        """Draw `count` rows (steps) that can be sampled, in proportion to their masses, ``(priority + epsilon) ** alpha``.

        `allowed` says which rows can be sampled. At least one row must be allowed.

        The method draws from all rows and replaces rows that are not allowed by further draws. If rows are still missing after
        `_ROUNDS` attempts, they are drawn from a list of all allowed rows.
        """
        self._add_new(ring)
        found: list[Ids] = []
        missing = count
        for _ in range(_ROUNDS):
            ids = self._draw_any(ring, missing, rng)
            ids = ids[allowed.allow(ids)]
            found.append(ids)
            missing -= len(ids)
            if not missing:
                return np.concatenate(found)
        held = np.arange(ring.begin, ring.end)
        masses = self._tree[held % ring.capacity] * allowed.allow(held)
        return np.concatenate([*found, rng.choice(held, missing, p=masses / masses.sum())])

    def _draw_any(self, ring: RowRingBuffer, count: int, rng: np.random.Generator) -> Ids:
        slots = self._tree.find(rng.random(count) * self._tree.total)
        begin = ring.begin
        return np.minimum(begin + (slots - begin) % ring.capacity, ring.end - 1)

    def _add_new(self, ring: RowRingBuffer) -> None:
        """Give the largest mass (weight in random draws) so far to rows that were added to the buffer since the last call."""
        ids = np.arange(max(self._known, ring.begin), ring.end)
        self._tree.set(ids % ring.capacity, self._greatest)
        self._known = ring.end
