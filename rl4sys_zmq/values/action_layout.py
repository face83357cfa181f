"""The parts of a policy's action, and their positions in the outputs of a network, in a mask and in a joined array.

An action consists of *choices* and *numbers*. A choice is one of several options: a Discrete space has one choice, a
MultiDiscrete or MultiBinary space has one for each array element. A number is one element of a Box. The parts of an action are
independent of each other, so the log-probability of an action is the sum of those of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.immutable import immutable_object
from rl4sys_zmq.values.observations import SpaceLeaves, integer_bounds, leaves_of
from rl4sys_zmq.values.spaces import ActionSpace, BoxSpace, DiscreteSpace, LeafSpace, MultiBinarySpace, MultiDiscreteSpace
from rl4sys_zmq.values.trees import Tree

MAX_CHOICES = 4096
"""The largest number of choices of an action, so that a received description cannot cause a large allocation."""
MAX_OPTIONS = 1 << 20
"""The largest number of options of all choices together, unless the space is Discrete.

Joined actions contain the index of an option as float32, which is exact up to 2^24.
"""


@immutable_object
class ActionLeaf:
    """The place of one array of an action among the action's discrete elements (*choices*) or Box elements (*numbers*).

    Attributes:
        columns: The positions of the array's elements among all choices, or among all numbers if the space is a Box.
        lowest: The lowest value of each choice, int64 ``[n]``; None if the space is a Box.
    """

    space: LeafSpace
    name: str
    columns: slice
    lowest: NDArray[np.int64] | None


@immutable_object
class ChoiceGroup:
    """The ``G`` discrete elements (*choices*) of an action with the same number of options, which are computed together.

    Attributes:
        choices: Their indices among all choices, int64 ``[G]``.
        logits: The positions of their logits among all logits, int64 ``[G * options]``.
    """

    options: int
    choices: NDArray[np.int64]
    logits: NDArray[np.int64]


@immutable_object
class ActionLayout:
    """The discrete elements (*choices*) and Box elements (*numbers*) of the actions of one space, and their order.

    The outputs of a policy network are first the logits of all choices, one choice after another, and then the means of all
    numbers. A mask has one element for each logit, in the same order. The choices are in the order of the arrays of an action
    (by sorted dict keys), and then row-major. So are the numbers.

    Attributes:
        counts: The number of options of each choice.
        numbers: The number of elements of all Boxes together.
    """

    leaves: SpaceLeaves
    parts: tuple[ActionLeaf, ...]
    counts: tuple[int, ...]
    numbers: int

    @property
    def choices(self) -> int:
        """The number of choices."""
        return len(self.counts)

    @property
    def logits(self) -> int:
        """The number of options of all discrete elements together: the length of a mask."""
        return sum(self.counts)

    @property
    def outputs(self) -> int:
        """The number of outputs of a policy network: the logits of all options, and the means of all Box elements."""
        return self.logits + self.numbers

    def name_of(self, choice: int) -> str:
        """Return the name of a discrete element of an action, such as ``actions['move'][2]``, by its number."""
        part = next(p for p in self.parts if p.lowest is not None and p.columns.start <= choice < p.columns.stop)
        return part.name if isinstance(part.space, DiscreteSpace) else f"{part.name}[{choice - part.columns.start}]"

    def join(self, actions: Tree) -> NDArray[np.float32]:
        """Return raw actions as one array: the index of each discrete element's option, from 0, and then the Box elements."""
        arrays = self.leaves.flatten(actions)
        joined = np.empty((len(arrays[0]), self.choices + self.numbers), np.float32)
        numbers = joined[:, self.choices :]
        for part, array in zip(self.parts, arrays, strict=True):
            flat = array.reshape(len(array), -1)
            if part.lowest is None:
                numbers[:, part.columns] = flat
            else:
                joined[:, part.columns] = flat - part.lowest
        return joined

    def indices(self, action: Tree) -> NDArray[np.int64]:
        """Return the index of the option of each discrete element of one action, from 0, int64 ``[choices]``."""
        pairs = zip(self.parts, self.leaves.flatten(action), strict=True)
        indices = [np.asarray(leaf, np.int64).reshape(-1) - part.lowest for part, leaf in pairs if part.lowest is not None]
        return np.concatenate(indices) if indices else np.empty(0, np.int64)

    def forbidden_choice(self, masks: NDArray[Any]) -> tuple[int, str] | None:
        """Return the row and the name of the first discrete element whose options are all forbidden; None if there is none."""
        if len(self.counts) == 1:
            allowed = masks.any(axis=1)
            return None if allowed.all() else (int(np.argmin(allowed)), self.name_of(0))
        for group in choice_groups(self):
            allowed = masks[:, group.logits].reshape(len(masks), -1, group.options).any(axis=2)
            if not allowed.all():
                row, place = np.argwhere(~allowed)[0].tolist()
                return row, self.name_of(int(group.choices[place]))
        return None

    def join_mask(self, given: Tree) -> NDArray[np.bool_]:
        """Convert a host's mask of one action to the form that policies use: bool ``[logits]``, True for each allowed option."""
        flat = flat_mask(given, (self.logits,))
        if flat is not None:
            return _allowed(flat, "the mask")
        joined = np.ones(self.logits, np.bool_)
        ends = np.cumsum((0, *self.counts))
        for part, mask in zip(self.parts, self._mask_leaves(given), strict=True):
            if mask is None:
                continue
            if part.lowest is None:
                raise MaskError(f"the mask of {part.name} is a {type(mask).__name__}; a Box has no mask: use None")
            counts = self.counts[part.columns]
            joined[ends[part.columns.start] : ends[part.columns.stop]] = _leaf_mask(part, counts, mask)
        return joined

    def _mask_leaves(self, given: Tree) -> list[Any]:
        expected = f"an array of {self.logits} bools, or one mask for each part of the action"
        if self.leaves.structure is None:
            if given is None or isinstance(given, np.ndarray | list | tuple):
                return [given]
            raise MaskError(f"the mask is a {type(given).__name__}; expected {expected}")
        if isinstance(given, np.ndarray):
            raise MaskError(f"the mask is an array of the shape {given.shape}; expected {expected}")
        return self.leaves.flatten(given, error=MaskError, what="mask")


