"""The features of observations: the float32 vector that a network without convolutions gets for an observation of any space.

Actors and learners use the same functions, so their features are equal bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ObservationError
from rl4sys_zmq.immutable import immutable_object
from rl4sys_zmq.values.observations import SpaceLeaves, integer_bounds, leaves_of
from rl4sys_zmq.values.spaces import BoxSpace, DiscreteSpace, LeafSpace, MultiDiscreteSpace, ObservationSpace
from rl4sys_zmq.values.trees import Tree


@immutable_object
class FeatureLeaf:
    """The positions of the features (numbers that a network gets) that one array of an observation gives.

    Attributes:
        columns: The positions of these features among all.
        lowest: The lowest value of each integer that is one-hot encoded, int64 ``[n]``; None if the array is copied.
        counts: The number of values of each of these integers, int64 ``[n]``.
        offsets: The position of the first feature of each of these integers, int64 ``[n]``.
    """

    space: LeafSpace
    name: str
    columns: slice
    lowest: NDArray[np.int64] | None
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def positions(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return, for each of the integers ``[..., n]``, the position of the feature that is 1 in its one-hot form: int64
        ``[..., n]``.
        """
        assert self.lowest is not None
        index: NDArray[np.int64] = values.astype(np.int64, copy=False) - self.lowest  # uint64 minus int64 would be float64
        if ((index < 0) | (index >= self.counts)).any():
            raise ObservationError(f"{self.name} is outside {self.space!s:.80}: {values.tolist()!s:.80}")
        return index + self.offsets


@immutable_object
class FeatureLayout:
    """The ``F`` features of an observation (the numbers that a network gets), and their order.

    The features of one array follow those of another, in the order of sorted dict keys. A Box or MultiBinary array is
    flattened. A Discrete value becomes one-hot, and so does each element of a MultiDiscrete array.

    Attributes:
        has_continuous: True if at least one feature is an element of a Box.
    """

    size: int
    has_continuous: bool
    _leaves: SpaceLeaves
    parts: tuple[FeatureLeaf, ...]

    def continuous(self) -> NDArray[np.bool_]:
        """Return True for each feature that is an element of a Box, bool ``[F]``. Only these features are standardised."""
        return np.concatenate([np.full(p.columns.stop - p.columns.start, isinstance(p.space, BoxSpace)) for p in self.parts])

    def one(self, observation: Tree) -> NDArray[np.float32]:
        """Return the features of one observation, a new array float32 ``[F]``."""
        features = np.zeros(self.size, np.float32)
        for part, array in zip(self.parts, self._leaves.flatten(observation), strict=True):
            flat = np.asarray(array).reshape(-1)
            if part.lowest is None:
                features[part.columns] = flat
            else:
                features[part.positions(flat)] = 1.0
        return features

    def batch(self, observations: Tree) -> NDArray[np.float32]:
        """Return the features of ``N`` observations, float32 ``[N, F]``. A contiguous float32 Box is not copied."""
        arrays = self._leaves.flatten(observations)
        rows = len(arrays[0])
        if self._leaves.structure is None and self.parts[0].lowest is None:
            return np.ascontiguousarray(arrays[0], dtype=np.float32).reshape(rows, self.size)
        features = np.zeros((rows, self.size), np.float32)
        at = np.arange(rows)[:, None]
        for part, array in zip(self.parts, arrays, strict=True):
            flat = np.asarray(array).reshape(rows, prod(np.shape(array)[1:]))
            if part.lowest is None:
                features[:, part.columns] = flat
            else:
                features[at, part.positions(flat)] = 1.0
        return features


@lru_cache(maxsize=64)
def feature_layout(space: ObservationSpace) -> FeatureLayout:
    """Return the order of the features of the observations of a space. It takes little memory, even for a huge Discrete."""
    leaves = leaves_of(space)
    parts: list[FeatureLeaf] = []
    start = 0
    for name, leaf in zip(leaves.names, leaves.spaces, strict=True):
        lowest, counts, size = None, np.empty(0, np.int64), _leaf_size(leaf)
        if isinstance(leaf, DiscreteSpace | MultiDiscreteSpace):
            bounds = integer_bounds(leaf)
            assert bounds is not None
            lowest, highest = (bound.reshape(-1).astype(np.int64) for bound in bounds)
            counts = highest - lowest + 1
        offsets = start + np.cumsum(counts) - counts
        parts.append(FeatureLeaf(leaf, name, slice(start, start + size), lowest, counts, offsets))
        start += size
    return FeatureLayout(start, any(isinstance(leaf, BoxSpace) for leaf in leaves.spaces), leaves, tuple(parts))


def feature_size(space: ObservationSpace) -> int:
    """Return the number of features of an observation, the inputs of a network without convolutions."""
    return sum(map(_leaf_size, leaves_of(space).spaces))  # a huge Discrete is no number of an array


def _leaf_size(leaf: LeafSpace) -> int:
    if isinstance(leaf, DiscreteSpace):
        return leaf.n
    return sum(leaf.nvec) if isinstance(leaf, MultiDiscreteSpace) else prod(leaf.shape)
