"""Batches of which a part comes from demonstrations, which never leave their own replay (Ball et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.replay.memory import ReplayMemory, ReplayOptions, TransitionBatch
from rl4sys_zmq.replay.priorities import Draws
from rl4sys_zmq.values import ObservationSpace, Segment
from rl4sys_zmq.values.spaces import Space


class DemonstrationReplay:
    """The transitions of demonstrations, of which each batch has a fixed fraction. They are drawn uniformly.

    In a batch, the row ``r`` of the demonstrations has the number ``-1 - r``, and these numbers come first. The other rows are
    those of another replay, `own`.

    Attributes:
        digest: The number that identifies the demonstrations.
    """

    def __init__(
        self,
        observation_space: ObservationSpace,
        action_space: Space,
        options: ReplayOptions,
        segments: Sequence[Segment],
        fraction: float,
        digest: int,
    ) -> None:
        capacity = sum(segment.steps for segment in segments)
        self._memory = ReplayMemory(observation_space, action_space, replace(options, capacity=capacity, priority=None))
        for segment in segments:
            self._memory.add(segment)
        self._fraction, self.digest = fraction, digest

    def draw(self, own: ReplayMemory, size: int, draws: Draws) -> NDArray[np.int64]:
        """Return the numbers of a batch of `size` transitions, int64 ``[size]``. At least one is of `own`."""
        count = min(round(size * self._fraction), size - 1)
        return np.concatenate([-1 - self._memory.draw(count, draws), own.draw(size - count, draws)])

    def gather(self, own: ReplayMemory, rows: NDArray[np.int64]) -> TransitionBatch:
        """Return copies of the transitions with these numbers, in the order of `draw`."""
        count = int(np.count_nonzero(rows < 0))
        if not count:
            return own.gather(rows)
        demonstrations = self._memory.gather(-1 - rows[:count])
        return demonstrations if count == len(rows) else demonstrations.join(own.gather(rows[count:]))
