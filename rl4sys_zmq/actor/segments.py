"""Unfinished segments: open ones, which a host thread writes, and closed ones, which wait for late rewards."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.io.segment_queue import Outbox
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import BadInput, RewardError
from rl4sys_zmq.immutable import immutable_object
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy, RandomSource
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space, evaluation_of
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import SpaceLeaves, leaves_of
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.layout import action_dtype

if TYPE_CHECKING:
    from rl4sys_zmq.actor.inputs import ActionOverrider

log = get_logger(__name__)

FIRST_ROWS = 128
NO_REWARDS = np.full(FIRST_ROWS, np.nan, dtype=np.float32)


class AgentIdentity:
    """A marker of the agent to which actions and trajectories belong. A forked child's agent keeps its parent's marker."""

    def __init__(self, counters: Counters, *, drops_bad_input: bool) -> None:
        self._counters, self._drops_bad_input = counters, drops_bad_input
        self.overrider: ActionOverrider | None = None  # set before the agent chooses its first action

    def refuse(self, error: BadInput) -> None:
        """Raise `error`, or with ``on_bad_input: drop`` count it as ``bad_input.ERROR``."""
        if not self._drops_bad_input:
            raise error
        self._counters.add(f"bad_input.{type(error).__name__}")


@immutable_object
class PolicyStamp:
    """The identity of what chose an action: agent, generation and version. All actions of one thread and version share it.

    Attributes:
        policy: A function that returns the policy, or None if the policy no longer exists or was never in this process. A
            strong reference would keep the weights of a version in memory as long as the host keeps one of its actions.
    """

    generation: int
    version: int
    owner: AgentIdentity
    source: str = ""  # source of an overridden action, as in `Segment.source`; empty if the policy chose the action
    policy: Callable[[], Policy | None] = field(default=lambda: None, repr=False)
    sampler: RandomSource | None = None  # random numbers of the thread; None if the policy was never here


class EpisodeStep:
    """One step of an episode, before `SegmentWriter.write` copies it into the columns of a segment."""

    __slots__ = ("known_reward", "log_prob", "mask", "obs", "raw", "row", "stamp", "writer")

    obs: Tree
    raw: Any  # action to train on (before clipping or squashing), None if no policy chose the action
    log_prob: float
    stamp: PolicyStamp
    mask: NDArray[np.bool_] | None  # `[n]`, True where an action was allowed, or None
    known_reward: float | None
    writer: SegmentWriter | None  # `SegmentWriter` that has a copy of the step, None before the step is added to a trajectory
    row: int  # row of the step in `writer`. Unset before the step is added


class TreeColumn:
    """A column for elements of a Dict or Tuple space: one array ``[rows, *leaf]`` for each leaf, used like a single array."""

    __slots__ = ("_columns", "_leaves")

    def __init__(self, leaves: SpaceLeaves, rows: int, dtypes: Sequence[str]) -> None:
        self._leaves = leaves
        self._columns = [np.empty((rows, *space.shape), dtype=dtype) for space, dtype in zip(leaves.spaces, dtypes, strict=True)]

    def __setitem__(self, row: int, element: Tree) -> None:
        for column, value in zip(self._columns, self._leaves.flatten(element), strict=True):
            column[row] = value

    def __getitem__(self, index: int | slice) -> Tree:
        return self._leaves.unflatten(column[index] for column in self._columns)

    def copy_row(self, row: int) -> Tree:
        return self._leaves.unflatten(np.array(column[row]) for column in self._columns)

    def grow(self, rows: int) -> None:
        """Add `rows` rows to each array, at most doubling it."""
        self._columns = [_grown(column, rows) for column in self._columns]


def new_column(space: ObservationSpace, rows: int) -> Tree:
    """Return storage for `rows` observations: an array ``[rows, *obs]``, or a `TreeColumn`."""
    if space.shape is None:
        leaves = leaves_of(space)
        return TreeColumn(leaves, rows, [leaf.dtype for leaf in leaves.spaces])
    return np.empty((rows, *space.shape), dtype=space.dtype)


def new_action_column(space: Space, rows: int) -> Tree:
    """Return storage for `rows` raw actions, in the dtypes of segments."""
    if space.shape is None:
        leaves = leaves_of(space)
        return TreeColumn(leaves, rows, [action_dtype(leaf) for leaf in leaves.spaces])
    return np.empty((rows, *space.shape), dtype=action_dtype(space))


@dataclass(slots=True, eq=False, repr=False)
class SegmentWriter:
    """A writer of the columns of one unfinished segment. Row ``t`` of all columns is one step.

    A segment is *open* while steps are added. A *closed* segment gets no more steps, but can wait for late rewards.
    """

    observation_space: InitVar[ObservationSpace]
    _space: Space  # of the actions
    limit: int  # number of steps at which the segment is complete
    segment_index: int  # from 0 in the episode; an index is skipped where steps are missing
    rows: int = field(init=False)  # number of rows for which the columns have memory
    observations: Tree = field(init=False)  # the last row: the observation after the last step
    actions: Tree = field(init=False)  # `[rows, *act]`, the raw actions
    rewards: NDArray[np.float32] = field(init=False)  # NaN: missing
    log_probs: NDArray[np.float32] = field(init=False)  # `[rows]` float32
    versions: NDArray[np.uint64] = field(init=False)  # `[rows]`; unwritten rows have the version of the last written row
    masks: NDArray[np.bool_] | None = field(default=None, init=False)  # `[rows + 1, n]` bool, None if no step has had a mask
    stamp: PolicyStamp | None = field(default=None, init=False)
    generation: int = field(default=0, init=False)
    source: str = field(default="", init=False)
    steps: int = field(default=0, init=False)
    missing: int = field(default=0, init=False)
    # sets rewards once the segment is closed or a row was read back
    pending: LateRewardQueue | None = field(default=None, init=False)
    # true once the segment has gone to the outbox or was dropped. Its rewards can no longer be set
    left: bool = field(default=False, init=False)
    terminated: bool = field(default=False, init=False)
    truncated: bool = field(default=False, init=False)
    capped: bool = field(default=False, init=False)  # the episode continues, but reached `max_traj_length` with this segment
    episode_length: int | None = field(default=None, init=False)  # of the whole episode, if this is its last segment
    _bootstrap: bool = field(default=False, init=False)
    _action_cells: Any = field(init=False)
    _log_prob_cells: Any = field(init=False)
    _reward_cells: Any = field(init=False)

    def __post_init__(self, observation_space: ObservationSpace) -> None:
        rows = self.rows = min(self.limit, FIRST_ROWS)
        self.observations = new_column(observation_space, rows + 1)
        self.actions = new_action_column(self._space, rows)
        self.rewards = NO_REWARDS[:rows].copy()  # a third of the time of np.full
        self.log_probs = np.empty(rows, dtype=np.float32)
        self.versions = np.empty(rows, dtype=np.uint64)
        self._view()

    def write(self, step: EpisodeStep) -> None:
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
        """Return True if `step` can be the next row of this segment. The segment must already have a step."""
        return self.generation == step.stamp.generation and self.source == step.stamp.source

    def set_reward(self, row: int, reward: float, first: bool) -> None:
        """Write the reward of a row. `first` is False if the row already has a reward."""
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
        """Return the index of the first row without a reward. There must be such a row."""
        return int(np.isnan(self.rewards[: self.steps]).argmax())

    def close(self, observation: Tree | None, mask: NDArray[np.bool_] | None) -> None:
        """Record the observation after the last step. The segment gets no more steps."""
        if observation is not None:
            self._bootstrap = True
            self.observations[self.steps] = observation
            if mask is not None or self.masks is not None:
                self._set_mask(self.steps, mask)

    def fill_step(self, row: int, step: EpisodeStep, owner: AgentIdentity) -> None:
        """Fill `step` with copies of a row, so that the host can read the step and set its reward later."""
        reward = self._reward_cells[row]
        step.obs, step.raw = _copied_row(self.observations, row), _copied_row(self.actions, row)
        step.log_prob = self._log_prob_cells[row]
        step.stamp = PolicyStamp(self.generation, int(self.versions[row]), owner, self.source)
        step.mask = None if self.masks is None else self.masks[row].copy()
        step.known_reward = None if isnan(reward) else reward
        step.writer, step.row = self, row

    @property
    def last_observation(self) -> Tree:
        return _copied_row(self.observations, self.steps - 1)

    @property
    def last_mask(self) -> NDArray[np.bool_] | None:
        return None if self.masks is None else self.masks[self.steps - 1].copy()

    @property
    def reward_sum(self) -> float:
        return float(np.add.reduce(self.rewards[: self.steps], dtype=np.float64))

    def build(self, episode_id: int, episode_return: float | None) -> Segment:
        """Return the finished segment, whose arrays are views of these columns."""
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

    def _set_mask(self, row: int, mask: NDArray[np.bool_] | None) -> None:
        if self.masks is None:
            self.masks = np.ones((self.rows + 1, action_layout(self._space).logits), dtype=np.bool_)
        self.masks[row] = True if mask is None else mask

    def _grow(self) -> None:
        rows = self.rows
        self.observations, self.actions = _grown(self.observations, rows), _grown(self.actions, rows)
        self.rewards = np.concatenate([self.rewards, np.full(rows, np.nan, dtype=np.float32)])
        self.log_probs = _grown(self.log_probs, rows)
        self.versions = np.concatenate([self.versions, np.full_like(self.versions, self.versions[-1])])
        if self.masks is not None:
            self.masks = np.concatenate([self.masks, np.ones_like(self.masks[:rows])])
        self.rows = 2 * rows
        self._view()

    def _view(self) -> None:
        """Create memoryviews of the columns. A write of one number takes half as long as to an array."""
        self._action_cells = self.actions.data if isinstance(self._space, DiscreteSpace) else self.actions
        self._log_prob_cells = self.log_probs.data
        self._reward_cells = self.rewards.data


def _grown(column: Any, rows: int) -> Any:
    """Return a column with `rows` more rows, at most twice as long as before."""
    if isinstance(column, TreeColumn):
        column.grow(rows)
        return column
    return np.concatenate([column, np.empty_like(column[:rows])])


def _copied_row(column: Tree, row: int) -> Tree:
    return column.copy_row(row) if isinstance(column, TreeColumn) else column[row].copy()


class PendingEpisodeSegments:
    """The closed segments of one episode that wait for late rewards. The `LateRewardQueue` changes this object under a lock.

    Attributes:
        lost: True if steps of the episode are missing. The sum of the episode's rewards is then unknown.
        overridden: True if the host overrode a step. The sum of the episode's rewards is then not the policy's.
        late: The steps that were requested before the end of the episode and not added so far, and then the last step, which
            has a separate segment after `held`.
    """

    __slots__ = ("episode_id", "held", "late", "lost", "overridden", "reward_sum", "writers")

    def __init__(self, episode_id: int) -> None:
        self.episode_id = episode_id
        self.writers: list[SegmentWriter] = []  # waiting segments, oldest first
        self.reward_sum = 0.0  # sum of the rewards in the segments that were already queued for sending
        self.lost = self.overridden = False
        self.held: SegmentWriter | None = None  # the waiting segment to which the steps in `late` can be added
        self.late: deque[EpisodeStep] = deque()


class LateRewardQueue:
    """A queue of segments that wait for late rewards before they go to the outbox, the segments of an episode in order.

    Host threads share one lock here, because one thread can drop overdue segments of another thread's episode. The I/O thread
    never takes the lock, and no thread blocks while it holds the lock.

    Attributes:
        late: For each segment with a missing reward: its deadline (monotonic time in seconds), its episode, and the segment.
    """

    def __init__(self, outbox: Outbox, reward_timeout_s: float, wake: Callable[[], None], *, evaluates: bool = False) -> None:
        self._outbox, self._evaluates = outbox, evaluates
        self._reward_timeout_s = reward_timeout_s
        self._wake = wake
        self._lock = threading.RLock()
        self._warned = False
        self.late: list[tuple[float, PendingEpisodeSegments, SegmentWriter]] = []
        self.episodes = 0  # number of episodes whose last segment has gone to the outbox
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)  # of the latest of these, without incomplete ones

    def renew_lock(self) -> None:
        self._lock = threading.RLock()

    def close(self, closed: PendingEpisodeSegments, writer: SegmentWriter) -> None:
        """Add the next closed segment of an episode. It goes to the outbox when it and all earlier ones have their rewards."""
        with self._lock:
            writer.pending = self
            closed.writers.append(writer)
            if writer.missing:
                self._wait(closed, writer)
            self._release(closed)

    def set_reward(self, writer: SegmentWriter, row: int, reward: float) -> None:
        """Write a late reward into a closed segment. Pass the segments that are now complete to the outbox."""
        with self._lock:
            writer.set_reward(row, reward, bool(np.isnan(writer.rewards[row])))
            complete = {id(closed): closed for _, closed, waiting in self.late if not waiting.missing}
            self.late = [entry for entry in self.late if entry[2].missing]
            for closed in complete.values():
                self._release(closed)

    def join(self, step: EpisodeStep, limit: int) -> PendingEpisodeSegments | None:
        """Write a late step of an ended episode into the segment that stays open for late steps, if the step fits."""
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
        """Drop and count the segments that have waited for rewards longer than ``reward_timeout_s``."""
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
        """Close an episode for late steps. If late steps are missing, leave a gap in the indices of the segments."""
        held, closed.held = closed.held, None
        if held is not None and len(closed.late) > 1:
            closed.lost = True
            for writer in closed.writers:
                writer.segment_index += writer.segment_index > held.segment_index

    def _wait(self, closed: PendingEpisodeSegments, writer: SegmentWriter) -> None:
        self.late.append((time.monotonic() + self._reward_timeout_s, closed, writer))

    def _release(self, closed: PendingEpisodeSegments) -> None:
        """Pass the episode's closed segments to the outbox, in order, up to the first segment with a missing reward."""
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
