"""The segment: consecutive steps of one episode, the unit that actors send and that the learner counts and trains on.

A policy can add extra columns to it, such as a recurrent state or the logits (`ColumnSpec`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, make_dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.immutable import immutable, immutable_object
from rl4sys_zmq.names import check_name
from rl4sys_zmq.values.spaces import DTYPES
from rl4sys_zmq.values.trees import Tree, flatten, unflatten

MAX_COLUMNS = 32
"""The largest number of extra columns of one policy."""
MAX_ROW_ELEMENTS = 1 << 20
"""The largest number of elements of one row, so that a received description cannot cause a large allocation."""
MAX_DIMENSIONS = 7
"""The largest number of dimensions of a row. The array of a column has one more, for the steps."""
RESERVED = frozenset({"observations", "actions", "rewards", "log_probs", "versions", "masks"})
"""The names of the standard columns of segments."""


@immutable
class ColumnSpec:
    """The name, shape and dtype of one extra column that a policy records in segments.

    Attributes:
        name: The key of the column in `Segment.extras` or `Segment.initial`.
        shape: The shape of one row; ``()`` for a number.
        dtype: One of `DTYPES`, such as ``<f4``. The values of a float column must be finite, with absolute values up to the
            learner's option ``max_magnitude``.
        per: ``"step"`` for one row per step (`Segment.extras`). ``"segment"`` for one row per segment, the value at its first
            step (`Segment.initial`).

    Raises:
        ConfigError: If the name is invalid or the name of a standard column, or another value is invalid.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "<f4"
    per: Literal["step", "segment"] = "step"

    def __post_init__(self) -> None:
        check_name(self.name, "columns")
        shape, problem = self.shape, ""
        if self.name in RESERVED:
            problem = "has the name of a column that every segment has; choose another name"
        elif self.dtype not in DTYPES:
            problem = f"has the unsupported dtype {self.dtype!r:.60}; use one of {', '.join(DTYPES)}"
        elif self.per not in ("step", "segment"):
            problem = f"has per={self.per!r:.60}; expected 'step' or 'segment'"
        elif type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n > 0 for n in shape):
            problem = f"has rows of {shape!s:.80}; expected at most {MAX_DIMENSIONS} positive dimensions"
        elif prod(shape) > MAX_ROW_ELEMENTS:
            problem = f"has rows of {prod(shape)} elements; the limit is {MAX_ROW_ELEMENTS}"
        if problem:
            raise ConfigError(f"column {self.name!r} {problem}", key="columns")


def check_columns(columns: Sequence[ColumnSpec]) -> None:
    """Check the number and the names of the extra columns of one policy."""
    names = [column.name for column in columns]
    if len(names) > MAX_COLUMNS:
        raise ConfigError(f"a policy has {len(names)} extra columns; the limit is {MAX_COLUMNS}", key="columns")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"two extra columns of a policy have the name {min(twice)!r}; give each its own name", key="columns")


NO_EXTRAS: Mapping[str, NDArray[Any]] = MappingProxyType({})
"""The extra columns of all segments that have none."""
SOURCE_RULE = "expected 1 to 32 ASCII letters, digits, dots, hyphens and underscores"
_SOURCE = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)


