"""The trajectories in a `TrajectoryBuffer`, and the steps that can be drawn for a sample. A *row* is the number of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.replay.ring import Ids


@dataclass(frozen=True, slots=True, eq=False)
class DrawableSteps:
    """The rows (numbers of steps) of ``K`` trajectories that can be drawn for a sample.

    Attributes:
        begins: ``[K]``, the first stored row of each trajectory, increasing.
        ends: ``[K]``, the last row of each trajectory, plus one.
        firsts: ``[K]``, the first row of each trajectory that can be drawn.
        counts: ``[K]``, the number of rows that can be drawn, from ``firsts`` on. 0 for a trajectory that is too short.
    """

    begins: Ids
    ends: Ids
    firsts: Ids
    counts: Ids

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def draw(self, count: int, rng: np.random.Generator) -> Ids:
        """Draw `count` rows uniformly, with replacement. At least one row must be drawable."""
        stops = np.cumsum(self.counts)
        marks = rng.integers(0, stops[-1], count)
        which = np.searchsorted(stops, marks, side="right")
        return self.firsts[which] + marks - (stops[which] - self.counts[which])

    def allow(self, ids: Ids) -> NDArray[np.bool_]:
        """Return a bool for each of these stored rows: True if the row can be drawn."""
        which = self._which(ids)
        first = self.firsts[which]
        allowed: NDArray[np.bool_] = (ids >= first) & (ids < first + self.counts[which])
        return allowed

    def bounds_of(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return the first row of each row's trajectory, and the last row of that trajectory plus one."""
        which = self._which(ids)
        return self.begins[which], self.ends[which]

    def _which(self, ids: Ids) -> Ids:
        return np.searchsorted(self.begins, ids, side="right") - 1


class TrajectorySpans:
    """The trajectories in a ring buffer of steps, each given by the number of its first row.

    A trajectory ends where the next begins, or with the newest row.

    Attributes:
        dropped: Number of trajectories that `drop_before` has removed.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._numbers = np.zeros(64, np.int64)
        self._first, self._last = 0, 0

    def extend(self, starts: Ids) -> None:
        """Add the first rows of new trajectories."""
        if self._last + len(starts) > len(self._numbers):
            kept = self._numbers[self._first : self._last].copy()
            if 2 * (len(kept) + len(starts)) > len(self._numbers):
                self._numbers = np.zeros(4 * (len(kept) + len(starts)), np.int64)
            self._numbers[: len(kept)] = kept
            self._first, self._last = 0, len(kept)
        self._numbers[self._last : self._last + len(starts)] = starts
        self._last += len(starts)

    def drop_before(self, begin: int) -> None:
        """Remove the trajectories that ended before `begin`, the oldest row that the buffer still has."""
        numbers = self._numbers[self._first : self._last]
        gone = max(0, int(np.searchsorted(numbers, begin, side="right")) - 1)
        self._first += gone
        self.dropped += gone

    def bounds(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Return first row and end of each trajectory. `end` is the newest row plus one.

        The first row of the oldest trajectory can be below `begin`, the oldest stored row.
        """
        starts = self._numbers[self._first : self._last].copy()
        return starts, np.append(starts[1:], end) if len(starts) else starts

    def allowed(self, begin: int, end: int, sample_range: tuple[int, int], min_length: int) -> DrawableSteps:
        """Return the rows that can be drawn for a sample.

        Their trajectory has at least `min_length` stored rows, and contains the rows at all offsets of `sample_range`.
        """
        low, high = sample_range
        starts, ends = self.bounds(begin, end)
        begins = np.maximum(starts, begin)
        lengths = ends - begins
        counts = np.where(lengths >= min_length, np.maximum(lengths - (high - low) + 1, 0), 0)
        return DrawableSteps(begins, ends, begins - low, counts)