@lru_cache(maxsize=64)
def action_layout(space: ActionSpace) -> ActionLayout:
    """Return the order of the discrete elements and the Box elements in the actions of a space."""
    leaves = leaves_of(space, "actions")
    counts: list[int] = []
    numbers = 0
    parts = []
    for name, leaf in zip(leaves.names, leaves.spaces, strict=True):
        if not isinstance(leaf, BoxSpace) and len(counts) + prod(leaf.shape) > MAX_CHOICES:
            text = (
                f"the action space {space!s:.80} has {len(counts) + prod(leaf.shape)} or more choices; the limit is {MAX_CHOICES}"
            )
            raise ConfigError(text, key="action_space")
        bounds = integer_bounds(leaf)
        if bounds is None:
            assert isinstance(leaf, BoxSpace)
            parts.append(ActionLeaf(leaf, name, slice(numbers, numbers + leaf.size), None))
            numbers += leaf.size
            continue
        lowest, highest = (bound.reshape(-1) for bound in bounds)
        parts.append(ActionLeaf(leaf, name, slice(len(counts), len(counts) + lowest.size), lowest))
        counts += (highest - lowest + 1).tolist()
    if sum(counts) > MAX_OPTIONS and not isinstance(space, DiscreteSpace):
        text = f"the choices of the action space {space!s:.80} have {sum(counts)} options; the limit is {MAX_OPTIONS}"
        raise ConfigError(text, key="action_space")
    return ActionLayout(leaves, tuple(parts), tuple(counts), numbers)


