"""The growth of segments: the columns that a host thread writes, and closed segments that wait for rewards."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.observation_column import TreeColumn, new_column
from rl4sys_zmq.actor.segment_queue import Outbox
from rl4sys_zmq.errors import RewardError
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire import action_dtype

__all__ = ["ClosedSegments", "PendingRewards", "SegmentWriter", "Stamp", "Step"]

log = logging.getLogger(__name__)

FIRST_ROWS = 128
NO_REWARDS = np.full(FIRST_ROWS, np.nan, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Stamp:
    """The policy version that chose an action. All actions of one host thread and one version share one object.

    `owner` identifies the agent. A forked child keeps its parent's.
    """

    generation: int
    version: int
    owner: object


class Step:
    """One decision, and its row once it is stored. `SegmentWriter.write` copies it into the columns.

    Attributes:
        obs: The observation ``[*obs]``, or a tree of arrays.
        raw: The action to train on, None if no policy chose it.
        log_prob: The log-probability of `raw` under the policy.
        stamp: The policy version.
        mask: ``[n]``, or None.
        known_reward: The reward, None while it is missing.
        writer: The segment that holds the step, None before it is stored.
        row: The row in that segment, once stored.
    """

    __slots__ = ("known_reward", "log_prob", "mask", "obs", "raw", "row", "stamp", "writer")

    obs: Tree
    raw: Any
    log_prob: float
    stamp: Stamp
    mask: NDArray[np.bool_] | None
    known_reward: float | None
    writer: SegmentWriter | None
    row: int


class SegmentWriter:
    """The columns of one segment while it grows, and while it waits for late rewards.

    Attributes:
        observations: ``[rows + 1, *obs]``, or a `TreeColumn`. The last row in use can be the one to bootstrap from.
        actions: ``[rows, *act]``.
        rewards: ``[rows]``, NaN while missing.
        log_probs: ``[rows]``.
        versions: ``[rows]``. Rows that are not written so far already have the version of the last row.
        masks: ``[rows + 1, n]``, None until a mask is given.
        stamp: The stamp of the last row, None before the first.
        generation: The number of the learner thread that published the policy which chose the actions. The first action sets it.
        limit: The number of rows at which the segment is complete.
        rows: The number of rows that the columns have room for. It grows.
        steps: The number of rows written.
        missing: The number of rows without a reward.
        pending: The holder of the segment once it is closed, None while it is open.
        left: True once the segment was handed over or dropped. A reward then is too late.
        episode_length: The steps of the whole episode if the segment ends it, else None.
    """

    __slots__ = (
        "_action_cells",
        "_bootstrap",
        "_log_prob_cells",
        "_reward_cells",
        "_space",
        "actions",
        "capped",
        "episode_length",
        "generation",
        "left",
        "limit",
        "log_probs",
        "masks",
        "missing",
        "observations",
        "pending",
        "rewards",
        "rows",
        "segment_index",
        "stamp",
        "steps",
        "terminated",
        "truncated",
        "versions",
    )

    def __init__(self, observation_space: ObservationSpace, action_space: Space, max_steps: int, segment_index: int) -> None:
        rows = min(max_steps, FIRST_ROWS)
        self.limit = max_steps
        self.rows = rows
        self._space = action_space
        self.observations = new_column(observation_space, rows + 1)
        self.actions = np.empty((rows, *action_space.shape), dtype=action_dtype(action_space))
        self.rewards = NO_REWARDS[:rows].copy()  # takes a third of the time of np.full, at each cut
        self.log_probs = np.empty(rows, dtype=np.float32)
        self.versions = np.empty(rows, dtype=np.uint64)
        self.masks: NDArray[np.bool_] | None = None
        self._bootstrap = False
        self.segment_index = segment_index
        self._view()
        self.stamp: Stamp | None = None
        self.generation = 0
        self.steps = 0
        self.missing = 0
        self.pending: PendingRewards | None = None
        self.left = False
        self.terminated = self.truncated = self.capped = False
        self.episode_length: int | None = None

    def write(self, step: Step) -> None:
        """Write the next row."""
        row = self.steps
        if row == self.rows:
            self._grow()
        self.observations[row] = step.obs
        self._action_cells[row] = step.raw
        self._log_prob_cells[row] = step.log_prob
        stamp = step.stamp
        if stamp is not self.stamp:
            self.stamp = stamp
            self.versions[row:] = stamp.version
        mask = step.mask
        if mask is not None or self.masks is not None:
            self._set_mask(row, mask)
        reward = step.known_reward
        if reward is None:
            self.missing += 1
        else:
            self._reward_cells[row] = reward
        step.writer = self
        step.row = row
        self.steps = row + 1

    def continues(self, step: Step) -> bool:
        """Return True if a step can be the next row. With extra columns, it depends on the policy's state."""
        return True

    def insert(self, step: Step, last: Step | None) -> None:
        """Write a row into a segment that has ended: before the row of `last`, or at the end if `last` is None."""
        bootstrap = self._row(self.steps) if self._bootstrap else None
        bootstrap_mask = self.masks[self.steps].copy() if self._bootstrap and self.masks is not None else None
        if last is not None:
            self.steps -= 1
            self.missing -= last.known_reward is None
            self._reward_cells[self.steps] = np.nan
        self.write(step)
        if last is not None:
            self.write(last)
        if self.steps == self.rows:
            self._grow()
        if bootstrap is not None:
            self.close(bootstrap, bootstrap_mask)

    def set_reward(self, row: int, reward: float, first: bool) -> None:
        """Write a reward into its row. `first` is False if the row already has one.

        Raises:
            RewardError: If the segment has left.
        """
        if self.left:
            if self.missing:
                raise RewardError(f"step {row} was dropped: not all rewards of its segment came within reward_timeout_s")
            raise RewardError(f"step {row} was sent with its reward; a reward can be replaced until its segment has all rewards")
        if first:
            self.missing -= 1
        self._reward_cells[row] = reward

    def first_missing(self) -> int:
        """Return the first row without a reward."""
        return int(np.isnan(self.rewards[: self.steps]).argmax())

    def close(self, observation: Tree | None, mask: NDArray[np.bool_] | None) -> None:
        """End the segment. `observation` is the one to bootstrap from, None if the episode terminated."""
        if observation is not None:
            self._bootstrap = True
            self.observations[self.steps] = observation
            if mask is not None or self.masks is not None:
                self._set_mask(self.steps, mask)

    @property
    def last_observation(self) -> Tree:
        """A copy of the last row's observation. The segment must have at least one row."""
        return self._row(self.steps - 1)

    @property
    def reward_sum(self) -> float:
        """The sum of all rewards of a complete segment."""
        return float(np.add.reduce(self.rewards[: self.steps], dtype=np.float64))

    def build(self, episode_id: int, episode_return: float | None) -> Segment:
        """Return the finished segment. It takes over the columns."""
        self.left = True
        n = self.steps
        rows = n + self._bootstrap
        return Segment(
            self.observations[:rows],
            self.actions[:n],
            self.rewards[:n],
            self.log_probs[:n],
            self.versions[:n],
            None if self.masks is None else self.masks[:rows],
            self.generation,
            episode_id,
            self.segment_index,
            self.terminated,
            self.truncated,
            self.capped,
            episode_return,
            self.episode_length,
        )

    def _row(self, row: int) -> Tree:
        """Return a copy of the observation in a row."""
        observations = self.observations
        return observations.copy_row(row) if isinstance(observations, TreeColumn) else np.array(observations[row])

    def _set_mask(self, row: int, mask: NDArray[np.bool_] | None) -> None:
        if self.masks is None:
            assert isinstance(self._space, DiscreteSpace)
            self.masks = np.ones((self.rows + 1, self._space.n), dtype=np.bool_)
        self.masks[row] = True if mask is None else mask

    def _grow(self) -> None:
        rows = self.rows
        if isinstance(self.observations, TreeColumn):
            self.observations.grow(rows)
        else:
            self.observations = np.concatenate([self.observations, np.empty_like(self.observations[:rows])])
        self.actions = np.concatenate([self.actions, np.empty_like(self.actions)])
        self.rewards = np.concatenate([self.rewards, np.full(rows, np.nan, dtype=np.float32)])
        self.log_probs = np.concatenate([self.log_probs, np.empty_like(self.log_probs)])
        self.versions = np.concatenate([self.versions, np.full_like(self.versions, self.versions[-1])])
        if self.masks is not None:
            self.masks = np.concatenate([self.masks, np.ones_like(self.masks[:rows])])
        self.rows = 2 * rows
        self._view()

    def _view(self) -> None:
        """Prepare the columns: writing a number to a memoryview takes half as long as writing it to an array."""
        self._action_cells: Any = self.actions.data if isinstance(self._space, DiscreteSpace) else self.actions
        self._log_prob_cells: Any = self.log_probs.data
        self._reward_cells: Any = self.rewards.data


