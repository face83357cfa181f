"""A replay buffer of n-step transitions with uniform sampling, in preallocated numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space

__all__ = ["TransitionBatch", "NStepReturns", "ReplayMemory", "n_step_columns"]


@dataclass(frozen=True, slots=True, eq=False)
class NStepReturns:
    """The n-step returns of a segment (``T`` consecutive steps of one episode). Row ``t`` belongs to step ``t``.

    The target value of a step is ``returns + discounts * V(observations[reach])``.

    Attributes:
        returns: The discounted sum of the rewards of the next ``n_t`` steps, float32 ``[T]``. ``n_t`` is `n_step`, or less near
            the end of the segment.
        discounts: ``gamma ** n_t``, float32 ``[T]``; 0 if the episode terminated within these steps.
        reach: The row of ``segment.observations`` whose estimated value is added to the return, int64 ``[T]``. Where the discount
            is 0, this is any valid row.
    """

    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    reach: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TransitionBatch:
    """``B`` transitions, copied from the replay buffer.

    Attributes:
        observations: The observations before the actions, ``[B, *obs]``, in the dtype of the replay buffer.
        actions: Int64 ``[B]``, from 0.
        returns: The n-step returns, float32 ``[B]`` (see `NStepReturns`).
        discounts: The factors of the values of `successors`, float32 ``[B]`` (see `NStepReturns`).
        successors: The observations whose estimated values are added to the returns, ``[B, *obs]``.
        masks: True for each action that is allowed in `successors`, bool ``[B, n]``; None if no segment has had a mask.
    """

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    successors: NDArray[Any]
    masks: NDArray[np.bool_] | None


def n_step_columns(segment: Segment, n_step: int, gamma: float) -> NStepReturns:
    """Compute the n-step returns of all steps of a segment (Sutton & Barto, 2nd edition, equation 7.1).

    Only rewards of the same segment are used, because the next segment of the episode can arrive much later, or never. So step
    ``t`` of ``T`` looks ahead ``n_t = min(n_step, T - t)`` steps.

    If the episode terminated with the segment, the value after the last step is 0. Otherwise (truncated, or continued in
    another segment) it is the estimated value of the observation after the last step.
    """
    steps = segment.steps
    rows = np.arange(steps)
    reach = np.minimum(rows + n_step, steps)
    returns = np.zeros(steps, dtype=np.float64)
    for ahead in range(min(n_step, steps)):
        returns[: steps - ahead] += gamma**ahead * segment.rewards[ahead:]
    discounts = gamma ** (reach - rows)
    if segment.terminated:
        discounts = np.where(reach == steps, 0.0, discounts)
        reach = np.minimum(reach, steps - 1)
    return NStepReturns(returns.astype(np.float32), discounts.astype(np.float32), reach)


class ReplayMemory:
    """A replay buffer with the last `capacity` transitions. New transitions overwrite the oldest ones.

    Continuous observations are stored as float32, which the networks use. Observations of a one-byte dtype, such as pixels, keep
    their dtype to save memory. Each row contains both observations of its transition, so that rows are independent.
    """

    def __init__(self, observation_space: Space, action_space: DiscreteSpace, capacity: int, n_step: int, gamma: float) -> None:
        self._actions = action_space
        self._capacity = capacity
        self._n_step = n_step
        self._gamma = gamma
        shape, dtype = (capacity, *observation_space.shape), _storage_dtype(observation_space)
        self._columns: dict[str, NDArray[Any]] = {
            "observations": np.zeros(shape, dtype),
            "actions": np.zeros(capacity, np.int64),
            "returns": np.zeros(capacity, np.float32),
            "discounts": np.zeros(capacity, np.float32),
            "successors": np.zeros(shape, dtype),
        }
        self._masks: NDArray[np.bool_] | None = None
        self._sources = np.full(capacity, -1, np.int64)
        self._segments = 0
        self._written = 0

    def __len__(self) -> int:
        """Return the number of transitions in the buffer."""
        return min(self._written, self._capacity)

    def add(self, segment: Segment) -> None:
        """Store each step of a segment as a transition. If there are more steps than the capacity, write only the last ones."""
        ahead = n_step_columns(segment, self._n_step, self._gamma)
        keep = slice(max(0, segment.steps - self._capacity), None)
        rows = (self._written + np.arange(segment.steps)[keep]) % self._capacity
        columns = self._columns
        columns["observations"][rows] = segment.observations[: segment.steps][keep]
        columns["actions"][rows] = segment.actions[keep] - self._actions.start
        columns["returns"][rows] = ahead.returns[keep]
        columns["discounts"][rows] = ahead.discounts[keep]
        columns["successors"][rows] = segment.observations[ahead.reach[keep]]
        if segment.masks is not None and self._masks is None:
            self._masks = np.ones((self._capacity, self._actions.n), np.bool_)
        if self._masks is not None:
            self._masks[rows] = True if segment.masks is None else _usable(segment.masks[ahead.reach[keep]])
        self._sources[rows] = self._segments
        self._segments += 1
        self._written += segment.steps

    def draw(self, count: int, generator: torch.Generator) -> NDArray[np.int64]:
        """Return the row numbers of `count` random transitions, drawn uniformly with replacement, int64 ``[count]``."""
        rows: NDArray[np.int64] = torch.randint(len(self), (count,), generator=generator).numpy()
        return rows

    def discard(self, rows: NDArray[np.int64]) -> list[int]:
        """Remove transitions, and all other transitions of the same segments.

        Copies of the remaining transitions overwrite the removed ones, so the number of transitions does not change. If no
        transition remains, the buffer becomes empty.

        Args:
            rows: Row numbers of the transitions, int64.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `add`. The segments of transitions
            that came with `load` are unknown. Of these transitions, only the ones in `rows` are removed, and no number is
            returned for them.
        """
        sources = np.unique(self._sources[rows])
        sources = sources[sources >= 0]
        bad = np.isin(self._sources[: len(self)], sources)
        bad[rows] = True
        gone, left = np.flatnonzero(bad), np.flatnonzero(~bad)
        if not len(left):
            self._written = 0
            return [int(n) for n in sources]
        stand_ins = np.resize(left, len(gone))
        for column in (*self._columns.values(), self._sources, *([] if self._masks is None else [self._masks])):
            column[gone] = column[stand_ins]
        return [int(n) for n in sources]

    def gather(self, rows: NDArray[np.int64]) -> TransitionBatch:
        """Return copies of the transitions with these row numbers."""
        columns = {name: column[rows] for name, column in self._columns.items()}
        return TransitionBatch(**columns, masks=None if self._masks is None else self._masks[rows])

    def state(self) -> dict[str, Any]:
        """Return copies of all transitions, and the number of transitions written so far."""
        held = len(self)
        state: dict[str, Any] = {name: column[:held].copy() for name, column in self._columns.items()}
        if self._masks is not None:
            state["masks"] = self._masks[:held].copy()
        return state | {"written": self._written}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned for a buffer with the same capacity and spaces.

        Raises:
            ConfigError: If the arrays in the state have other shapes than those of this buffer.
        """
        held = min(int(state["written"]), self._capacity)
        for name, column in self._columns.items():
            expected = (held, *column.shape[1:])
            if state[name].shape != expected:
                raise ConfigError(
                    f"{name} in the replay state has shape {state[name].shape}; expected {expected}", key="buffer_size"
                )
            column[:held] = state[name]
        self._sources[:] = -1
        self._masks = None
        if "masks" in state:
            self._masks = np.ones((self._capacity, self._actions.n), np.bool_)
            self._masks[:held] = state["masks"]
        self._written = int(state["written"])


def _storage_dtype(space: Space) -> np.dtype[Any]:
    if isinstance(space, BoxSpace):
        own = np.dtype(space.dtype)
        return own if own.itemsize == 1 else np.dtype(np.float32)
    return np.dtype(np.int64)


def _usable(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return action masks ``[T, n]`` in which a row that forbids every action is replaced by one that allows every action.

    A row forbids every action if no action was requested at that step.
    """
    return masks | ~masks.any(axis=1, keepdims=True)
