"""The conversion of nested observations (dicts and tuples of arrays) to a list of arrays in a fixed order, and back.

The nested form is called a tree, and its arrays are called leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, ObservationError
from rl4sys_zmq.values.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    LeafSpace,
    MultiBinarySpace,
    ObservationSpace,
    Space,
    TupleSpace,
)
from rl4sys_zmq.values.trees import Structure, Tree, leaf_paths, unflatten, unflatten_each

__all__ = ["ObservationLeaves", "flat_space", "integer_bounds", "leaves_of"]


@dataclass(frozen=True, slots=True)
class ObservationLeaves:
    """The arrays (leaves) that form an observation of one space, in the order in which they are sent: by sorted dict keys.

    An observation that is a single array has one leaf.

    Attributes:
        structure: The dicts and tuples around the leaves; None if an observation is a single array.
        spaces: The space of each leaf.
        names: The name of each leaf, such as ``observations['camera']``; ``observations`` for a single array.
    """

    structure: Structure
    spaces: tuple[LeafSpace, ...]
    names: tuple[str, ...]

    def flatten(self, tree: Tree) -> list[Any]:
        """Return the arrays of one observation (its leaves) as a list, in the order of `names`.

        Raises:
            ObservationError: If the observation does not have the dicts and tuples of the space. A list counts as a tuple.
        """
        if self.structure is None:
            return [tree]
        leaves: list[Any] = []
        _collect(self.structure, tree, "", leaves)
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> Tree:
        """Build the observation that consists of these arrays (leaves). It is the inverse of `flatten`."""
        return unflatten(self.structure, leaves)

    def rows(self, tree: Tree) -> Sequence[Any]:
        """Split a batch into ``N`` single observations, given nested dicts and tuples of arrays with a leading axis of ``N``.

        If an observation is a single array, return the array itself, which is already a sequence of observations.
        """
        if self.structure is None:
            return tree  # type: ignore[no-any-return]
        leaves = self.flatten(tree)
        return unflatten_each(self.structure, leaves, len(leaves[0]))

    def stack(self, observations: Sequence[Any]) -> Tree:
        """Join ``N`` single observations to a batch: nested dicts and tuples of arrays with a leading axis of ``N``."""
        return self.unflatten(np.stack(column) for column in zip(*map(self.flatten, observations), strict=True))


def leaves_of(space: ObservationSpace) -> ObservationLeaves:
    """Return a description of the arrays (leaves) of which an observation of this space consists."""
    structure, spaces = _structure(space), tuple(_spaces(space))
    return ObservationLeaves(structure, spaces, tuple(leaf_paths(structure, "observations")))


def flat_space(space: ObservationSpace, user: str) -> Space:
    """Check that an observation space is a Box or Discrete, for code that supports no other kind, and return it unchanged.

    Args:
        space: The observation space.
        user: The name, for the error message, of the code that supports only these kinds, such as ``PPO``.

    Raises:
        ConfigError: If the space is of another kind.
    """
    if isinstance(space, BoxSpace | DiscreteSpace):
        return space
    advice = "use Box or Discrete (gymnasium.wrappers.FlattenObservation makes a Box)"
    raise ConfigError(f"{user} does not support the observation space {space!s:.80}: {advice}", key="observation_space")


def integer_bounds(space: LeafSpace) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the lowest and the highest value of each element of a space of integers, as two arrays of the space's shape.

    Return None for a `BoxSpace`, also if its elements are integers.
    """
    if isinstance(space, BoxSpace):
        return None
    if isinstance(space, DiscreteSpace):
        return np.array(space.start), np.array(space.start + space.n - 1)
    if isinstance(space, MultiBinarySpace):
        return np.zeros(space.shape, np.int64), np.ones(space.shape, np.int64)
    start = np.array(space.start, np.int64).reshape(space.shape)
    return start, start + np.array(space.nvec, np.int64).reshape(space.shape) - 1


def _structure(space: ObservationSpace | Any) -> Structure:
    if isinstance(space, DictSpace):
        keys = tuple(sorted(space.spaces))
        return dict, keys, tuple(_structure(space.spaces[key]) for key in keys)
    if isinstance(space, TupleSpace):
        return tuple, (), tuple(map(_structure, space.spaces))
    return None


def _spaces(space: ObservationSpace | Any) -> Iterator[LeafSpace]:
    if isinstance(space, DictSpace):
        for key in sorted(space.spaces):
            yield from _spaces(space.spaces[key])
    elif isinstance(space, TupleSpace):
        for part in space.spaces:
            yield from _spaces(part)
    else:
        yield space


def _collect(structure: Structure, tree: Tree, path: str, leaves: list[Any]) -> None:
    if structure is None:
        leaves.append(tree)
        return
    kind, keys, parts = structure
    if kind is dict:
        if not isinstance(tree, Mapping) or len(tree) != len(keys) or not all(key in tree for key in keys):
            found = f"a dict with the keys {sorted(map(str, tree))}" if isinstance(tree, Mapping) else f"a {type(tree).__name__}"
            expected = f"a dict with the keys {list(keys)}"
            raise ObservationError(f"the observation{path} is {found}; expected {expected}")
        for key, part in zip(keys, parts, strict=True):
            _collect(part, tree[key], f"{path}[{key!r}]", leaves)
        return
    if not isinstance(tree, tuple | list) or len(tree) != len(parts):
        found = f"a {type(tree).__name__}" + (f" of {len(tree)}" if isinstance(tree, tuple | list) else "")
        raise ObservationError(f"the observation{path} is {found}; expected a tuple of {len(parts)}")
    for index, part in enumerate(parts):
        _collect(part, tree[index], f"{path}[{index}]", leaves)
