"""What both sides know of an element before its difference comes, and what that says about it.

An optimiser moves weights by about the same amount, whatever they are, so in units of the last place small weights move
further and change more often: the exponent of the base says most of what can be known. How far the element moved one version
before says most of the rest. Elements of which the same is known are put side by side, and each such group is coded for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.weights.bits import Integers
from rl4sys_zmq.weights.symbols import symbols_of

__all__ = ["ElementGroups", "group"]

LEAST_MEMBERS = 256
MOST_GROUPS = 32
_EXPONENTS = 256
_MOVES = 32
"""Classes of the last difference: 0, and how many bits it has."""


@dataclass(frozen=True, slots=True)
class ElementGroups:
    """Which element is in which group.

    Attributes:
        labels: the group of each element, ``[n]``.
        sizes: how many elements each group has.
    """

    labels: NDArray[np.uint8]
    sizes: tuple[int, ...]

    def order(self) -> NDArray[np.intp]:
        """The elements in the order of their groups, then of the state."""
        return np.argsort(self.labels, kind="stable")

    def spans(self) -> Iterator[tuple[int, int]]:
        """Where each group begins and ends in that order."""
        return itertools.pairwise(itertools.accumulate(self.sizes, initial=0))


def group(base: NDArray[np.int32], moved: Integers | None) -> ElementGroups:
    """The groups of all elements.

    Args:
        base: the bits of the base, ``[n]``.
        moved: the difference that led to the base, if both sides have it, ``[n]``.
    """
    keys = base >> 23
    keys &= 0xFF
    if moved is not None:
        moves = symbols_of(np.abs(moved.astype(np.int64)), 0)
        keys *= _MOVES
        keys += np.minimum(moves, _MOVES - 1)
        np.floor_divide(keys, _MOVES, out=keys, where=moves == 0)  # what rests may be half of all, and is not mixed
    counts = np.bincount(keys, minlength=_EXPONENTS)
    least = max(LEAST_MEMBERS, keys.size // MOST_GROUPS)
    labels = np.zeros(counts.size, dtype=np.uint8)
    sizes = [0]
    # From the largest exponent down: small weights are many, and what is left over joins them.
    for key in np.flatnonzero(counts)[::-1]:
        if sizes[-1] >= least:
            sizes.append(0)
        labels[key] = len(sizes) - 1
        sizes[-1] += int(counts[key])
    return ElementGroups(labels[keys], tuple(sizes))
