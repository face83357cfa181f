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

    The columns are written by `add`, and in the ordinary case by `Acting.add_to_trajectory` itself.

    Attributes:
        observations: ``[rows + 1, *obs]``; the last row in use may be the one to bootstrap from.
        actions: ``[rows, *act]``.
        rewards: ``[rows]``, NaN while missing.
        log_probs: ``[rows]``.
        masks: ``[rows + 1, n]``, None until a mask is given.
        stamp: the (generation, version) of the last row; the rows to come have its version already.
        generation: of the policy that chose the actions; set by the first.
        limit: how many rows it should have.
        rows: how many there is room for; it grows.
        steps: rows written.
        missing: rows whose reward has not come.
        left: the segment has been handed over (or dropped), so that a reward comes too late.
    """

    __slots__ = (
        "_bootstrap",
        "_space",
        "_versions",
        "actions",
        "capped",
        "generation",
        "left",
        "limit",
        "log_probs",
        "masks",
        "missing",
        "observations",
        "rewards",
        "rows",
        "segment_index",
        "stamp",
        "steps",
        "terminated",
        "truncated",
    )

    def __init__(self, observation_space: Space, action_space: Space, max_steps: int, segment_index: int) -> None:
        rows = min(max_steps, FIRST_ROWS)
        self.limit = max_steps
        self.rows = rows
        self._space = action_space
        self.observations = np.empty((rows + 1, *observation_space.shape), dtype=observation_space.dtype)
        self.actions = np.empty((rows, *action_space.shape), dtype=action_dtype(action_space))
        self.rewards = np.empty(rows, dtype=np.float32)
        self.rewards.fill(np.nan)  # half the time of np.full, at each cut
        self.log_probs = np.empty(rows, dtype=np.float32)
        self._versions = np.empty(rows, dtype=np.uint64)
        self.masks: NDArray[np.bool_] | None = None
        self._bootstrap = False
        self.segment_index = segment_index
        self.stamp: tuple[int, int] | None = None
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
        stamp: tuple[int, int],
        mask: NDArray[np.bool_] | None,
        reward: float | None,
    ) -> int:
        """Writes the next row, of the (generation, version) `stamp`, and returns its index; a reward of None is still to come."""
        row = self.steps
        if row == self.rows:
            self._grow()
        self.observations[row] = observation
        self.actions[row] = action
        self.log_probs[row] = log_prob
        if stamp is not self.stamp:
            self.stamp = stamp
            self._versions[row:] = stamp[1]
        if mask is not None or self.masks is not None:
            self._set_mask(row, mask)
        if reward is None:
            self.missing += 1
        else:
            self.rewards[row] = reward
        self.steps = row + 1
        return row

    def set_reward(self, row: int, reward: float) -> None:
        """Writes a reward into its row, for the first time or again."""
        if self.left:
            raise RewardError(f"the segment with step {row} has left: a reward must come before that (see reward_timeout_s)")
        if np.isnan(self.rewards[row]):
            self.missing -= 1
        self.rewards[row] = reward

    def first_missing(self) -> int:
        """The first row without a reward."""
        return int(np.isnan(self.rewards[: self.steps]).argmax())

    def close(self, observation: NDArray[Any] | None, mask: NDArray[np.bool_] | None) -> None:
        """Ends the segment; `observation` is the one to bootstrap from, None when the episode terminated."""
        if observation is not None:
            self._bootstrap = True
            self.observations[self.steps] = observation
            if mask is not None or self.masks is not None:
                self._set_mask(self.steps, mask)

    @property
    def last_observation(self) -> NDArray[Any]:
        """That of the last row, of which there is one."""
        return np.array(self.observations[self.steps - 1])

    @property
    def reward_sum(self) -> float:
        """The sum of all rewards of a complete segment."""
        return float(np.add.reduce(self.rewards[: self.steps], dtype=np.float64))

    def build(self, episode_id: int, episode_return: float | None, episode_length: int | None) -> Segment:
        """The finished segment, which takes the columns over."""
        self.left = True
        n = self.steps
        rows = n + self._bootstrap
        return Segment(
            self.observations[:rows],
            self.actions[:n],
            self.rewards[:n],
            self.log_probs[:n],
            self._versions[:n],
            None if self.masks is None else self.masks[:rows],
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
        if self.masks is None:
            assert isinstance(self._space, DiscreteSpace)
            self.masks = np.ones((self.rows + 1, self._space.n), dtype=np.bool_)
        self.masks[row] = True if mask is None else mask

    def _grow(self) -> None:
        rows = self.rows
        self.observations = np.concatenate([self.observations, np.empty_like(self.observations[:rows])])
        self.actions = np.concatenate([self.actions, np.empty_like(self.actions)])
        self.rewards = np.concatenate([self.rewards, np.full(rows, np.nan, dtype=np.float32)])
        self.log_probs = np.concatenate([self.log_probs, np.empty_like(self.log_probs)])
        self._versions = np.concatenate([self._versions, np.full_like(self._versions, self._versions[-1])])
        if self.masks is not None:
            self.masks = np.concatenate([self.masks, np.ones_like(self.masks[:rows])])
        self.rows = 2 * rows
