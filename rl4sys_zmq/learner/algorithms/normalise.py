"""Running mean and standard deviation, and the reward scale computed from them."""

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
"""Largest number of unfinished episodes in a reward scale.

Beyond it the oldest is dropped: its actor may have ended.
"""


class RunningMoments:
    """The mean and variance of all rows so far, merged batch by batch (Chan, Golub & LeVeque 1979, equation 1.5).

    Attributes:
        count: Number of rows.
        mean: Float64 ``[n]``.
        variance: Float64 ``[n]``, of the population.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self.variance = np.ones(size)

    def update(self, rows: NDArray[Any]) -> None:
        """Merge rows ``[B, n]`` into the moments."""
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
        """Return 1 / standard deviation, ``[n]``; 1 for a constant column and before the first row."""
        varies = self.variance > 1e-12
        return np.where(varies, 1.0 / np.sqrt(np.where(varies, self.variance, 1.0)), 1.0)

    def state(self) -> dict[str, Any]:
        """Return copies of the moments."""
        return {"count": self.count, "mean": self.mean.copy(), "variance": self.variance.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`."""
        self.count = int(state["count"])
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.variance = np.array(state["variance"], dtype=np.float64)


class RewardScale:
    """Divides rewards by the running standard deviation of the discounted return, as Gymnasium's NormalizeReward does.

    The return continues across the segments of an episode, and starts at zero with each episode.

    Attributes:
        moments: Moments of the discounted returns.
    """

    def __init__(self, gamma: float, *, clip: float = 10.0) -> None:
        self._gamma = gamma
        self._clip = clip
        self.moments = RunningMoments(1)
        self._open: OrderedDict[int, float] = OrderedDict()

    def __call__(self, rewards: Column, lengths: Sequence[int], episodes: Sequence[int], ended: Sequence[bool]) -> Column:
        """Update the moments with rewards, and return these rewards scaled, ``[T]``.

        Args:
            rewards: Rewards of consecutive segments, float64 ``[T]``.
            lengths: Number of steps of each segment.
            episodes: Episode of each segment.
            ended: True for each segment that is the last of its episode.
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
        # The deviation of a single return is 0; dividing by it would make any reward huge.
        variance = self.moments.variance[0] if self.moments.count > 1 else 1.0
        scaled: Column = np.clip(rewards / np.sqrt(variance + 1e-8), -self._clip, self._clip)
        return scaled

    def state(self) -> dict[str, Any]:
        """Return copies of the moments, and the open episodes with their returns so far."""
        return {
            "moments": self.moments.state(),
            "episodes": np.array(list(self._open), dtype=np.uint64),
            "returns": np.array(list(self._open.values()), dtype=np.float64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`."""
        self.moments.load(state["moments"])
        pairs = zip(np.asarray(state["episodes"]), np.asarray(state["returns"]), strict=True)
        self._open = OrderedDict((int(episode), float(value)) for episode, value in pairs)
