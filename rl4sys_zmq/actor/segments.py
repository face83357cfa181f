"""Unfinished segments (runs of consecutive steps): those that a host thread writes, and those that wait for late rewards."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.io.segment_queue import Outbox
from rl4sys_zmq.actor.observation_column import TreeColumn, new_action_column, new_column
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import BadInput, RewardError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy, RandomSource
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space, evaluation_of
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.trees import Tree

if TYPE_CHECKING:
    from rl4sys_zmq.actor.overrides import ActionOverrider

log = get_logger(__name__)

FIRST_ROWS = 128
RECENT_EPISODES = 100
NO_REWARDS = np.full(FIRST_ROWS, np.nan, dtype=np.float32)


class AgentIdentity:
    """The agent to which actions and trajectories belong, as they know it. Each agent has one object; objects are not equal.

    The agent in a forked child has the same object as in the parent.

    Attributes:
        overrider: The object that overrides actions. Set before the agent chooses its first action.
    """

    def __init__(self, counters: Counters, *, drops_bad_input: bool) -> None:
        """Create the identity of one agent.

        Args:
            counters: The counters of its host threads.
            drops_bad_input: True with ``on_bad_input: drop``.
        """
        self._counters, self._drops_bad_input = counters, drops_bad_input
        self.overrider: ActionOverrider | None = None

    def refuse(self, error: BadInput) -> None:
        """Refuse invalid input of the host: raise `error`, or with ``on_bad_input: drop`` count it as ``bad_input.ERROR``.

        Raises:
            BadInput: The given error, unless the agent drops invalid input.
        """
        if not self._drops_bad_input:
            raise error
        self._counters.add(f"bad_input.{type(error).__name__}")


@dataclass(frozen=True, slots=True, eq=False)
class PolicyStamp:
    """The record, kept with each action, of the policy version and the agent that chose the action.

    All actions that one host thread chooses by one policy version share one object.

    Attributes:
        generation: The generation of the policy: the number of the learner thread that published it.
        version: The version of the policy: the number of its publication.
        owner: The agent.
        source: The source of an overridden action, as in `Segment.source`; empty if the policy chose the action.
        policy: Returns the policy, or None if it is gone or was never here. A strong reference would keep the weights of each
            version in memory as long as the host keeps an action of it.
        sampler: The random numbers of the thread; None if the policy was never here.
    """

    generation: int
    version: int
    owner: AgentIdentity
    source: str = ""
    policy: Callable[[], Policy | None] = field(default=lambda: None, repr=False)
    sampler: RandomSource | None = None


class EpisodeStep:
    """One step of an episode: an observation, an action, and its reward.

    The step is first an object. `SegmentWriter.write` then copies it into the columns of a segment (a run of steps).

    Attributes:
        obs: The observation ``[*obs]``, or a tree of arrays.
        raw: The action to train on (before clipping or squashing), None if no policy chose the action.
        log_prob: The log-probability of `raw` under the policy.
        stamp: The policy version that chose the action.
        mask: ``[n]``, True where an action was allowed, or None.
        known_reward: The reward, None until the host sets it.
        writer: The `SegmentWriter` that has a copy of the step, None before the step is added to a trajectory.
        row: The row of the step in `writer`. Unset before the step is added.
    """

    __slots__ = ("known_reward", "log_prob", "mask", "obs", "raw", "row", "stamp", "writer")

    obs: Tree
    raw: Any
    log_prob: float
    stamp: PolicyStamp
    mask: NDArray[np.bool_] | None
    known_reward: float | None
    writer: SegmentWriter | None
    row: int


class SegmentWriter:
    """The columns of one unfinished segment (a run of consecutive steps). Row ``t`` of all columns is one step.

    A segment is *open* while steps are added. A *closed* segment gets no more steps, but can wait for late rewards.

    Attributes:
        observations: ``[rows + 1, *obs]``, or a `TreeColumn`. Row `steps` can have the observation after the last step, from
            which the learner bootstraps.
        actions: ``[rows, *act]``, the actions to train on.
        rewards: ``[rows]`` float32, NaN where the reward is missing.
        log_probs: ``[rows]`` float32, the log-probabilities of the actions.
        versions: ``[rows]`` uint64, the policy versions. Unwritten rows already have the version of the last written row.
        masks: ``[rows + 1, n]`` bool, None if no step has had a mask.
        stamp: The policy version that chose the last step, None before the first step.
        generation: The number of the learner thread that published the policy of these steps. Set with the first step.
        source: The source of the actions, as in `Segment.source`. Set with the first step.
        limit: The number of steps at which the segment is complete.
        rows: The number of rows for which the columns have memory. The columns grow when they are full.
        steps: The number of steps written.
        missing: The number of steps without a reward.
        segment_index: The index of the segment in its episode, from 0. An index is skipped where steps are missing.
        terminated: True if the episode reached a terminal state with the last step.
        truncated: True if the host ended the episode after the last step for another reason, such as a time limit.
        capped: True if the episode continues, but reached ``max_traj_length`` with this segment.
        pending: The `LateRewardQueue` through which rewards are set, once the segment is closed or a row was read back. None
            before that: rewards are then written directly.
        left: True once the segment has gone to the outbox (the queue for sending) or was dropped. Its rewards can no longer be
            set.
        episode_length: The number of steps of the whole episode, if this is its last segment. Otherwise None.
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
        "source",
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
        self.actions: Tree = new_action_column(action_space, rows)
        self.rewards = NO_REWARDS[:rows].copy()  # takes a third of the time of np.full, at each cut
        self.log_probs = np.empty(rows, dtype=np.float32)
        self.versions = np.empty(rows, dtype=np.uint64)
        self.masks: NDArray[np.bool_] | None = None
        self._bootstrap = False
        self.segment_index = segment_index
        self._view()
        self.stamp: PolicyStamp | None = None
        self.generation = 0
        self.source = ""
        self.steps = 0
        self.missing = 0
        self.pending: LateRewardQueue | None = None
        self.left = False
        self.terminated = self.truncated = self.capped = False
        self.episode_length: int | None = None

    def write(self, step: EpisodeStep) -> None:
        """Write one step as the next row of all columns."""
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
            self.generation, self.source = stamp.generation, stamp.source
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

    def continues(self, step: EpisodeStep) -> bool:
        """Return True if `step` can be the next row of this segment, which has steps; False if it must start a new one.

        The generation and the source are the same. A subclass for policies with a state also compares that state.
        """
        return self.generation == step.stamp.generation and self.source == step.stamp.source

    def set_reward(self, row: int, reward: float, first: bool) -> None:
        """Write the reward of a row. `first` is False if the row already has a reward.

        Raises:
            RewardError: If the segment is already queued for sending or was dropped.
        """
        if self.left:
            if self.missing:
                raise RewardError(f"step {row} was dropped: not all rewards of its segment came within reward_timeout_s")
            raise RewardError(
                f"step {row} was queued for sending with its reward; a reward can be replaced until its segment has all rewards"
            )
        if first:
            self.missing -= 1
        self._reward_cells[row] = reward

    def first_missing(self) -> int:
        """Return the index of the first row without a reward. Call this method only if `missing` is not 0."""
        return int(np.isnan(self.rewards[: self.steps]).argmax())

    def close(self, observation: Tree | None, mask: NDArray[np.bool_] | None) -> None:
        """Close the segment (run of steps): record the observation after its last step. It gets no more steps.

        Args:
            observation: The observation after the last step, from which the learner bootstraps. None if the episode reached a
                terminal state.
            mask: The mask of that observation, or None.
        """
        if observation is not None:
            self._bootstrap = True
            self.observations[self.steps] = observation
            if mask is not None or self.masks is not None:
                self._set_mask(self.steps, mask)

    def read(self, row: int, step: EpisodeStep, owner: AgentIdentity) -> None:
        """Fill a step object with copies of a row, so that the host can read a recorded step and set its reward.

        Set the attribute `pending` before. Rewards then go through that queue, and the row and its two step objects agree.

        Args:
            row: The index of the row.
            step: The new object to fill.
            owner: The agent, as in `PolicyStamp`.
        """
        reward = self._reward_cells[row]
        step.obs, step.raw, step.log_prob = self._row(row), _copied_row(self.actions, row), self._log_prob_cells[row]
        step.stamp = PolicyStamp(self.generation, int(self.versions[row]), owner, self.source)
        step.mask = None if self.masks is None else self.masks[row].copy()
        step.known_reward = None if isnan(reward) else reward
        step.writer, step.row = self, row

    @property
    def last_observation(self) -> Tree:
        """A copy of the observation of the last recorded step. There must be at least one step."""
        return self._row(self.steps - 1)

    @property
    def last_mask(self) -> NDArray[np.bool_] | None:
        """A copy of the mask of the last recorded step, or None without masks. There must be at least one step."""
        return None if self.masks is None else self.masks[self.steps - 1].copy()

    @property
    def reward_sum(self) -> float:
        """The sum of the rewards of all steps in this segment (run of steps). Every step must have a reward."""
        return float(np.add.reduce(self.rewards[: self.steps], dtype=np.float64))

    def build(self, episode_id: int, episode_return: float | None) -> Segment:
        """Return the finished segment (run of steps), ready to be sent.

        Its arrays are views of these columns, so do not write to the columns afterwards.

        Args:
            episode_id: The number of the episode.
            episode_return: The sum of the rewards of the whole episode, if this is its last segment. Otherwise None.
        """
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
            source=self.source,
        )

    def _row(self, row: int) -> Tree:
        """Return a copy of the observation in the row with this index."""
        return _copied_row(self.observations, row)

    def _set_mask(self, row: int, mask: NDArray[np.bool_] | None) -> None:
        if self.masks is None:
            self.masks = np.ones((self.rows + 1, action_layout(self._space).logits), dtype=np.bool_)
        self.masks[row] = True if mask is None else mask

    def _grow(self) -> None:
        rows = self.rows
        if isinstance(self.observations, TreeColumn):
            self.observations.grow(rows)
        else:
            self.observations = np.concatenate([self.observations, np.empty_like(self.observations[:rows])])
        if isinstance(self.actions, TreeColumn):
            self.actions.grow(rows)
        else:
            self.actions = np.concatenate([self.actions, np.empty_like(self.actions)])
        self.rewards = np.concatenate([self.rewards, np.full(rows, np.nan, dtype=np.float32)])
        self.log_probs = np.concatenate([self.log_probs, np.empty_like(self.log_probs)])
        self.versions = np.concatenate([self.versions, np.full_like(self.versions, self.versions[-1])])
        if self.masks is not None:
            self.masks = np.concatenate([self.masks, np.ones_like(self.masks[:rows])])
        self.rows = 2 * rows
        self._view()

    def _view(self) -> None:
        """Create memoryviews of the columns, for fast writes of single numbers: in half the time of a write to an array."""
        self._action_cells: Any = self.actions.data if isinstance(self._space, DiscreteSpace) else self.actions
        self._log_prob_cells: Any = self.log_probs.data
        self._reward_cells: Any = self.rewards.data


