"""Running mean and standard deviation, and the reward scale that is made of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.learner.algorithms.returns import discounted_sums

__all__ = ["RewardScale", "RunningMoments"]

Column = NDArray[np.float64]

MAX_EPISODES = 4096
"""How many unfinished episodes a reward scale remembers; the oldest is forgotten, for its actor may be gone."""


class RunningMoments:
    """The mean and variance of all rows seen, merged batch by batch (Chan, Golub & LeVeque 1979, equation 1.5).

    Attributes:
        count: the number of rows seen.
        mean: float64 ``[n]``.
        variance: float64 ``[n]``, of the population.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self.variance = np.ones(size)

    def update(self, rows: NDArray[Any]) -> None:
        """Takes in rows ``[B, n]``."""
        if not len(rows):
            return
        mean, variance, count = rows.mean(axis=0, dtype=np.float64), rows.var(axis=0, dtype=np.float64), len(rows)
        total = self.count + count
        delta = mean - self.mean
        square = self.variance * self.count + variance * count + delta * delta * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.variance = square / total
        self.count = total

    def scale(self) -> Column:
        """One over the standard deviation, ``[n]``; 1 for a column that has never varied, or before any row."""
        varies = self.variance > 1e-12
        return np.where(varies, 1.0 / np.sqrt(np.where(varies, self.variance, 1.0)), 1.0)

    def state(self) -> dict[str, Any]:
        """Copies of the moments."""
        return {"count": self.count, "mean": self.mean.copy(), "variance": self.variance.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes back to a `state`."""
        self.count = int(state["count"])
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.variance = np.array(state["variance"], dtype=np.float64)


class RewardScale:
    """Divides rewards by the running standard deviation of the discounted return (as Gymnasium's NormalizeReward does).

    The return runs on across the segments of an episode, and starts at zero with each episode.

    Attributes:
        moments: of the discounted returns.
    """

    def __init__(self, gamma: float, *, clip: float = 10.0) -> None:
        self._gamma = gamma
        self._clip = clip
        self.moments = RunningMoments(1)
        self._open: OrderedDict[int, float] = OrderedDict()

    def __call__(self, rewards: Column, lengths: Sequence[int], episodes: Sequence[int], ended: Sequence[bool]) -> Column:
        """Scaled rewards ``[T]``, after taking them in.

        Args:
            rewards: of segments laid end to end, float64 ``[T]``.
            lengths: each segment's number of steps.
            episodes: each segment's episode.
            ended: whether the segment is its episode's last.
        """
        starts = np.concatenate(([0], np.cumsum(lengths)))
        follows = np.ones(len(rewards))
        follows[starts[:-1]] = 0.0
        returns = np.ascontiguousarray(discounted_sums(rewards, self._gamma * follows, reverse=True))
        for k, (episode, end) in enumerate(zip(episodes, ended, strict=True)):
            carried = self._open.pop(episode, 0.0)
            if carried:
                returns[starts[k] : starts[k + 1]] += carried * self._gamma ** np.arange(1, lengths[k] + 1)
            if not end:
                self._open[episode] = float(returns[starts[k + 1] - 1])
        while len(self._open) > MAX_EPISODES:
            self._open.popitem(last=False)
        self.moments.update(returns[:, None])
        # One return has no deviation: to divide by its zero would make any reward a huge one.
        variance = self.moments.variance[0] if self.moments.count > 1 else 1.0
        scaled: Column = np.clip(rewards / np.sqrt(variance + 1e-8), -self._clip, self._clip)
        return scaled

    def state(self) -> dict[str, Any]:
        """Copies of the moments, and the open episodes with their returns so far."""
        return {
            "moments": self.moments.state(),
            "episodes": np.array(list(self._open), dtype=np.uint64),
            "returns": np.array(list(self._open.values()), dtype=np.float64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes back to a `state`."""
        self.moments.load(state["moments"])
        pairs = zip(np.asarray(state["episodes"]), np.asarray(state["returns"]), strict=True)
        self._open = OrderedDict((int(episode), float(value)) for episode, value in pairs)
