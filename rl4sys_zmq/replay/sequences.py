"""The replay of an algorithm with a recurrent network: sequences of consecutive steps, drawn at random."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.replay.memory import Replay
from rl4sys_zmq.replay.pieces import ReplayRows
from rl4sys_zmq.replay.priorities import Draws, PriorityOptions
from rl4sys_zmq.replay.space_columns import ACTIONS, MASKS, SpaceColumns
from rl4sys_zmq.values import ObservationSpace, Segment, Space
from rl4sys_zmq.values.segment import ColumnSpec
from rl4sys_zmq.values.trees import Tree

_REWARDS, _SEGMENT = "rewards", "/segment"
_FIRST, _START, _STEPS, _TERMINATED = "first", "start", "steps", "terminated"
_INITIAL = "initial/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions:
    """The options of a `SequenceMemory`.

    Attributes:
        capacity: Largest number of steps. A segment of ``T`` steps needs room for ``T + 1``.
        length: Number of steps of a sequence that are trained on.
        burn_in: Number of steps before the trained ones, in the same segment, that are only used to compute the recurrent
            state.
        overlap: Number of trained steps that a sequence shares with the next one of the same segment.
        priority: The options of prioritized sampling. None: sequences are drawn uniformly.

    Raises:
        ConfigError: If a number is out of range.
    """

    capacity: int
    length: int
    burn_in: int = 0
    overlap: int = 0
    priority: PriorityOptions | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or self.burn_in < 0:
            raise ConfigError(f"length is {self.length} and burn_in {self.burn_in}; expected at least 1 and 0", key="length")
        if not 0 <= self.overlap < self.length:
            raise ConfigError(f"overlap is {self.overlap}; expected 0 to length - 1, which is {self.length - 1}", key="overlap")
        if self.capacity < 2:
            raise ConfigError(f"capacity is {self.capacity} steps; expected at least 2", key="capacity")


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBatch:
    """``B`` sequences of ``W = burn_in + length`` steps, copied from the replay. The first `burn_in` steps are not trained on.

    Attributes:
        observations: ``[B, W + 1, *obs]``, the observation before each step, and the one after the last step. For a Dict or
            Tuple space, a dict or tuple of such arrays.
        actions: ``[B, W, *act]``.
        rewards: Float32 ``[B, W]``.
        terminated: Bool ``[B, W]``. True for a step after which the episode ended in a terminal state. The next observation
            then has no meaning.
        valid: Bool ``[B, W]``. False for a row outside of the segment. Its other values have no meaning, and the recurrent
            state must not change there.
        masks: True for each allowed action, bool ``[B, W + 1, n]``; None if no segment has had a mask.
        initial: The extra columns with one row per segment, such as the recurrent state, ``[B, *row]``, for the first valid
            step. Zeros if that step is not the first of its segment: then the burn-in computes the recurrent state.
    """

    observations: Tree
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    masks: NDArray[np.bool_] | None
    initial: dict[str, NDArray[Any]]


class SequenceMemory(Replay):
    """The last segments of a client, at most `capacity` steps, as overlapping sequences. New segments overwrite the oldest.

    The sequences of a segment begin ``length - overlap`` steps apart, as in Kapturowski et al. 2019 (R2D2), section 2.3. The
    last sequence can be shorter. A sequence never has steps of two segments, because the recurrent state is known only at the
    beginning of a segment. If a part of a segment was overwritten, its sequences are not drawn any more.

    Each sequence has a *row*, its index in the replay. `SpaceColumns` describes the dtypes. Equal large observations are stored
    once. Only one thread may use the object. The first segment allocates the memory.

    Args:
        observation_space: Space of the observations.
        action_space: Space of the actions.
        options: The options.
        columns: The extra columns of the policy. Only those with one row per segment are stored.
    """

    def __init__(
        self,
        observation_space: ObservationSpace,
        action_space: Space,
        options: SequenceOptions,
        columns: tuple[ColumnSpec, ...] = (),
    ) -> None:
        self.options = options
        self._spaces = SpaceColumns(observation_space, action_space)
        initial = {c.name: ArraySpec(c.shape, np.dtype(c.dtype)) for c in columns if c.per == "segment"}
        self._initial = tuple(initial)
        plain = self._spaces.actions() | {_REWARDS: ArraySpec((), np.dtype(np.float32))}
        observed: dict[tuple[str, ...], ArraySpec] = {(name,): leaf for name, leaf in self._spaces.observations().items()}
        described = dict.fromkeys((_FIRST, _START, _STEPS, _SEGMENT), ArraySpec((), np.dtype(np.int64)))
        described[_TERMINATED] = ArraySpec((), np.dtype(np.bool_))
        described |= {_INITIAL + name: leaf for name, leaf in initial.items()}
        self._steps = ReplayRows(options.capacity, plain, observed)
        self._sequences = ReplayRows(options.capacity, described)
        super().__init__(self._sequences, options.priority, self._steps)

    def add(self, segment: Segment) -> None:
        """Store the steps of a segment, and its sequences. If the segment is longer than the replay, store only its beginning.

        Raises:
            ConfigError: If there is not enough memory or disk space, or if the segment lacks an extra column.
        """
        for name in self._initial:
            if name not in segment.initial:
                raise ConfigError(
                    f"a segment of episode {segment.episode_id} lacks the column {name!r}; record data with a policy of the kind "
                    "that is trained"
                )
        steps = min(segment.steps, self.options.capacity - 1)
        rows = steps + 1
        blocks = {ACTIONS: self._spaces.action_block(segment.actions[:steps]), _REWARDS: segment.rewards[:steps]}
        blocks |= {name: leaf[:rows] for name, leaf in self._spaces.observation_blocks(segment)}
        blocks = {name: _padded(block, rows) for name, block in blocks.items()}
        first = self._steps.end
        self._steps.write(blocks, rows, None if segment.masks is None else _padded(segment.masks[:rows], rows))
        self._drop_overwritten()
        self._describe(segment, first, steps)
        self._segments += 1

    def draw(self, count: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows of `count` random sequences, drawn with replacement, int64 ``[count]``. There must be at least one."""
        if self._priorities is not None:
            numbers = self._priorities.draw(count, draws)
        else:
            numbers = draws.integers(0, len(self), count) + self._sequences.begin
        return numbers % self.options.capacity

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]], share: float = 0.9) -> None:
        """Set the priorities of sequences to a weighted sum of the largest and the mean absolute TD error (R2D2, section 2.3).

        Args:
            rows: Rows of the sequences, ``[B]``.
            errors: TD errors of the trained steps, ``[B, length]``; 0 for steps that are not valid.
            share: Weight of the largest error. The mean error over the valid steps has the weight ``1 - share``.
        """
        trained = self.trained(rows)
        sizes = np.abs(errors)
        mixed = share * sizes.max(axis=1) + (1 - share) * sizes.sum(axis=1) / np.maximum(trained.sum(axis=1), 1)
        self._set_priorities(rows, mixed)

    def gather(self, rows: NDArray[np.int64]) -> SequenceBatch:
        """Return copies of the sequences in these rows."""
        described, width = self._sequences, self.options.burn_in + self.options.length
        first, start, steps = (described.take(name, rows)[:, None] for name in (_FIRST, _START, _STEPS))
        offsets = start - self.options.burn_in + np.arange(width + 1)
        places = (first + np.clip(offsets, 0, steps)) % self.options.capacity
        terminated = described.take(_TERMINATED, rows)[:, None] & (offsets[:, :-1] == steps - 1)
        take = self._steps.take
        at_begin = start[:, 0] <= self.options.burn_in  # then the first valid step is the first of the segment
        initial = {name: described.take(_INITIAL + name, rows) for name in self._initial}
        for column in initial.values():
            column[~at_begin] = 0
        return SequenceBatch(
            self._spaces.tree(take, places),
            take(ACTIONS, places[:, :-1]),
            take(_REWARDS, places[:, :-1]),
            terminated,
            self._valid(rows),
            take(MASKS, places) if MASKS in self._steps else None,
            initial,
        )

    def trained(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for each step of these sequences that is trained on, bool ``[B, length]``."""
        return self._valid(rows)[:, self.options.burn_in :]

    def discard(self, rows: NDArray[np.int64]) -> list[int]:
        """Remove these sequences, and all other sequences of their segments. The remaining sequences get other rows.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `add`.
        """
        ring = self._sequences
        held = np.arange(ring.begin, ring.end)
        bad = np.isin(ring.gather(_FIRST, held), ring.take(_FIRST, rows))
        gone = sorted({int(number) for number in ring.gather(_SEGMENT, held[bad]) if number >= 0})
        kept = None if self._priorities is None else self._priorities.state()
        ring.keep_only(held[~bad])
        if self._priorities is not None and kept is not None:
            self._priorities.load({**kept, "masses": kept["masses"][~bad]})
        return gone

    def state(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """Return copies of all sequences and priorities, in pieces (`StatePiece`). Pieces named in `stored` have no arrays."""
        return self._with_priorities({"steps": self._steps.state(stored), "sequences": self._sequences.state(stored)})

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of a replay with the same options and spaces. Raise `ConfigError` if it does not fit."""
        self._load(state, state["steps"], state["sequences"])

    def _describe(self, segment: Segment, first: int, steps: int) -> None:
        """Add the sequences of a segment. Its `steps` stored steps begin at the row with the number `first`."""
        starts = np.arange(0, steps, self.options.length - self.options.overlap)
        starts = starts[(starts == 0) | (starts + self.options.overlap < steps)]  # others have no steps of their own
        count = len(starts)
        blocks = {
            _FIRST: np.full(count, first),
            _START: starts,
            _STEPS: np.full(count, steps),
            _SEGMENT: np.full(count, self._segments),
            _TERMINATED: np.full(count, segment.terminated and steps == segment.steps),
            **{_INITIAL + name: np.repeat(segment.initial[name][None], count, axis=0) for name in self._initial},
        }
        self._sequences.write(blocks, count)

    def _drop_overwritten(self) -> None:
        """Drop the sequences of segments of which the oldest steps were overwritten."""
        ring, begin = self._sequences, self._sequences.begin
        while ring.begin < ring.end and ring.gather(_FIRST, np.array([ring.begin]))[0] < self._steps.begin:
            ring.drop_before(ring.begin + 1)
        if self._priorities is not None:
            self._priorities.drop(np.arange(begin, ring.begin))

    def _valid(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        start, steps = (self._sequences.take(name, rows)[:, None] for name in (_START, _STEPS))
        offsets = start - self.options.burn_in + np.arange(self.options.burn_in + self.options.length)
        return (offsets >= 0) & (offsets < steps)


def _padded(block: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an array extended to `rows` rows by its last row, because zeros could be outside of an observation space."""
    missing = rows - len(block)
    return np.concatenate([block, np.repeat(block[-1:], missing, axis=0)]) if missing else block