def _copied_row(column: Tree, row: int) -> Tree:
    """Return a copy of the element in one row of a column."""
    return column.copy_row(row) if isinstance(column, TreeColumn) else column[row].copy()


class PendingEpisodeSegments:
    """The segments (runs of steps) of one episode that get no more steps and wait for late rewards.

    Only `LateRewardQueue` changes this object, under its lock.

    Attributes:
        episode_id: The random number of the episode.
        writers: The waiting segments, oldest first.
        reward_sum: The sum of the rewards in the segments that were already queued for sending.
        lost: True if a segment of the episode was dropped, or a step was not stored. The sum of the episode's rewards is then
            unknown.
        overridden: True if the host overrode a step. The sum of the episode's rewards is then not the policy's.
        held: The waiting segment to which the steps in `late` can be added; None if there is none.
        late: The steps that were requested before the end of the episode and not added so far, and then the last step, which has
            a segment of its own after `held`.
    """

    __slots__ = ("episode_id", "held", "late", "lost", "overridden", "reward_sum", "writers")

    def __init__(self, episode_id: int) -> None:
        self.episode_id = episode_id
        self.writers: list[SegmentWriter] = []
        self.reward_sum = 0.0
        self.lost = self.overridden = False
        self.held: SegmentWriter | None = None
        self.late: deque[EpisodeStep] = deque()


