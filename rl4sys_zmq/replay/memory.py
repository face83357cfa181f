"""The replay of an off-policy algorithm: n-step transitions from segments, drawn at random."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.folder import ScratchArrayFactory
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.replay.n_step import n_step_columns
from rl4sys_zmq.replay.pieces import ReplayRows
from rl4sys_zmq.replay.priorities import Draws, PrioritiesCopy, PriorityOptions, RowPriorities, importance_weights
from rl4sys_zmq.replay.space_columns import ACTIONS, MASKS, SpaceColumns
from rl4sys_zmq.values import ObservationSpace, Segment, Space
from rl4sys_zmq.values.trees import Tree, flatten, unflatten

_RETURNS, _DISCOUNTS, _SUCCESSORS = "returns", "discounts", "successors"
_SEGMENT = "/segment"
"""The number of each row's segment, or -1 if it is unknown. It is not part of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of a `ReplayMemory`.

    Attributes:
        capacity: Largest number of transitions.
        gamma: Discount per step.
        n_step: Number of rewards that are summed before the bootstrap.
        priority: The options of prioritized sampling. None: transitions are drawn uniformly.
    """

    capacity: int
    gamma: float
    n_step: int = 1
    priority: PriorityOptions | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TransitionBatch:
    """``B`` transitions, copied from the replay.

    Attributes:
        observations: The observations before the actions, ``[B, *obs]``. For a Dict or Tuple space, a dict or tuple of arrays.
        actions: ``[B, *act]``.
        returns: The n-step returns, float32 ``[B]`` (`NStepReturns`).
        discounts: The factors by which the values of `successors` are multiplied, float32 ``[B]``.
        successors: The observations whose estimated values are added to the returns, in the form of `observations`.
        masks: True for each action that is allowed in `successors`, bool ``[B, n]``; None if no segment has had a mask.
    """

    observations: Tree
    actions: NDArray[Any]
    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    successors: Tree
    masks: NDArray[np.bool_] | None

    def join(self, other: TransitionBatch) -> TransitionBatch:
        """Return the transitions of this batch, followed by those of the batch `other`, which has the same spaces."""
        masks = None
        if self.masks is not None or other.masks is not None:
            (known,) = {mask.shape[1] for mask in (self.masks, other.masks) if mask is not None}
            free = [np.ones((len(batch.returns), known), np.bool_) for batch in (self, other)]
            masks = np.concatenate([mine if of.masks is None else of.masks for of, mine in zip((self, other), free, strict=True)])
        names = ("observations", "actions", "returns", "discounts", "successors")
        return TransitionBatch(**{name: _joined(getattr(self, name), getattr(other, name)) for name in names}, masks=masks)


def _joined(one: Tree, other: Tree) -> Tree:
    leaves, structure = flatten(one, by_key=True)
    return unflatten(structure, map(np.concatenate, zip(leaves, flatten(other, by_key=True)[0], strict=True)))


class Replay:
    """The base class of replays, from which rows are drawn uniformly or by priority.

    Each row that can be drawn is a row of the ring buffer `drawn`. A subclass defines the meaning of these rows, and can have
    further ring buffers, `others`.
    """

    def __init__(self, drawn: ReplayRows, priority: PriorityOptions | None, *others: ReplayRows) -> None:
        self._drawn, self._rings = drawn, (*others, drawn)
        self._priorities = None if priority is None else RowPriorities(drawn, priority)
        self._segments = 0

    def __len__(self) -> int:
        return self._drawn.end - self._drawn.begin

    @property
    def nbytes(self) -> int:
        """The size of a full replay in bytes, without masks."""
        return sum(ring.nbytes for ring in self._rings)

    def use_folder(self, folder: Path) -> None:
        """Keep the arrays in files in this folder (`ScratchArrayFactory`). Call this before the first segment.

        Raises:
            ConfigError: If the disk has too little space.
        """
        make = ScratchArrayFactory(folder, self.nbytes)
        for ring in self._rings:
            ring.make = make
            ring.create(reserve=True)

    @property
    def _sampling(self) -> RowPriorities:
        if self._priorities is None:
            raise ConfigError("this replay draws uniformly; give its options a priority", key="prioritised")
        return self._priorities

    def weights(self, rows: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        """Return the importance weights of drawn rows, float32 ``[B]``; see `importance_weights`. Only with `priority`."""
        return importance_weights(self._sampling.masses(self._drawn.numbers(rows)), beta)

    def _set_priorities(self, rows: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of rows. A row whose new priority is not finite keeps the old one."""
        finite = np.isfinite(priorities)
        self._sampling.update(self._drawn.numbers(rows[finite]), priorities[finite])

    def checkpoint(self) -> PrioritiesCopy | None:
        """Return a copy of what an update changes: the priorities. None without the option `priority`."""
        return None if self._priorities is None else self._priorities.keep()

    def restore(self, kept: PrioritiesCopy | None) -> None:
        """Return to the priorities that `checkpoint` has copied. Rows that were added since then count as new."""
        if kept is not None:
            self._sampling.restore(kept)

    def _with_priorities(self, rows: dict[str, Any]) -> dict[str, Any]:
        return rows if self._priorities is None else rows | {"priorities": self._priorities.state()}

    def _load(self, state: Mapping[str, Any], *parts: Mapping[str, Any]) -> None:
        """Restore the states of the ring buffers from `parts`, and the priorities from `state`."""
        if self._priorities is not None and "priorities" not in state:
            raise ConfigError("the replay state has no priorities: it was saved without prioritised", key="prioritised")
        for ring, part in zip(self._rings, parts, strict=True):
            ring.load(part)
        if self._priorities is not None:
            self._priorities.load(state["priorities"])


