"""Nested observations and actions (*trees*) as lists of arrays (*leaves*) in a fixed order, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import BadInput, ConfigError, ObservationError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.values.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    FlatSpace,
    LeafSpace,
    MultiBinarySpace,
    ObservationSpace,
    TupleSpace,
)
from rl4sys_zmq.values.trees import Structure, Tree, flatten, leaf_paths, unflatten, unflatten_each


@immutable
class SpaceLeaves:
    """The arrays that form an element of one space, in the order of sorted dict keys.

    Attributes:
        structure: The dicts and tuples around the leaves; None if an element is a single array.
        names: Such as ``observations['camera']``; ``observations`` for a single array.
    """

    structure: Structure
    spaces: tuple[LeafSpace, ...]
    names: tuple[str, ...]

    def flatten(self, tree: Tree, *, error: type[BadInput] = ObservationError, what: str = "observation") -> list[Any]:
        """Return the leaves of one element of the space, in the order of `names`.

        If `tree` has another structure, raise `error`. Its text begins with the word `what`.
        """
        if self.structure is None:
            return [tree]
        leaves: list[Any] = []
        _collect(self.structure, tree, "", leaves, error, what)
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> Tree:
        """Build the element of these leaves: the inverse of `flatten`."""
        return unflatten(self.structure, leaves)

    def rows(self, tree: Tree) -> Sequence[Any]:
        """Split a batch, a tree of arrays with a leading axis of ``N``, into ``N`` trees. A single array stays as it is."""
        if self.structure is None:
            return tree  # type: ignore[no-any-return]
        leaves = self.flatten(tree)
        return unflatten_each(self.structure, leaves, len(leaves[0]))

    def stack(self, observations: Sequence[Any]) -> Tree:
        """Join ``N`` elements to a batch: a tree of arrays with a leading axis of ``N``."""
        return self.unflatten(np.stack(column) for column in zip(*map(self.flatten, observations), strict=True))


def leaves_of(space: ObservationSpace, name: str = "observations") -> SpaceLeaves:
    """Return the structure, names and spaces of the arrays of a space's elements."""
    spaces, structure = flatten(_tree(space), by_key=True)
    return SpaceLeaves(structure, tuple(spaces), tuple(leaf_paths(structure, name)))


def flat_space(space: ObservationSpace, user: str, role: str = "observation") -> FlatSpace:
    """Return a space if it is a Box or Discrete, else raise ConfigError. `user` and `role` are words for the message."""
    if isinstance(space, BoxSpace | DiscreteSpace):
        return space
    advice = "use Box or Discrete" + (" (gymnasium.wrappers.FlattenObservation makes a Box)" if role == "observation" else "")
    raise ConfigError(f"{user} does not support the {role} space {space!s:.80}: {advice}", key=f"{role}_space")


def have_same_form(one: ObservationSpace, other: ObservationSpace) -> bool:
    """Return True if elements of two spaces have the same structure and shapes, and their integers the same range.

    The limits and dtypes of Boxes can differ.
    """
    a, b = leaves_of(one), leaves_of(other)
    return a.structure == b.structure and all(map(_have_same_form, a.spaces, b.spaces))


def _have_same_form(one: LeafSpace, other: LeafSpace) -> bool:
    if one.shape != other.shape:
        return False
    first, second = integer_bounds(one), integer_bounds(other)
    if first is None or second is None:
        return first is second
    return bool((first[0] == second[0]).all() and (first[1] == second[1]).all())


def integer_bounds(space: LeafSpace) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the lowest and the highest value of each integer of a space, in its shape. Return None for any `BoxSpace`."""
    if isinstance(space, BoxSpace):
        return None
    if isinstance(space, DiscreteSpace):
        return np.array(space.start), np.array(space.start + space.n - 1)
    if isinstance(space, MultiBinarySpace):
        return np.zeros(space.shape, np.int64), np.ones(space.shape, np.int64)
    start = np.array(space.start, np.int64).reshape(space.shape)
    return start, start + np.array(space.nvec, np.int64).reshape(space.shape) - 1


def _tree(space: ObservationSpace | Any) -> Tree:
    """Return nested dicts and tuples of leaf spaces."""
    if isinstance(space, DictSpace):
        return {key: _tree(part) for key, part in space.spaces.items()}
    return tuple(map(_tree, space.spaces)) if isinstance(space, TupleSpace) else space


def _collect(structure: Structure, tree: Tree, path: str, leaves: list[Any], error: type[BadInput], what: str) -> None:
    if structure is None:
        leaves.append(tree)
        return
    kind, keys, parts = structure
    if kind is dict:
        if not isinstance(tree, Mapping) or len(tree) != len(keys) or not all(key in tree for key in keys):
            received = (
                f"a dict with the keys {sorted(map(str, tree))}" if isinstance(tree, Mapping) else f"a {type(tree).__name__}"
            )
            raise error(f"the {what}{path} is {received}; expected a dict with the keys {list(keys)}")
        for key, part in zip(keys, parts, strict=True):
            _collect(part, tree[key], f"{path}[{key!r}]", leaves, error, what)
        return
    if not isinstance(tree, tuple | list) or len(tree) != len(parts):
        received = f"a {type(tree).__name__}" + (f" of {len(tree)}" if isinstance(tree, tuple | list) else "")
        raise error(f"the {what}{path} is {received}; expected a tuple of {len(parts)}")
    for index, part in enumerate(parts):
        _collect(part, tree[index], f"{path}[{index}]", leaves, error, what)