@immutable_object
class Segment:
    """``T`` consecutive steps of one episode, as columns. Row ``t`` is one step.

    Attributes:
        observations: ``[T, *obs]`` if `terminated`. Otherwise ``[T + 1, *obs]``: the last row is the observation after the last
            step, for bootstrapping. The dtype is that of the observation space. For a Dict or Tuple space, this is a dict or
            tuple of such arrays.
        actions: ``[T, *act]``, the policy's raw actions (see `rl4sys_zmq.policies.Policy`), int64 for Discrete actions. For a
            Dict or Tuple space, this is a dict or tuple of such arrays.
        rewards: ``[T]`` float32; ``rewards[t]`` follows ``actions[t]``.
        log_probs: ``[T]`` float32, the log-probability of ``actions[t]`` under the policy that chose it.
        versions: ``[T]`` uint64, the number of the policy version that chose each action. Versions count within `generation`.
        masks: ``[len(observations), n]`` bool, True for each allowed action, in the order of
            `rl4sys_zmq.values.action_layout.ActionLayout`; None if the program that asked for actions passed no mask.
        generation: The generation of the policy: the number of the worker that published it.
        episode_id: A random 64-bit number shared by the segments of one episode.
        segment_index: The index of the segment in the episode, from 0.
        terminated: True if the episode ended in a terminal state with the last step.
        truncated: True if the episode was ended from outside after the last step. `terminated` and `truncated` are never both
            True. Both are False if the episode continues in the next segment.
        capped: True if the episode continues, but the actor counts a trajectory as complete with this segment, because the
            steps since the last such segment have reached ``max_traj_length``. Always False if the episode has ended.
        episode_return: The undiscounted sum of the rewards of the whole episode, in its last segment. None in other segments,
            and if a part of the episode was dropped before it was sent.
        episode_length: The number of steps of the whole episode, in its last segment. None in other segments.
        extras: The extra columns that the policy records with each step, by name, ``[T, *row]`` each. `PolicySpec.columns` has
            their shapes and dtypes.
        initial: The extra columns that the policy records once per segment, by name, ``[*row]`` each: the values at the first
            step, such as the recurrent state before that step.
        evaluation: True if an actor with ``explore: false`` sent it: the last step of an episode, with the episode's return. It
            is counted and not trained on.
        source: The source of the actions, such as ``human``, if the host overrode all of them (`RL4SysAction.override`). Empty
            if the policy chose all of them. An overridden action has the log-probability minus infinity if the policy never
            takes it, and NaN if the log-probability is unknown.
    """

    observations: Tree
    actions: Tree
    rewards: NDArray[np.float32]
    log_probs: NDArray[np.float32]
    versions: NDArray[np.uint64]
    masks: NDArray[np.bool_] | None
    generation: int
    episode_id: int
    segment_index: int
    terminated: bool
    truncated: bool
    capped: bool = False
    episode_return: float | None = None
    episode_length: int | None = None
    extras: Mapping[str, NDArray[Any]] = field(default_factory=lambda: NO_EXTRAS)
    initial: Mapping[str, NDArray[Any]] = field(default_factory=lambda: NO_EXTRAS)
    evaluation: bool = False
    source: str = ""

    @property
    def steps(self) -> int:
        """The number of steps, ``T``."""
        return len(self.rewards)

    @property
    def observation_leaves(self) -> list[NDArray[Any]]:
        """The arrays of `observations` as a flat list, in the order of sorted dict keys."""
        return _leaves(self.observations)

    @property
    def action_leaves(self) -> list[NDArray[Any]]:
        """The arrays of `actions` as a flat list, in the order of sorted dict keys."""
        return _leaves(self.actions)

    @property
    def ended(self) -> bool:
        """True if the episode ended with this segment."""
        return self.terminated or self.truncated

    @property
    def nbytes(self) -> int:
        """The size of all columns in bytes."""
        observed = self.observations
        size = observed.nbytes if isinstance(observed, np.ndarray) else sum(leaf.nbytes for leaf in self.observation_leaves)
        acted = self.actions
        size += acted.nbytes if isinstance(acted, np.ndarray) else sum(leaf.nbytes for leaf in self.action_leaves)
        size += self.rewards.nbytes + self.log_probs.nbytes + self.versions.nbytes
        if self.masks is not None:
            size += self.masks.nbytes
        if self.extras or self.initial:
            size += sum(c.nbytes for c in (*self.extras.values(), *self.initial.values()))
        return size


def _leaves(tree: Tree) -> list[NDArray[Any]]:
    return [tree] if isinstance(tree, np.ndarray) else flatten(tree, by_key=True)[0]


def is_source(text: str) -> bool:
    """Return True if a text can be a `Segment.source`."""
    return _SOURCE.fullmatch(text) is not None


def evaluation_of(segment: Segment) -> Segment:
    """Return an evaluation from the last segment of an episode: a segment of the last step, with the episode's return."""
    leaves, structure = flatten(segment.observations, by_key=True)
    actions, acted = flatten(segment.actions, by_key=True)
    rows = len(leaves[0]) - segment.steps + 1  # with the observation after the last step, if there is one
    return replace(
        segment,
        observations=unflatten(structure, (leaf[-rows:] for leaf in leaves)),
        actions=unflatten(acted, (leaf[-1:] for leaf in actions)),
        rewards=segment.rewards[-1:],
        log_probs=segment.log_probs[-1:],
        versions=segment.versions[-1:],
        masks=None if segment.masks is None else segment.masks[-rows:],
        extras={name: column[-1:] for name, column in segment.extras.items()},
        evaluation=True,
    )


_UnfrozenSegment: Any = make_dataclass("_UnfrozenSegment", [(f.name, f.type) for f in fields(Segment)], slots=True, eq=False)


def segment_of(*values: Any) -> Segment:
    """Return a `Segment` from the values of all fields, in their order. This is about five times faster than the constructor.

    A frozen dataclass sets each field by a call of ``object.__setattr__``. Here an equal class that is not frozen is filled and
    then changes its class, which Python allows because both have the same slots.
    """
    made = _UnfrozenSegment(*values)
    made.__class__ = Segment
    return cast(Segment, made)
