"""The bounds of trajectories, and the rows of each from which a sample can start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl4sys_zmq.serving.data.ring import Ids

__all__ = ["SampleableRows", "TrajectorySpans"]


@dataclass(frozen=True, slots=True, eq=False)
class SampleableRows:
    """The held trajectories, and the rows of each from which a sample can start.

    Attributes:
        begins: ``[K]``, the first held row of each trajectory, increasing.
        ends: ``[K]``, one past the last row.
        firsts: ``[K]``, the first row from which a sample can start.
        counts: ``[K]``, the number of such rows; 0 for a trajectory that is too short.
    """

    begins: Ids
    ends: Ids
    firsts: Ids
    counts: Ids

    @property
    def total(self) -> int:
        """The number of rows from which a sample can start."""
        return int(self.counts.sum())

    def draw(self, count: int, rng: np.random.Generator) -> Ids:
        """Draw rows uniformly from all of these, with replacement. `total` must not be 0."""
        stops = np.cumsum(self.counts)
        marks = rng.integers(0, stops[-1], count)
        which = np.searchsorted(stops, marks, side="right")
        return self.firsts[which] + marks - (stops[which] - self.counts[which])

    def allow(self, ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return for each held row True if a sample can start from it."""
        which = self._which(ids)
        allowed: np.ndarray[tuple[int], np.dtype[np.bool_]] = (ids >= self.firsts[which]) & (
            ids < self.firsts[which] + self.counts[which]
        )
        return allowed

    def bounds_of(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return for each held row the first row of its trajectory, and one past the last."""
        which = self._which(ids)
        return self.begins[which], self.ends[which]

    def _which(self, ids: Ids) -> Ids:
        return np.searchsorted(self.begins, ids, side="right") - 1


class TrajectorySpans:
    """The first rows of the trajectories. A trajectory ends where the next begins, the last one at the newest row."""

    def __init__(self) -> None:
        self._numbers = np.zeros(64, np.int64)
        self._first, self._last = 0, 0

    def extend(self, starts: Ids) -> None:
        """Add first rows, which must be newer than all before."""
        if self._last + len(starts) > len(self._numbers):
            kept = self._numbers[self._first : self._last].copy()
            if 2 * (len(kept) + len(starts)) > len(self._numbers):
                self._numbers = np.zeros(4 * (len(kept) + len(starts)), np.int64)
            self._numbers[: len(kept)] = kept
            self._first, self._last = 0, len(kept)
        self._numbers[self._last : self._last + len(starts)] = starts
        self._last += len(starts)

    def drop_before(self, begin: int) -> None:
        """Drop the trajectories that ended before row `begin`, the oldest that is held."""
        numbers = self._numbers[self._first : self._last]
        self._first += max(0, int(np.searchsorted(numbers, begin, side="right")) - 1)

    def bounds(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Return each trajectory's first row, which for the oldest can lie before `begin`, and one past its last row."""
        starts = self._numbers[self._first : self._last].copy()
        return starts, np.append(starts[1:], end) if len(starts) else starts

    def allowed(self, begin: int, end: int, sample_range: tuple[int, int], min_length: int) -> SampleableRows:
        """Return the rows whose trajectory covers `sample_range` around them and has `min_length` held rows.

        Args:
            begin: Oldest row that is held.
            end: One past the newest row.
            sample_range: First offset (at most 0), and one past the last offset (at least 1).
            min_length: Smallest number of held rows of a trajectory.
        """
        low, high = sample_range
        starts, ends = self.bounds(begin, end)
        begins = np.maximum(starts, begin)
        lengths = ends - begins
        counts = np.where(lengths >= min_length, np.maximum(lengths - (high - low) + 1, 0), 0)
        return SampleableRows(begins, ends, begins - low, counts)
