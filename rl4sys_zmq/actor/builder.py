"""A segment under construction: preallocated columns that a host thread writes row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import RewardError
from rl4sys_zmq.values import DiscreteSpace, Segment, Space
from rl4sys_zmq.wire import action_dtype

__all__ = ["SegmentBuilder"]

FIRST_ROWS = 128


class SegmentBuilder:
    """The columns of one segment while it grows, and while it waits for late rewards.

    Attributes:
        generation: of the policy that chose the actions; set by the first.
        limit: how many rows it may have.
        steps: rows written.
        missing: rows whose reward has not come.
        left: the segment has been handed over (or dropped), so that a reward comes too late.
    """

    __slots__ = (
        "_actions",
        "_bootstrap",
        "_log_probs",
        "_masks",
        "_observations",
        "_rewards",
        "_rows",
        "_space",
        "_versions",
        "capped",
        "generation",
        "left",
        "limit",
        "missing",
        "segment_index",
        "steps",
        "terminated",
        "truncated",
    )

    def __init__(self, observation_space: Space, action_space: Space, max_steps: int, segment_index: int) -> None:
        rows = min(max_steps, FIRST_ROWS)
        self.limit = max_steps
        self._rows = rows
        self._space = action_space
        self._observations = np.empty((rows + 1, *observation_space.shape), dtype=observation_space.dtype)
        self._actions = np.empty((rows, *action_space.shape), dtype=action_dtype(action_space))
        self._rewards = np.full(rows, np.nan, dtype=np.float32)
        self._log_probs = np.empty(rows, dtype=np.float32)
        self._versions = np.empty(rows, dtype=np.uint64)
        self._masks: NDArray[np.bool_] | None = None
        self._bootstrap = False
        self.segment_index = segment_index
        self.generation = 0
        self.steps = 0
        self.missing = 0
        self.left = False
        self.terminated = self.truncated = self.capped = False

    def add(
        self,
        observation: NDArray[Any],
        action: Any,
        log_prob: float,
        version: int,
        mask: NDArray[np.bool_] | None,
        reward: float | None,
    ) -> int:
        """Writes the next row and returns its index; a reward of None is still to come."""
        row = self.steps
        if row == self._rows:
            self._grow()
        self._observations[row] = observation
        self._actions[row] = action
        self._log_probs[row] = log_prob
        self._versions[row] = version
        if mask is not None or self._masks is not None:
            self._set_mask(row, mask)
        if reward is None:
            self.missing += 1
        else:
            self._rewards[row] = reward
        self.steps = row + 1
        return row

    def set_reward(self, row: int, reward: float) -> None:
        """Writes a reward into its row, for the first time or again."""
        if self.left:
            raise RewardError(f"the segment with step {row} has left: a reward must come before that (see reward_timeout_s)")
        if np.isnan(self._rewards[row]):
            self.missing -= 1
        self._rewards[row] = reward

    def first_missing(self) -> int:
        """The first row without a reward."""
        return int(np.isnan(self._rewards[: self.steps]).argmax())

    def close(self, observation: NDArray[Any] | None, mask: NDArray[np.bool_] | None) -> None:
        """Ends the segment; `observation` is the one to bootstrap from, None when the episode terminated."""
        if observation is not None:
            self._bootstrap = True
            self._observations[self.steps] = observation
            if mask is not None or self._masks is not None:
                self._set_mask(self.steps, mask)

    @property
    def last_observation(self) -> NDArray[Any]:
        """That of the last row, of which there is one."""
        return np.array(self._observations[self.steps - 1])

    @property
    def reward_sum(self) -> float:
        """The sum of all rewards of a complete segment."""
        return float(self._rewards[: self.steps].sum(dtype=np.float64))

    def build(self, episode_id: int, episode_return: float | None, episode_length: int | None) -> Segment:
        """The finished segment, which takes the columns over."""
        self.left = True
        n = self.steps
        rows = n + self._bootstrap
        return Segment(
            self._observations[:rows],
            self._actions[:n],
            self._rewards[:n],
            self._log_probs[:n],
            self._versions[:n],
            None if self._masks is None else self._masks[:rows],
            self.generation,
            episode_id,
            self.segment_index,
            self.terminated,
            self.truncated,
            self.capped,
            episode_return,
            episode_length,
        )

    def _set_mask(self, row: int, mask: NDArray[np.bool_] | None) -> None:
        if self._masks is None:
            assert isinstance(self._space, DiscreteSpace)
            self._masks = np.ones((self._rows + 1, self._space.n), dtype=np.bool_)
        self._masks[row] = True if mask is None else mask

    def _grow(self) -> None:
        rows = self._rows
        self._observations = np.concatenate([self._observations, np.empty_like(self._observations[:rows])])
        self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
        self._rewards = np.concatenate([self._rewards, np.full(rows, np.nan, dtype=np.float32)])
        self._log_probs = np.concatenate([self._log_probs, np.empty_like(self._log_probs)])
        self._versions = np.concatenate([self._versions, np.empty_like(self._versions)])
        if self._masks is not None:
            self._masks = np.concatenate([self._masks, np.ones_like(self._masks[:rows])])
        self._rows = 2 * rows