def assemble_action(
    space: ActionSpace,
    mask: NDArray[np.bool_] | None,
    choose: Callable[[Sequence[int]], int],
    fill: Callable[[BoxSpace], NDArray[Any]],
) -> Tree:
    """Return an action for the environment, in the dtypes of the space.

    `choose` returns the option of one discrete element, from the list of those that `mask` allows. `fill` returns the array of
    a Box.
    """
    layout = action_layout(space)
    indices: list[int] = []
    at = 0
    for count in layout.counts:
        indices.append(choose(range(count) if mask is None else np.flatnonzero(mask[at : at + count]).tolist()))
        at += count
    arrays: list[Any] = []
    for part in layout.parts:
        if isinstance(part.space, BoxSpace):
            arrays.append(fill(part.space).astype(part.space.dtype))
            continue
        assert part.lowest is not None
        chosen = (np.array(indices[part.columns], np.int64) + part.lowest).astype(part.space.dtype).reshape(part.space.shape)
        arrays.append(chosen if part.space.shape else chosen[()])
    return layout.leaves.unflatten(arrays)


@lru_cache(maxsize=64)
def choice_groups(layout: ActionLayout) -> tuple[ChoiceGroup, ...]:
    """Return the discrete elements of an action, grouped by their number of options."""
    sizes = np.array(layout.counts, np.int64)
    starts = np.cumsum(sizes) - sizes
    groups = []
    for options in dict.fromkeys(layout.counts):
        choices = np.flatnonzero(sizes == options)
        groups.append(ChoiceGroup(options, choices, (starts[choices, None] + np.arange(options)).reshape(-1)))
    return tuple(groups)


def flat_mask(given: object, *shapes: tuple[int, ...]) -> NDArray[Any] | None:
    """Return a mask as an array if it is an array, or nested lists of numbers, of one of these shapes; else None."""
    if isinstance(given, np.ndarray):
        return given if given.shape in shapes else None
    if not isinstance(given, list | tuple):
        return None
    try:
        array = np.asarray(given)
    except (ValueError, TypeError):  # a tree of masks of different lengths
        return None
    return array if array.shape in shapes and array.dtype.kind in "biuf" else None


def _leaf_mask(part: ActionLeaf, counts: Sequence[int], given: object) -> NDArray[np.bool_]:
    """Return the mask of one array of an action, bool ``[sum(counts)]``, from a mask in Gymnasium's form."""
    name, space = f"the mask of {part.name}", part.space
    if isinstance(space, MultiDiscreteSpace) and isinstance(given, tuple):
        masks = list(_items(given))
        if len(masks) != len(counts):
            raise MaskError(f"{name} has {len(masks)} arrays; expected {len(counts)}, one for each element of {space!s:.80}")
        pairs = enumerate(zip(masks, counts, strict=True))
        return np.concatenate([_of_length(mask, n, f"{name}[{k}]") for k, (mask, n) in pairs])
    if given is not None and isinstance(space, MultiBinarySpace) and (array := _array(given, name)).shape == space.shape:
        only = array.reshape(-1)
        if only.dtype.kind not in "biu" or not ((only >= 0) & (only <= 2)).all():
            raise MaskError(f"{name} is {given!r:.60}; expected the allowed value of each element, 0 or 1, or 2 for both")
        return np.stack((only != 1, only != 0), axis=1).reshape(-1)
    return _of_length(given, sum(counts), name)


def _items(given: object) -> Iterator[object]:
    """Yield the masks in nested tuples, Gymnasium's form for a MultiDiscrete space of several dimensions."""
    if isinstance(given, tuple):
        for item in given:
            yield from _items(item)
    else:
        yield given


def _array(given: object, name: str) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as exc:
        raise MaskError(f"{name} is {given!r:.60}; expected an array of bools") from exc


def _of_length(given: object, length: int, name: str) -> NDArray[np.bool_]:
    if given is None:
        return np.ones(length, np.bool_)
    array = _array(given, name)
    if array.shape != (length,):
        raise MaskError(f"{name} has the shape {array.shape}; expected ({length},)")
    return _allowed(array, name)


def _allowed(array: NDArray[Any], name: str) -> NDArray[np.bool_]:
    allowed: NDArray[np.bool_] = array.astype(np.bool_)
    if array.dtype.kind not in "biuf" or not np.array_equal(allowed, array):
        raise MaskError(f"{name} contains other values than 0 and 1; use 1 for each allowed option")
    return allowed
