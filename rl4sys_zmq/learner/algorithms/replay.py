"""Uniform replay of n-step transitions in preallocated numpy columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space

__all__ = ["Batch", "NStepColumns", "Replay", "n_step_columns"]


@dataclass(frozen=True, slots=True, eq=False)
class NStepColumns:
    """The n-step columns of one segment, one row per step.

    Attributes:
        returns: ``[T]`` float32, the discounted sum of the next ``n_t`` rewards.
        discounts: ``[T]`` float32, ``gamma ** n_t``, or 0 if the episode terminated within the window.
        reach: ``[T]`` int64, the row of ``segment.observations`` to bootstrap from (any valid row where the discount is 0).
    """

    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    reach: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """``B`` transitions, copied from the replay.

    Attributes:
        observations: ``[B, *obs]``, in the replay's dtype.
        actions: ``[B]`` int64, counted from 0.
        returns: ``[B]`` float32, see `NStepColumns`.
        discounts: ``[B]`` float32, see `NStepColumns`.
        successors: ``[B, *obs]``, the observations to bootstrap from.
        masks: ``[B, n]`` bool, the actions allowed in `successors`; None if no segment has had a mask.
    """

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    successors: NDArray[Any]
    masks: NDArray[np.bool_] | None


def n_step_columns(segment: Segment, n_step: int, gamma: float) -> NStepColumns:
    """Return the n-step returns within one segment (Sutton & Barto, 2nd edition, equation 7.1).

    A window never extends beyond its segment, because the next segment of the episode may arrive much later, or never. The last
    ``n_step - 1`` rows look ahead only ``n_t = T - t`` steps, where ``T`` is the number of steps and ``t`` the row, and are
    discounted by that many. A segment that was truncated or cut bootstraps from the observation after its last step. A terminated
    segment does not bootstrap.
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
    return NStepColumns(returns.astype(np.float32), discounts.astype(np.float32), reach)


class Replay:
    """The last `capacity` transitions. New ones overwrite the oldest.

    Observations are stored as float32, as the policy reads them. One-byte dtypes are kept, because a frame of pixels would grow
    fourfold. Both observations of a transition are stored, so rows do not depend on each other.
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
        """Return the number of transitions."""
        return min(self._written, self._capacity)

    def add(self, segment: Segment) -> None:
        """Write every step of a segment; of a segment longer than the capacity, the last steps."""
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
        """Return the rows of `count` transitions, drawn uniformly with replacement."""
        rows: NDArray[np.int64] = torch.randint(len(self), (count,), generator=generator).numpy()
        return rows

    def discard(self, rows: NDArray[np.int64]) -> list[int]:
        """Remove transitions, with all others of the segments that they came from.

        Copies of the remaining transitions overwrite the removed ones, so the number of transitions stays the same. If none
        remain, the replay is empty.

        Args:
            rows: Rows of the transitions.

        Returns:
            The segments, by their number in the order of `add`, from 0. Transitions that came with a `load` belong to no known
            segment: only those in `rows` are removed, and no number is returned for them.
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

    def gather(self, rows: NDArray[np.int64]) -> Batch:
        """Return copies of the transitions in some rows."""
        columns = {name: column[rows] for name, column in self._columns.items()}
        return Batch(**columns, masks=None if self._masks is None else self._masks[rows])

    def state(self) -> dict[str, Any]:
        """Return copies of the rows in use, and the write position."""
        held = len(self)
        state: dict[str, Any] = {name: column[:held].copy() for name, column in self._columns.items()}
        if self._masks is not None:
            state["masks"] = self._masks[:held].copy()
        return state | {"written": self._written}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of a replay of the same capacity and spaces.

        Raises:
            ConfigError: If the state has another capacity or other spaces.
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
    """Return masks ``[T, n]`` in which a row that forbids everything allows everything: no action was requested there."""
    return masks | ~masks.any(axis=1, keepdims=True)
