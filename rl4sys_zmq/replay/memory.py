"""The replay of an off-policy algorithm: n-step transitions from segments, drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.draws import Draws
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.replay.n_step import n_step_columns
from rl4sys_zmq.replay.ring import RowRingBuffer
from rl4sys_zmq.values import BoxSpace, ObservationSpace, Segment
from rl4sys_zmq.values.observations import integer_bounds, leaves_of
from rl4sys_zmq.values.spaces import LeafSpace, MultiBinarySpace
from rl4sys_zmq.values.trees import Tree

__all__ = ["ReplayMemory", "ReplayOptions", "TransitionBatch"]

_ACTIONS, _RETURNS, _DISCOUNTS, _MASKS = "actions", "returns", "discounts", "masks"
_SEGMENT = "/segment"
"""The column with the number of each row's segment, or -1 if it is unknown. It is not part of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of a `ReplayMemory`.

    Attributes:
        capacity: Largest number of transitions.
        gamma: Discount per step.
        n_step: Number of rewards that are summed before the bootstrap.
    """

    capacity: int
    gamma: float
    n_step: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class TransitionBatch:
    """``B`` transitions, copied from the replay. `ReplayMemory` describes the dtypes.

    Attributes:
        observations: The observations before the actions, ``[B, *obs]``. For a Dict or Tuple space, a dict or tuple of arrays.
        actions: The actions ``[B, *act]``.
        returns: The n-step returns, float32 ``[B]`` (see `NStepReturns`).
        discounts: The factors of the values of `successors`, float32 ``[B]`` (see `NStepReturns`).
        successors: The observations whose estimated values are added to the returns, in the form of `observations`.
        masks: True for each action that is allowed in `successors`, bool ``[B, n]``; None if no segment has had a mask.
    """

    observations: Tree
    actions: NDArray[Any]
    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    successors: Tree
    masks: NDArray[np.bool_] | None


class ReplayMemory:
    """The last `capacity` transitions of a client. New transitions overwrite the oldest ones.

    A transition has a *row*, its index in the replay. Rows are valid until the next call of `add`, `discard` or `load`.

    An element of a Box is stored as float32, which the networks use. Observations of a one-byte dtype, such as pixels, keep their
    dtype to save memory. Discrete actions are int64 from 0, and discrete observations are int64 as they are. Elements of a
    MultiDiscrete space have the same dtypes. Elements of a MultiBinary space are int8.

    One thread uses the object. It has no random state; see `Draws`.
    """

    def __init__(self, observation_space: ObservationSpace, action_space: LeafSpace, options: ReplayOptions) -> None:
        """Create an empty replay for these spaces.

        Raises:
            ConfigError: If there is not enough memory.
        """
        self.options = options
        self._leaves = leaves_of(observation_space)
        self._successors = tuple(name.replace("observations", "successors", 1) for name in self._leaves.names)
        bounds = integer_bounds(action_space)
        self._first_action = None if bounds is None else bounds[0]
        columns = {}
        for name, successor, space in zip(self._leaves.names, self._successors, self._leaves.spaces, strict=True):
            columns[name] = columns[successor] = ArraySpec(space.shape, _observation_dtype(space))
        columns |= {
            _ACTIONS: ArraySpec(action_space.shape, _action_dtype(action_space)),
            _RETURNS: ArraySpec((), np.dtype(np.float32)),
            _DISCOUNTS: ArraySpec((), np.dtype(np.float32)),
            _SEGMENT: ArraySpec((), np.dtype(np.int64)),
        }
        self._ring = RowRingBuffer(options.capacity, None)
        self._ring.allocate({}, columns)
        self._segments = 0

    def __len__(self) -> int:
        """Return the number of transitions in the replay."""
        return self._ring.end - self._ring.begin

    def add(self, segment: Segment) -> None:
        """Store each step of a segment as a transition. If there are more steps than the capacity, store only the last ones."""
        ring, options = self._ring, self.options
        ahead = n_step_columns(segment, options.n_step, options.gamma)
        skipped = max(0, segment.steps - options.capacity)
        if skipped:
            ring.skip_to(ring.end + skipped)
        keep = slice(skipped, segment.steps)
        reach = ahead.reach[keep]
        actions = segment.actions[keep]
        blocks = {
            _ACTIONS: actions if self._first_action is None else actions - self._first_action,
            _RETURNS: ahead.returns[keep],
            _DISCOUNTS: ahead.discounts[keep],
        }
        for name, successor, leaf in zip(self._leaves.names, self._successors, segment.observation_leaves, strict=True):
            blocks[name], blocks[successor] = leaf[keep], leaf[reach]
        if segment.masks is not None and _MASKS not in ring:
            self._add_masks(segment.masks.shape[1])
        if _MASKS in ring:
            blocks[_MASKS] = self._free(len(reach)) if segment.masks is None else _usable(segment.masks[reach])
        blocks[_SEGMENT] = np.full(len(reach), self._segments)
        ring.make_room(len(reach))
        ring.append(blocks, len(reach))
        self._segments += 1

    def draw(self, count: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows of `count` random transitions, drawn uniformly with replacement, int64 ``[count]``."""
        return draws.integers(0, len(self), count)

    def gather(self, rows: NDArray[np.int64]) -> TransitionBatch:
        """Return copies of the transitions in these rows."""
        ring = self._ring
        return TransitionBatch(
            self._tree(self._leaves.names, rows),
            ring.take(_ACTIONS, rows),
            ring.take(_RETURNS, rows),
            ring.take(_DISCOUNTS, rows),
            self._tree(self._successors, rows),
            ring.take(_MASKS, rows) if _MASKS in ring else None,
        )

    def discard(self, rows: NDArray[np.int64]) -> list[int]:
        """Remove transitions, and all other transitions of the same segments.

        Copies of the remaining transitions overwrite the removed ones, so the number of transitions does not change. If no
        transition remains, the replay becomes empty.

        Args:
            rows: Rows of the transitions, int64.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `add`. The segments of transitions
            that came with `load` are unknown. Of these transitions, only the ones in `rows` are removed, and no number is
            returned for them.
        """
        segments = self._ring.take(_SEGMENT, np.arange(len(self)))
        sources = np.unique(segments[rows])
        sources = sources[sources >= 0]
        bad = np.isin(segments, sources)
        bad[rows] = True
        gone, left = np.flatnonzero(bad), np.flatnonzero(~bad)
        if not len(left):
            self._ring.skip_to(0)
        else:
            self._ring.overwrite(gone, np.resize(left, len(gone)))
        return [int(n) for n in sources]

    def state(self) -> dict[str, Any]:
        """Return copies of all transitions, and the number of transitions written so far."""
        held = np.arange(len(self))
        return {name: self._ring.take(name, held) for name in self._saved()} | {"written": self._ring.end}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned for a replay with the same options and spaces.

        Raises:
            ConfigError: If the arrays in the state have other shapes than those of this replay.
        """
        written = int(state["written"])
        held = min(written, self.options.capacity)
        if _MASKS in state and _MASKS not in self._ring:
            self._add_masks(np.asarray(state[_MASKS]).shape[1])
        blocks = {}
        for name, spec in self._saved().items():
            blocks[name] = self._free(held) if name == _MASKS and name not in state else np.asarray(state[name])
            expected = (held, *spec.shape)
            if blocks[name].shape != expected:
                problem = f"{name} in the replay state has shape {blocks[name].shape}; expected {expected}"
                raise ConfigError(problem, key="buffer_size")
        blocks[_SEGMENT] = np.full(held, -1, np.int64)
        order = np.arange(written - held, written) % self.options.capacity
        self._ring.skip_to(written - held)
        self._ring.append({name: block[order] for name, block in blocks.items()}, held)

    def _saved(self) -> dict[str, ArraySpec]:
        """Return the shape and dtype of a row of each column that is part of the state."""
        return {name: spec for name, spec in self._ring.specs.items() if name != _SEGMENT}

    def _free(self, rows: int) -> NDArray[np.bool_]:
        """Return masks that allow every action, ``[rows, n]``."""
        return np.ones((rows, *self._ring.specs[_MASKS].shape), np.bool_)

    def _tree(self, names: Iterable[str], rows: NDArray[np.int64]) -> Tree:
        return self._leaves.unflatten([self._ring.take(name, rows) for name in names])

    def _add_masks(self, actions: int) -> None:
        self._ring.add(_MASKS, ArraySpec((actions,), np.dtype(np.bool_)), fill=True)


def _observation_dtype(space: LeafSpace) -> np.dtype[Any]:
    if isinstance(space, BoxSpace):
        own = np.dtype(space.dtype)
        return own if own.itemsize == 1 else np.dtype(np.float32)
    return np.dtype(np.int8 if isinstance(space, MultiBinarySpace) else np.int64)


def _action_dtype(space: LeafSpace) -> np.dtype[Any]:
    if isinstance(space, BoxSpace):
        return np.dtype(np.float32)
    return np.dtype(np.int8 if isinstance(space, MultiBinarySpace) else np.int64)


def _usable(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return action masks ``[T, n]`` in which a row that forbids every action is replaced by one that allows every action.

    A row forbids every action if no action was requested at that step.
    """
    return masks | ~masks.any(axis=1, keepdims=True)
