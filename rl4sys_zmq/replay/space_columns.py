"""The columns of a replay for the observations and actions of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.values import BoxSpace, DictSpace, ObservationSpace, Segment, Space, TupleSpace
from rl4sys_zmq.values.observations import integer_bounds, leaves_of
from rl4sys_zmq.values.spaces import LeafSpace, MultiBinarySpace
from rl4sys_zmq.values.trees import Tree

ACTIONS, OBSERVATIONS, MASKS = "actions", "observations", "masks"
T = TypeVar("T")


class SpaceColumns:
    """The columns of a replay for observations and actions of two spaces: their names, shapes and dtypes.

    An element of a Box is stored as float32, which the networks use. Observations of a one-byte dtype, such as pixels, keep
    their dtype to save memory. Discrete actions are int64 from 0, and discrete observations are int64 as they are. Elements of
    a MultiDiscrete space have the same dtypes. Elements of a MultiBinary space are int8.
    """

    def __init__(self, observation_space: ObservationSpace, action_space: Space) -> None:
        if isinstance(action_space, DictSpace | TupleSpace):
            text = f"a replay stores actions of one array, not of {action_space!s:.80}; use an on-policy algorithm, such as PPO"
            raise ConfigError(text, key="action_space")
        self._leaves = leaves_of(observation_space)
        bounds = integer_bounds(action_space)
        self._first_action = None if bounds is None else bounds[0]
        self._actions = ArraySpec(action_space.shape, _dtype(action_space))

    def observations(self, role: str = OBSERVATIONS) -> dict[str, ArraySpec]:
        """Return the shape and dtype of each array of an observation, by column name. `role` is the beginning of the names."""
        spaces = self._leaves.spaces
        return {
            name: ArraySpec(space.shape, _observation_dtype(space)) for name, space in zip(self._names(role), spaces, strict=True)
        }

    def actions(self) -> dict[str, ArraySpec]:
        """Return the shape and dtype of an action, by column name."""
        return {ACTIONS: self._actions}

    def observation_blocks(self, segment: Segment, role: str = OBSERVATIONS) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield each column, and the segment's observations for it, ``[T, *obs]`` or ``[T + 1, *obs]``."""
        return zip(self._names(role), segment.observation_leaves, strict=True)

    def action_block(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return a segment's actions as they are stored, ``[T, *act]``."""
        return actions if self._first_action is None else actions - self._first_action

    def tree(self, take: Callable[[str, T], NDArray[Any]], rows: T, role: str = OBSERVATIONS) -> Tree:
        """Return the observations of `rows` in the form of their space. `take` returns rows of one column."""
        return self._leaves.unflatten([take(name, rows) for name in self._names(role)])

    def _names(self, role: str) -> list[str]:
        return [name.replace(OBSERVATIONS, role, 1) for name in self._leaves.names]


def _observation_dtype(space: LeafSpace) -> np.dtype[Any]:
    own = np.dtype(space.dtype)
    return own if isinstance(space, BoxSpace) and own.itemsize == 1 else _dtype(space)


def _dtype(space: LeafSpace) -> np.dtype[Any]:
    if isinstance(space, BoxSpace):
        return np.dtype(np.float32)
    return np.dtype(np.int8 if isinstance(space, MultiBinarySpace) else np.int64)