class LateRewardQueue:
    """The segments (runs of steps) that wait for late rewards before they go to the outbox (the queue for sending).

    The segments of an episode go to the outbox in order, each one once it has all its rewards. Host threads share one lock here,
    because one thread can drop overdue segments of another thread's episode. The I/O thread never takes the lock, and no thread
    blocks while it holds the lock.

    Attributes:
        late: For each segment with a missing reward: its deadline (monotonic time in seconds), its episode, and the segment.
            Changed only under the lock.
        episodes: Number of episodes whose last segment has gone to the outbox.
        returns: The return (sum of all rewards) of each of the latest of these episodes. Episodes of which a segment was
            dropped are not included.
    """

    def __init__(self, outbox: Outbox, reward_timeout_s: float, wake: Callable[[], None], *, evaluates: bool = False) -> None:
        """Create an empty queue.

        Args:
            outbox: The queue for sending.
            reward_timeout_s: Longest time that a segment waits for a reward, in seconds.
            wake: Wakes the I/O thread.
            evaluates: True for an actor that does not explore. Of each episode with a known return, only the last step goes to
                the outbox, marked as an evaluation.
        """
        self._outbox, self._evaluates = outbox, evaluates
        self._reward_timeout_s = reward_timeout_s
        self._wake = wake
        self._lock = threading.RLock()
        self._warned = False
        self.late: list[tuple[float, PendingEpisodeSegments, SegmentWriter]] = []
        self.episodes = 0
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)

    def renew_lock(self) -> None:
        """Replace the lock, in a forked child."""
        self._lock = threading.RLock()

    def close(self, closed: PendingEpisodeSegments, writer: SegmentWriter) -> None:
        """Add the next closed segment (run of steps) of an episode.

        It goes to the outbox (the queue for sending) at once, if it has all rewards and no earlier segment waits.
        """
        with self._lock:
            writer.pending = self
            closed.writers.append(writer)
            if writer.missing:
                self._wait(closed, writer)
            self._release(closed)

    def set_reward(self, writer: SegmentWriter, row: int, reward: float) -> None:
        """Write a late reward into a closed segment (run of steps). Queue the segments for sending that are now complete.

        Raises:
            RewardError: If the segment was already queued for sending or was dropped.
        """
        with self._lock:
            writer.set_reward(row, reward, bool(np.isnan(writer.rewards[row])))
            complete = {id(closed): closed for _, closed, waiting in self.late if not waiting.missing}
            self.late = [entry for entry in self.late if entry[2].missing]
            for closed in complete.values():
                self._release(closed)

    def join(self, step: EpisodeStep, limit: int) -> PendingEpisodeSegments | None:
        """Write a late step of an ended episode into the segment that is held for such steps. It then waits for its reward too.

        Args:
            step: The step.
            limit: The longest segment that the learner accepts, in steps.

        Returns:
            The waiting segments of the episode to which the step belongs. None if no episode waits for the step, or if its held
            segment is full or ends with another step than the one before.
        """
        with self._lock:
            closed = next((closed for _, closed, _ in self.late if closed.held is not None and closed.late[0] is step), None)
            if closed is None:
                return None
            held, late = closed.held, closed.late
            assert held is not None
            if step is late[-1] or held.steps >= limit:
                return None
            if step.raw is None or (held.steps and not held.continues(step)):
                return None
            held.write(step)
            late.popleft()
            held.close(late[0].obs, late[0].mask)
            last = closed.writers[-1]
            last.episode_length = (last.episode_length or 0) + 1
            if held.missing and all(waiting is not held for _, _, waiting in self.late):
                self._wait(closed, held)
            return closed

    def expire(self) -> None:
        """Drop and count the segments (runs of steps) that have waited for rewards longer than ``reward_timeout_s``."""
        now = time.monotonic()
        with self._lock:
            expired = [entry for entry in self.late if entry[0] <= now]
            self.late = [entry for entry in self.late if entry[0] > now]
            for _, closed, writer in expired:
                writer.left = True
                closed.lost = True
                closed.writers.remove(writer)
                self._end_late(closed)
                self._outbox.put_items += 1
                self._outbox.dropped.add("reward_timeout")
                self._release(closed)
            first, self._warned = bool(expired) and not self._warned, self._warned or bool(expired)
        if first:  # without the lock: a handler of the host can take long
            log.warning(
                "a segment of %d steps was dropped: %d rewards did not come within %g s (reward_timeout_s); "
                "stats()['dropped'] counts further ones", expired[0][2].steps, expired[0][2].missing, self._reward_timeout_s,
            )  # fmt: skip

    def _end_late(self, closed: PendingEpisodeSegments) -> None:
        """Let no more late steps be added to an episode. If some are missing, leave a gap in the indices after the others."""
        held, closed.held = closed.held, None
        if held is not None and len(closed.late) > 1:
            closed.lost = True
            for writer in closed.writers:
                writer.segment_index += writer.segment_index > held.segment_index

    def _wait(self, closed: PendingEpisodeSegments, writer: SegmentWriter) -> None:
        """Let a segment (run of steps) with a missing reward wait for at most ``reward_timeout_s`` from now."""
        self.late.append((time.monotonic() + self._reward_timeout_s, closed, writer))

    def _release(self, closed: PendingEpisodeSegments) -> None:
        """Queue the episode's closed segments (runs of steps) for sending, in order, up to the first with a missing reward."""
        while closed.writers and not closed.writers[0].missing:
            writer = closed.writers[0]
            if writer is closed.held:
                if len(closed.writers) == 1 or closed.writers[1].missing:
                    return
                self._end_late(closed)
            if not writer.steps:
                del closed.writers[0]
                continue
            ends, rewards = writer.terminated or writer.truncated, closed.reward_sum + writer.reward_sum
            total = rewards if ends and not (closed.lost or closed.overridden) else None
            segment = writer.build(closed.episode_id, total)
            if self._evaluates and total is not None:
                segment = evaluation_of(segment)
            # If a signal handler has raised in a call above, the segment is left for the next release. If it has set the reward
            # of another step, it can have released the segment.
            if closed.writers[:1] != [writer]:
                continue
            del closed.writers[0]
            closed.reward_sum = rewards
            self.episodes += ends
            if total is not None:
                self.returns.append(total)
            elif self._evaluates:
                continue
            self._outbox.put(segment)
            self._wake()
