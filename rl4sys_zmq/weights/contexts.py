"""Groups of weights that are likely to change by similar amounts. A diff encodes each group by itself, which saves bytes.

An optimiser moves all weights by about the same amount. In units of the last place of a float, small weights therefore change
more than large ones. So the floating-point exponent of a weight in the base (the state to which the diff applies) predicts most
of the size of its difference. The last difference of the weight predicts most of the rest. Weights for which both are similar
form a group. Sender and receiver compute the same groups, because both have the base and the last difference.
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
"""The number of classes of the last difference. The class is its number of bits, or 0 if the difference is 0."""


@dataclass(frozen=True, slots=True)
class ElementGroups:
    """The assignment of all weights of a policy to groups that are likely to change by similar amounts.

    A diff encodes each group by itself, which saves bytes.

    Attributes:
        labels: Index of each element's group, uint8 ``[n]``.
        sizes: Number of elements in each group.
    """

    labels: NDArray[np.uint8]
    sizes: tuple[int, ...]

    def order(self) -> NDArray[np.intp]:
        """Return the indices of all weights, ordered by group, then by index."""
        return np.argsort(self.labels, kind="stable")

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield for each group the position of its first weight in the array from `order`, and the position after its last."""
        return itertools.pairwise(itertools.accumulate(self.sizes, initial=0))


def group(base: NDArray[np.int32], moved: Integers | None) -> ElementGroups:
    """Assign each weight to a group of weights that are likely to change by similar amounts.

    Args:
        base: The weights to which the diff applies, as the bits of float32 values, int32 ``[n]``.
        moved: The last difference of the weights, which led to the base, ``[n]``; None if one side does not have it.
    """
    keys = base >> 23
    keys &= 0xFF
    if moved is not None:
        moves = symbols_of(np.abs(moved.astype(np.int64)), 0)
        keys *= _LAST_DIFFERENCE
        keys += np.minimum(moves, _LAST_DIFFERENCE - 1)
        np.floor_divide(
            keys, _LAST_DIFFERENCE, out=keys, where=moves == 0
        )  # half of all elements can have a last difference of 0; they get separate groups
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