class ReplayMemory(Replay):
    """The last `capacity` transitions of a client. New transitions overwrite the oldest ones.

    Each transition has a *row*, its index in the replay. Rows are valid until the next call of `add`, `discard` or `load`. The
    first transition allocates the memory.

    `SpaceColumns` describes the dtypes. Observations of at least 1 KiB, such as images, are stored once, even if several
    transitions contain them. The same holds for each frame of a stack of images (`stack_axis`).

    Only one thread may use the object. It has no random state; see `Draws`.
    """

    def __init__(self, observation_space: ObservationSpace, action_space: Space, options: ReplayOptions) -> None:
        self.options = options
        self._spaces = SpaceColumns(observation_space, action_space)
        number = ArraySpec((), np.dtype(np.float32))
        columns = {_RETURNS: number, _DISCOUNTS: number, _SEGMENT: ArraySpec((), np.dtype(np.int64))}
        observations = self._spaces.observations()
        pairs = zip(observations, self._spaces.observations(_SUCCESSORS), strict=True)
        observed: dict[tuple[str, ...], ArraySpec] = dict(zip(pairs, observations.values(), strict=True))
        self._ring = ReplayRows(options.capacity, self._spaces.actions() | columns, observed)
        super().__init__(self._ring, options.priority)

    @property
    def frames(self) -> int:
        """The number of stored frames of large observations, each of which can belong to several transitions."""
        return self._ring.frames

    def add(self, segment: Segment) -> None:
        """Store each step of a segment as a transition. If there are more steps than the capacity, store only the last ones.

        Raises:
            ConfigError: If there is not enough memory, or disk space.
        """
        ring, options = self._ring, self.options
        ahead = n_step_columns(segment, options.n_step, options.gamma)
        skipped = max(0, segment.steps - options.capacity)
        if skipped:
            ring.skip_to(ring.end + skipped)
        keep = slice(skipped, segment.steps)
        reach = ahead.reach[keep]
        blocks = {
            ACTIONS: self._spaces.action_block(segment.actions[keep]),
            _RETURNS: ahead.returns[keep],
            _DISCOUNTS: ahead.discounts[keep],
            _SEGMENT: np.full(len(reach), self._segments),
        }
        blocks |= {name: leaf[keep] for name, leaf in self._spaces.observation_blocks(segment)}
        blocks |= {name: leaf[reach] for name, leaf in self._spaces.observation_blocks(segment, _SUCCESSORS)}
        ring.write(blocks, len(reach), None if segment.masks is None else segment.masks[reach])
        self._segments += 1

    def draw(self, count: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows of `count` random transitions, drawn with replacement, int64 ``[count]``. One must exist."""
        if self._priorities is None:
            rows = draws.integers(0, len(self), count)
            return rows if self._from_zero else (rows + self._ring.begin) % self.options.capacity
        return self._priorities.draw(count, draws) % self.options.capacity

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of rows to the absolute values of their TD errors, ``[B]``. Only with the option `priority`.

        A row whose error is not finite keeps its priority.
        """
        self._set_priorities(rows, np.abs(errors))

    def gather(self, rows: NDArray[np.int64]) -> TransitionBatch:
        """Return copies of the transitions in these rows."""
        take = self._ring.take
        return TransitionBatch(
            self._spaces.tree(take, rows),
            take(ACTIONS, rows),
            take(_RETURNS, rows),
            take(_DISCOUNTS, rows),
            self._spaces.tree(take, rows, _SUCCESSORS),
            take(MASKS, rows) if MASKS in self._ring else None,
        )

    def discard(self, rows: NDArray[np.int64]) -> list[int]:
        """Remove transitions, and all other transitions of the same segments.

        Copies of the remaining transitions overwrite the removed ones, so the number of transitions does not change. If no
        transition remains, the replay becomes empty.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `add`. The segments of transitions
            from `load` are unknown, so of these only the transitions in `rows` are removed.
        """
        held = np.arange(len(self))
        if not self._from_zero:
            held = (held + self._ring.begin) % self.options.capacity
        sources = np.unique(self._ring.take(_SEGMENT, rows))
        sources = sources[sources >= 0]
        bad = np.isin(self._ring.take(_SEGMENT, held), sources) | np.isin(held, rows)
        gone, left = held[bad], held[~bad]
        if len(left):
            stand_ins = np.resize(left, len(gone))
            self._ring.overwrite(gone, stand_ins)
            if self._priorities is not None:
                self._priorities.overwrite(gone, stand_ins)
        else:
            self._ring.skip_to(0)
            if self._priorities is not None:
                self._priorities.clear()
        return [int(n) for n in sources]

    def state(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """Return copies of all transitions and priorities, in pieces (`StatePiece`). Pieces named in `stored` have no arrays."""
        return self._with_priorities(self._ring.state(stored))

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of a replay with the same options and spaces.

        Raises:
            ConfigError: If the arrays have other shapes than those of this replay, or priorities are missing.
        """
        self._load(state, state)

    @property
    def _from_zero(self) -> bool:
        """True if the rows are 0 to ``len(self) - 1``. False if `load` has restored the state of a full replay with a smaller
        capacity, until this replay is full too.
        """
        return self._ring.begin == 0 or len(self) == self.options.capacity
