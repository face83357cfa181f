"""Where trajectories begin and end, and which of their rows a sample may start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl4sys_zmq.serving.data.ring import Ids

__all__ = ["SampleableRows", "TrajectorySpans"]


@dataclass(frozen=True, slots=True, eq=False)
class SampleableRows:
    """The trajectories that are held, and the rows of each that a sample may start from.

    Attributes:
        begins: ``[K]``, the first row of each that is held, increasing.
        ends: ``[K]``, one more than the last.
        firsts: ``[K]``, the first row to start from.
        counts: ``[K]``, how many rows from it on are; 0 for a trajectory that is too short.
    """

    begins: Ids
    ends: Ids
    firsts: Ids
    counts: Ids

    @property
    def total(self) -> int:
        """How many rows a sample may start from."""
        return int(self.counts.sum())

    def draw(self, count: int, rng: np.random.Generator) -> Ids:
        """Rows drawn uniformly from all of these, with replacement; `total` is not 0."""
        stops = np.cumsum(self.counts)
        marks = rng.integers(0, stops[-1], count)
        which = np.searchsorted(stops, marks, side="right")
        return self.firsts[which] + marks - (stops[which] - self.counts[which])

    def allow(self, ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether a sample may start from each of these rows, which are held."""
        which = self._which(ids)
        allowed: np.ndarray[tuple[int], np.dtype[np.bool_]] = (ids >= self.firsts[which]) & (
            ids < self.firsts[which] + self.counts[which]
        )
        return allowed

    def around(self, ids: Ids) -> tuple[Ids, Ids]:
        """The bounds of the trajectories of rows that are held: the first row of each, and one more than the last."""
        which = self._which(ids)
        return self.begins[which], self.ends[which]

    def _which(self, ids: Ids) -> Ids:
        return np.searchsorted(self.begins, ids, side="right") - 1


class TrajectorySpans:
    """The rows that begin a trajectory. Each trajectory ends where the next begins, the last one at the newest row."""

    def __init__(self) -> None:
        self._numbers = np.zeros(64, np.int64)
        self._first, self._last = 0, 0

    def extend(self, starts: Ids) -> None:
        """Adds rows, which are newer than all before."""
        if self._last + len(starts) > len(self._numbers):
            kept = self._numbers[self._first : self._last].copy()
            if 2 * (len(kept) + len(starts)) > len(self._numbers):
                self._numbers = np.zeros(4 * (len(kept) + len(starts)), np.int64)
            self._numbers[: len(kept)] = kept
            self._first, self._last = 0, len(kept)
        self._numbers[self._last : self._last + len(starts)] = starts
        self._last += len(starts)

    def forget_before(self, begin: int) -> None:
        """Drops the trajectories that ended before row `begin`, the oldest one that is held."""
        numbers = self._numbers[self._first : self._last]
        self._first += max(0, int(np.searchsorted(numbers, begin, side="right")) - 1)

    def bounds(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Of each trajectory, the first row, which may lie before `begin` for the oldest, and one more than the last."""
        starts = self._numbers[self._first : self._last].copy()
        return starts, np.append(starts[1:], end) if len(starts) else starts

    def allowed(self, begin: int, end: int, sample_range: tuple[int, int], min_length: int) -> SampleableRows:
        """The rows that have all rows of `sample_range` within their trajectory, if that has `min_length` rows.

        Args:
            begin: the oldest row that is held.
            end: one more than the newest.
            sample_range: from how many rows before (at most 0), to before how many after (at least 1).
            min_length: rows that are held.
        """
        low, high = sample_range
        starts, ends = self.bounds(begin, end)
        begins = np.maximum(starts, begin)
        lengths = ends - begins
        counts = np.where(lengths >= min_length, np.maximum(lengths - (high - low) + 1, 0), 0)
        return SampleableRows(begins, ends, begins - low, counts)
