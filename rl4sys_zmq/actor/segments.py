"""Segments until they are sent: open ones, which a host thread writes; closed ones, which wait for late rewards; the outbox."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from math import isnan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.action import AgentIdentity, PolicyStamp, RL4SysAction, new_action
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ProtocolError, RewardError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space, evaluation_of
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import SpaceLeaves, leaves_of
from rl4sys_zmq.values.spaces import LeafSpace
from rl4sys_zmq.values.trees import Tree, copy_tree
from rl4sys_zmq.wire import PackedSegment, pack_segment
from rl4sys_zmq.wire.layout import action_dtype

if TYPE_CHECKING:
    from rl4sys_zmq.actor.io.spool import Spool

log = get_logger(__name__)

FIRST_ROWS = 128
NO_REWARDS = np.full(FIRST_ROWS, np.nan, dtype=np.float32)

SPOOLED_ITEMS = 32
"""The largest number of segments that go from memory into the spool in one transaction."""


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

    def grow(self, rows: int) -> None:
        """Add `rows` rows to each array, but at most as many as it has."""
        self._columns = [_grown(column, rows) for column in self._columns]


def new_column(space: ObservationSpace, rows: int, dtype_of: Callable[[LeafSpace], str] = attrgetter("dtype")) -> Tree:
    """Return storage for `rows` elements of a space: an array ``[rows, *shape]``, or a `TreeColumn`."""
    if space.shape is None:
        leaves = leaves_of(space)
        return TreeColumn(leaves, rows, [dtype_of(leaf) for leaf in leaves.spaces])
    return np.empty((rows, *space.shape), dtype=dtype_of(space))


@dataclass(slots=True, eq=False, repr=False)
class SegmentWriter:
    """A writer of the columns of one unfinished segment. Row ``t`` of all columns is one step.

    A segment is *open* while steps are added. A *closed* segment gets no more steps, but can wait for late rewards.
    """

    action_type: ClassVar[type[RL4SysAction]] = RL4SysAction

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
    masks: Mask = field(default=None, init=False)  # `[rows + 1, n]` bool, None if no step has had a mask
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
        self.actions = new_column(self._space, rows, action_dtype)
        self.rewards = NO_REWARDS[:rows].copy()  # a third of the time of np.full
        self.log_probs = np.empty(rows, dtype=np.float32)
        self.versions = np.empty(rows, dtype=np.uint64)
        self._view()

    def write(self, step: RL4SysAction) -> None:
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

    def continues(self, step: RL4SysAction) -> bool:
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

    def close(self, observation: Tree | None, mask: Mask) -> None:
        """Record the observation after the last step. The segment gets no more steps."""
        if observation is not None:
            self._bootstrap = True
            self.observations[self.steps] = observation
            if mask is not None or self.masks is not None:
                self._set_mask(self.steps, mask)

    def recorded_actions(self, owner: AgentIdentity, known: Sequence[RL4SysAction | None]) -> list[RL4SysAction]:
        """Return all steps as actions, oldest first: the given object where `known` has one, otherwise a copy of the row."""
        by_row = {action.row: action for action in known if action is not None and action.writer is self}
        return [by_row.get(row) or self.recorded_action(row, owner) for row in range(self.steps)]

    def recorded_action(self, row: int, owner: AgentIdentity) -> RL4SysAction:
        """Return an action with copies of a row, so that the host can read the step and set its reward later."""
        raw, reward = copy_tree(self.actions[row]), self._reward_cells[row]
        stamp = PolicyStamp(self.generation, int(self.versions[row]), owner, self.source)
        mask = None if self.masks is None else self.masks[row].copy()
        log_prob = self._log_prob_cells[row]
        action = new_action(self.action_type, copy_tree(self.observations[row]), raw, raw, log_prob, stamp, mask)
        action.known_reward = None if isnan(reward) else reward
        action.writer, action.row = self, row
        return action

    @property
    def last_observation(self) -> Tree:
        return copy_tree(self.observations[self.steps - 1])

    @property
    def last_mask(self) -> Mask:
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

    def _set_mask(self, row: int, mask: Mask) -> None:
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
        """Create memoryviews of the columns. Writing one number to a memoryview takes half as long as to an array."""
        self._action_cells = self.actions.data if isinstance(self._space, DiscreteSpace) else self.actions
        self._log_prob_cells = self.log_probs.data
        self._reward_cells = self.rewards.data


def _grown(column: Any, rows: int) -> Any:
    """Return a column with `rows` more rows, but at most twice as many as before."""
    if isinstance(column, TreeColumn):
        column.grow(rows)
        return column
    return np.concatenate([column, np.empty_like(column[:rows])])


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
        self.late: deque[RL4SysAction] = deque()


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

    def use(self, outbox: Outbox, wake: Callable[[], None]) -> None:
        """Pass complete segments to another outbox from now on."""
        self._outbox, self._wake = outbox, wake

    def close(self, closed: PendingEpisodeSegments, writer: SegmentWriter) -> None:
        """Add the next closed segment of an episode. Pass it to the outbox once it and all earlier ones have their rewards."""
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

    def join(self, step: RL4SysAction, limit: int) -> PendingEpisodeSegments | None:
        """Write a late step of an ended episode into the segment that waits for such steps. Return None if it does not fit."""
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
                self._outbox.count_dropped("reward_timeout")
                self._release(closed)
            first, self._warned = bool(expired) and not self._warned, self._warned or bool(expired)
        if first:  # without the lock: a handler of the host can take long
            log.warning(
                "a segment of %d steps was dropped: %d rewards did not come within %g s (reward_timeout_s); "
                "stats()['dropped'] counts further ones", expired[0][2].steps, expired[0][2].missing, self._reward_timeout_s,
            )  # fmt: skip

    def _end_late(self, closed: PendingEpisodeSegments) -> None:
        """End an episode's wait for late steps. If some are missing, count up the indices of the later segments, as a gap."""
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


