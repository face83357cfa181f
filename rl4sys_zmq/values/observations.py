"""Trees of observations: their leaves in one fixed order, and back."""

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
    """The leaves of a space of observations, in the order in which they travel: the keys of each dict sorted.

    Attributes:
        structure: The dicts and tuples around the leaves; None if the space is one leaf.
        spaces: The spaces of the leaves.
        names: A name for each leaf, such as ``observations['camera']``; for a space of one leaf ``observations``.
    """

    structure: Structure
    spaces: tuple[LeafSpace, ...]
    names: tuple[str, ...]

    def flatten(self, tree: Tree) -> list[Any]:
        """Return the leaves of a tree.

        Raises:
            ObservationError: If the tree does not consist of the same dicts and tuples. A list counts as a tuple.
        """
        if self.structure is None:
            return [tree]
        leaves: list[Any] = []
        _collect(self.structure, tree, "", leaves)
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> Tree:
        """Return the tree with these leaves."""
        return unflatten(self.structure, leaves)

    def rows(self, tree: Tree) -> Sequence[Any]:
        """Return the ``N`` observations of a tree of arrays ``[N, ...]``; a single array unchanged."""
        if self.structure is None:
            return tree  # type: ignore[no-any-return]
        leaves = self.flatten(tree)
        return unflatten_each(self.structure, leaves, len(leaves[0]))

    def stack(self, observations: Sequence[Any]) -> Tree:
        """Return ``N`` observations as a tree of arrays ``[N, ...]``."""
        return self.unflatten(np.stack(column) for column in zip(*map(self.flatten, observations), strict=True))


def leaves_of(space: ObservationSpace) -> ObservationLeaves:
    """Return the leaves of a space of observations."""
    structure, spaces = _structure(space), tuple(_spaces(space))
    return ObservationLeaves(structure, spaces, tuple(leaf_paths(structure, "observations")))


def flat_space(space: ObservationSpace, user: str) -> Space:
    """Return a space that is a Box or Discrete.

    Args:
        space: The space of observations.
        user: What needs such a space, for the message, such as ``PPO``.

    Raises:
        ConfigError: If it is of another kind.
    """
    if isinstance(space, BoxSpace | DiscreteSpace):
        return space
    advice = "use Box or Discrete (gymnasium.wrappers.FlattenObservation makes a Box)"
    raise ConfigError(f"{user} does not support the observation space {space!s:.80}: {advice}", key="observation_space")


def integer_bounds(space: LeafSpace) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the lowest and the highest elements of a space of integers, of its shape; None for a Box."""
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
