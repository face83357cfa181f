"""Running mean and variance of data that arrive in batches, and the scaling of rewards by them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.algorithms.onpolicy.returns import discounted_sums

Column = NDArray[np.float64]

MAX_EPISODES = 4096
"""Largest number of unfinished episodes whose return a `RewardScaler` remembers.

If there are more, the oldest one is forgotten, because its actor has probably ended.
"""


class RunningMoments:
    """The mean and the variance of each column of the rows seen so far, such as observations. Each batch updates them.

    Source: Chan, Golub & LeVeque 1979, equation 1.5.

    Attributes:
        count: Number of rows so far.
        mean: Mean of each column, float64 ``[n]``; 0 before the first row.
        variance: Population variance of each column, float64 ``[n]``; 1 before the first row.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self.variance = np.ones(size)

    def update(self, rows: NDArray[Any]) -> None:
        """Add rows ``[B, n]`` to the mean and the variance."""
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
        """Return 1 / standard deviation of each column, float64 ``[n]``; 1 for a constant column and before the first row."""
        varies = self.variance > 1e-12
        return np.where(varies, 1.0 / np.sqrt(np.where(varies, self.variance, 1.0)), 1.0)

    def state(self) -> dict[str, Any]:
        """Return copies of the count, the mean and the variance."""
        return {"count": self.count, "mean": self.mean.copy(), "variance": self.variance.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned."""
        self.count = int(state["count"])
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.variance = np.array(state["variance"], dtype=np.float64)


class RewardScaler:
    """The scaling of rewards: division by the running standard deviation of the discounted return, then clipping.

    Gymnasium's wrapper NormalizeReward does the same. The discounted return is a sum over the past rewards of an episode. It
    starts at zero with each episode and continues across the segments of the episode.

    Attributes:
        moments: Mean and variance of all discounted returns so far.
    """

    def __init__(self, gamma: float, *, clip: float = 10.0) -> None:
        self.gamma = gamma
        self._clip = clip
        self.moments = RunningMoments(1)
        self._open: OrderedDict[int, float] = OrderedDict()

    def __call__(self, rewards: Column, lengths: Sequence[int], episodes: Sequence[int], ended: Sequence[bool]) -> Column:
        """Update the variance with new rewards, and return these rewards after scaling, float64 ``[T]``.

        Args:
            rewards: Rewards of all segments, one after another, float64 ``[T]``.
            lengths: Number of steps of each segment. The sum is ``T``.
            episodes: Id of the episode of each segment.
            ended: True for each segment that is the last of its episode.
        """
        starts = np.concatenate(([0], np.cumsum(lengths)))
        follows = np.ones(len(rewards))
        follows[starts[:-1]] = 0.0
        returns = np.ascontiguousarray(discounted_sums(rewards, self.gamma * follows, reverse=True))
        for k, (episode, end) in enumerate(zip(episodes, ended, strict=True)):
            carried = self._open.pop(episode, 0.0)
            if carried:
                returns[starts[k] : starts[k + 1]] += carried * self.gamma ** np.arange(1, lengths[k] + 1)
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
        """Return copies of the moments, and the ids of the unfinished episodes with their returns so far."""
        return {
            "moments": self.moments.state(),
            "episodes": np.array(list(self._open), dtype=np.uint64),
            "returns": np.array(list(self._open.values()), dtype=np.float64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned."""
        self.moments.load(state["moments"])
        pairs = zip(np.asarray(state["episodes"]), np.asarray(state["returns"]), strict=True)
        self._open = OrderedDict((int(episode), float(value)) for episode, value in pairs)