class ClosedSegments:
    """The closed segments of one episode that have not left, oldest first. `PendingRewards` guards it.

    Attributes:
        episode_id: Identifies the episode.
        writers: The segments.
        reward_sum: The sum of the rewards of the segments that have left.
        lost: True if a segment was dropped, so that the episode's return is unknown.
    """

    __slots__ = ("episode_id", "lost", "reward_sum", "writers")

    def __init__(self, episode_id: int) -> None:
        self.episode_id = episode_id
        self.writers: list[SegmentWriter] = []
        self.reward_sum = 0.0
        self.lost = False


class PendingRewards:
    """The closed segments on their way to the outbox. They leave in order, each once its last reward is known.

    Host threads share one lock. The I/O thread never takes it, and no thread waits while it holds it. A thread can expire the
    late segments of another thread's episode while a reward for one of them arrives.

    Attributes:
        late: The closed segments that wait for rewards, with their deadlines. Replaced or extended under the lock.
    """

    def __init__(self, outbox: Outbox, reward_timeout_s: float, wake: Callable[[], None]) -> None:
        self._outbox = outbox
        self._reward_timeout_s = reward_timeout_s
        self._wake = wake
        self._lock = threading.RLock()
        self._warned = False
        self.late: list[tuple[float, ClosedSegments, SegmentWriter]] = []

    def close(self, closed: ClosedSegments, writer: SegmentWriter) -> None:
        """Add the next closed segment of an episode."""
        with self._lock:
            writer.pending = self
            closed.writers.append(writer)
            if writer.missing:
                self.late.append((time.monotonic() + self._reward_timeout_s, closed, writer))
            self._release(closed)

    def set_reward(self, writer: SegmentWriter, row: int, reward: float) -> None:
        """Write a reward into a closed segment, and hand over the segments that waited for it.

        Raises:
            RewardError: If the segment has left.
        """
        with self._lock:
            writer.set_reward(row, reward, bool(np.isnan(writer.rewards[row])))
            complete = {id(closed): closed for _, closed, waiting in self.late if not waiting.missing}
            self.late = [entry for entry in self.late if entry[2].missing]
            for closed in complete.values():
                self._release(closed)

    def join(self, writer: SegmentWriter, step: Step, last: Step | None, episode_steps: int, limit: int) -> bool:
        """Write a step into the last segment of an ended episode, if that still waits for rewards.

        Args:
            writer: The segment.
            step: The step.
            last: The step that ends the episode, which stays the last; None if `step` is to be the last.
            episode_steps: The steps of the whole episode, without `step`.
            limit: The longest segment that the learner accepts, in steps.

        Returns:
            False if the segment has left, is full, or belongs to another generation.
        """
        with self._lock:
            if writer.left or not writer.steps or writer.steps >= limit or writer.generation != step.stamp.generation:
                return False
            writer.insert(step, last)
            writer.episode_length = episode_steps + 1
            return True

    def expire(self) -> None:
        """Drop and count the segments whose rewards are overdue."""
        now = time.monotonic()
        with self._lock:
            expired = [entry for entry in self.late if entry[0] <= now]
            self.late = [entry for entry in self.late if entry[0] > now]
            for _, closed, writer in expired:
                if not self._warned:
                    self._warned = True
                    log.warning(
                        "a segment of %d steps was dropped: %d rewards did not come within %g s (reward_timeout_s); "
                        "stats()['dropped'] counts further ones", writer.steps, writer.missing, self._reward_timeout_s,
                    )  # fmt: skip
                writer.left = True
                closed.lost = True
                closed.writers.remove(writer)
                self._outbox.put_items += 1
                self._outbox.dropped.add("reward_timeout")
                self._release(closed)

    def _release(self, closed: ClosedSegments) -> None:
        """Hand over an episode's closed segments, in order, up to the first without all rewards."""
        while closed.writers and not closed.writers[0].missing:
            writer = closed.writers.pop(0)
            closed.reward_sum += writer.reward_sum
            ended = writer.terminated or writer.truncated
            self._outbox.put(writer.build(closed.episode_id, closed.reward_sum if ended and not closed.lost else None))
            self._wake()
