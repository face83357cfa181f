"""Groups of elements by what both sides know about them before the difference is decoded.

An optimiser moves all weights by about the same amount. In units of the last place, small weights therefore move further and
change more often, so the exponent of the base predicts most of the size of a difference. The element's last difference predicts
most of the rest. Elements for which both are similar form a group, and each group is coded by itself.
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
_LAST_DIFFERENCE = 32
"""Number of classes of the last difference: 0, or its number of bits."""


@dataclass(frozen=True, slots=True)
class ElementGroups:
    """The group of each weight (element of the flat state), and the sizes of the groups.

    Attributes:
        labels: Group of each element, ``[n]``.
        sizes: Number of elements in each group.
    """

    labels: NDArray[np.uint8]
    sizes: tuple[int, ...]

    def order(self) -> NDArray[np.intp]:
        """Return the indices of the elements, ordered by group, then by index."""
        return np.argsort(self.labels, kind="stable")

    def spans(self) -> Iterator[tuple[int, int]]:
        """Iterate over the groups in the array that `order` returns: yield the first position of each, and one past its last."""
        return itertools.pairwise(itertools.accumulate(self.sizes, initial=0))


def group(base: NDArray[np.int32], moved: Integers | None) -> ElementGroups:
    """Return the groups of all elements.

    Args:
        base: Bits of the base, ``[n]``.
        moved: Difference that led to the base, ``[n]``, if both sides have it.
    """
    keys = base >> 23
    keys &= 0xFF
    if moved is not None:
        moves = symbols_of(np.abs(moved.astype(np.int64)), 0)
        keys *= _LAST_DIFFERENCE
        keys += np.minimum(moves, _LAST_DIFFERENCE - 1)
        np.floor_divide(
            keys, _LAST_DIFFERENCE, out=keys, where=moves == 0
        )  # elements at rest can be half of all; keep them separate
    counts = np.bincount(keys, minlength=_EXPONENTS)
    least = max(LEAST_MEMBERS, keys.size // MOST_GROUPS)
    labels = np.zeros(counts.size, dtype=np.uint8)
    sizes = [0]
    # Go from the largest exponent down: small weights are many, and the remainder joins them.
    for key in np.flatnonzero(counts)[::-1]:
        if sizes[-1] >= least:
            sizes.append(0)
        labels[key] = len(sizes) - 1
        sizes[-1] += int(counts[key])
    return ElementGroups(labels[keys], tuple(sizes))