@immutable
class QueuedSegmentInfo:
    """The properties of one queued segment that decide when it is sent or dropped."""

    generation: int
    oldest_version: int  # lowest policy version among the segment's steps
    steps: int
    nbytes: int  # size of the segment's columns, in bytes


class Outbox(Resource):
    """The bounded FIFO of finished segments that have not been sent: in memory, and behind that in the spool, if there is one.

    Host threads call `put` under a common lock, and read the counts. The I/O thread calls all other methods. Each side does
    single operations on a deque, so neither waits for the other. If the memory is full, its oldest segment is dropped and
    counted. With ``overflow: wait`` nothing is dropped: the learner's credit limits the length.

    Attributes:
        in_hand: The number of segments that are moving from memory to the spool, or from here to the session. The number is set
            before a move and cleared after it. So a thread that reads `items`, then `in_hand`, then the session's count misses
            no segment.
    """

    def __init__(self, max_items: int, max_bytes: int, *, drops: bool) -> None:
        self.spool: Spool | None = None
        self.in_hand = 0
        self.memory_dropped = Counters()  # number of segments by reason
        self.put_items = self.put_steps = 0
        self._max_items, self._max_bytes, self._drops = max_items, max_bytes, drops
        self._memory: deque[Segment] = deque()
        # Each number is changed by one side only.
        self._bytes_in = self._bytes_popped = self._bytes_dropped = 0
        self._steps_popped = self._steps_dropped = 0

    def put(self, segment: Segment) -> None:
        """Add a segment. If the memory is then full, drop the oldest segments."""
        steps, nbytes = segment.steps, segment.nbytes  # a signal handler can run, and raise, in these calls and not below
        self.put_items += 1
        self.put_steps += steps
        self._bytes_in += nbytes
        self._memory.append(segment)
        while self._drops and len(self._memory) > 1 and (len(self._memory) > self._max_items or self._nbytes > self._max_bytes):
            try:
                oldest = self._memory.popleft()
            except IndexError:
                return
            steps, nbytes = oldest.steps, oldest.nbytes
            self._steps_dropped += steps
            self._bytes_dropped += nbytes
            self.memory_dropped.add("overflow")

    def count_dropped(self, reason: str) -> None:
        """Count a segment that the host has finished, and that is dropped for `reason`."""
        self.put_items += 1
        self.memory_dropped.add(reason)

    @property
    def _nbytes(self) -> int:
        return self._bytes_in - self._bytes_popped - self._bytes_dropped

    @property
    def items(self) -> int:
        in_memory = len(self._memory)  # first: a segment that moves meanwhile is counted twice, and not missed
        return in_memory if self.spool is None else in_memory + self.spool.untaken_items

    @property
    def steps(self) -> int:
        in_memory = self.put_steps - self._steps_popped - self._steps_dropped
        return in_memory if self.spool is None else in_memory + self.spool.untaken_steps

    @property
    def submitted(self) -> int:
        """The number of segments that the host has finished; with a spool, over all starts of the actor."""
        if self.spool is None:
            return self.put_items
        return self.spool.submitted + len(self._memory) + sum(self.memory_dropped.snapshot().values())

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments dropped before they were sent, by reason; with a spool, over all starts of the actor."""
        counts = {} if self.spool is None else self.spool.dropped
        for reason, count in self.memory_dropped.snapshot().items():
            counts[reason] = counts.get(reason, 0) + count
        return counts

    def fill_spool(self) -> bool:
        """Move some segments from memory to the spool, in one transaction. Return False if no segment was moved."""
        if self.spool is None:
            return False
        batch: list[PackedSegment] = []
        self.in_hand = min(SPOOLED_ITEMS, len(self._memory))
        while len(batch) < self.in_hand and (segment := self._pop()) is not None:
            if (packed := self._packed(segment)) is not None:
                batch.append(packed)
        if batch:
            self.spool.put(batch)
        self.in_hand = 0
        return bool(batch)

    def peek(self) -> QueuedSegmentInfo | None:
        """Return the properties of the segment that `take` returns next; None if there is no segment."""
        if self.spool is not None:
            return self.spool.peek() if self.spool.reconciled else None
        try:
            segment = self._memory[0]
        except IndexError:  # a host thread can drop it at any time
            return None
        return QueuedSegmentInfo(segment.generation, int(segment.versions.min()), segment.steps, segment.nbytes)

    def take(self) -> PackedSegment | None:
        """Remove and return the oldest segment, encoded for the message; None if no segment can be sent."""
        if self.spool is not None:
            return self.spool.take()
        segment = self._pop()
        return self._packed(segment) if segment is not None else None

    def drop(self, reason: str) -> bool:
        """Drop the oldest segment and count it as dropped for `reason`. Return False if the disk fails."""
        if self.spool is not None:
            return self.spool.drop_head(1, reason) == 1
        if self._pop() is not None:
            self.memory_dropped.add(reason)
        return True

    def newest_version(self, steps: int, generation: int) -> int:
        """Return the lowest version in the newest segments of `generation` that have `steps` steps; 0 if they have fewer."""
        lowest = None
        for segment in reversed(self._memory.copy()):
            if segment.generation != generation:
                break
            oldest = int(segment.versions.min())
            lowest = oldest if lowest is None else min(lowest, oldest)
            steps -= segment.steps
            if steps <= 0:
                return lowest
        return 0

    def close(self) -> None:
        """Move all segments to the spool and close it, if there is one."""
        while self.fill_spool():
            pass
        if self.spool is not None:
            self.spool.close()

    def _pop(self) -> Segment | None:
        try:
            segment = self._memory.popleft()
        except IndexError:
            return None
        self._bytes_popped += segment.nbytes
        self._steps_popped += segment.steps
        return segment

    def _packed(self, segment: Segment) -> PackedSegment | None:
        """Return a segment encoded for the message. If that fails, count it as dropped and return None."""
        try:
            return pack_segment(segment)
        except (ProtocolError, TypeError, ValueError):
            if not self.memory_dropped.get("not_encodable"):
                log.exception("a segment of %d steps can't be encoded, and is dropped", segment.steps)
            self.memory_dropped.add("not_encodable")
            return None
