"""The division of a state for an update: elements in the wire dtype, and words that are sent as they are.

A *state* is all weights of one policy version. The wire dtypes ``bf16`` and ``grid`` do not round the exact tensors
(`TensorSpec.exact`). So these tensors are sent with those of other dtypes than float32, behind them. With ``fp32`` nothing is
rounded, and an exact tensor is sent like all float32 tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights, PolicySnapshot
from rl4sys_zmq.weights.forms import WireDtype

__all__ = ["Division", "division_of"]


class Division:
    """The division of the float32 elements of a state (all weights of a version): those that are rounded, and the exact ones.

    Attributes:
        sizes: The number of elements of each tensor that is rounded.
        kept: The number of elements that are not rounded.
    """

    def __init__(self, sizes: Sequence[int], exact: Sequence[bool]) -> None:
        """Take the tensors of a policy.

        Args:
            sizes: Number of elements of each float32 tensor.
            exact: For each of them, True if it is not rounded. Empty: all are rounded.
        """
        exact = tuple(exact) or (False,) * len(sizes)
        self.sizes = tuple([size for size, is_exact in zip(sizes, exact, strict=True) if not is_exact])
        self.kept = sum(sizes) - sum(self.sizes)
        self._size = sum(sizes)
        self._runs: list[tuple[bool, slice]] = []
        end = 0
        for is_exact, run in itertools.groupby(zip(exact, sizes, strict=True), key=lambda tensor: tensor[0]):
            start, end = end, end + sum(size for _, size in run)
            self._runs.append((is_exact, slice(start, end)))

    def rounded(self, flat: FlatWeights) -> FlatWeights:
        """Return the elements that are rounded: the same array if these are all, else a new one.

        Raises:
            WeightsError: If the state has another size (``reason="size"``).
        """
        return self._part(flat, exact=False) if self.kept else flat

    def exact(self, flat: FlatWeights) -> FlatWeights:
        """Return the elements that are not rounded, in a new array.

        Raises:
            WeightsError: If the state has another size (``reason="size"``).
        """
        return self._part(flat, exact=True) if self.kept else flat[:0]

    def parts(self, snapshot: PolicySnapshot) -> tuple[FlatWeights, bytes]:
        """Return the two parts of a snapshot that are encoded separately: the rounded elements, and the words.

        The words are the tensors of other dtypes (`PolicySnapshot.others`), and behind them the exact elements.

        Raises:
            WeightsError: If the snapshot has another size (``reason="size"``).
        """
        if not self.kept:
            return snapshot.flat, snapshot.others
        exact = self.exact(snapshot.flat).astype("<f4", copy=False)
        return self.rounded(snapshot.flat), snapshot.others + exact.tobytes()

    def joined(self, rounded: FlatWeights, kept: FlatWeights) -> FlatWeights:
        """Return the state of these parts: the same array if nothing is kept, else a new one.

        Args:
            rounded: The elements that are rounded.
            kept: The exact elements.
        """
        if not self.kept:
            return rounded
        flat = np.empty(self._size, dtype=np.float32)
        begins = {False: 0, True: 0}
        for is_exact, run in self._runs:
            begin = begins[is_exact]
            begins[is_exact] = end = begin + run.stop - run.start
            flat[run] = (kept if is_exact else rounded)[begin:end]
        return flat

    def _part(self, flat: FlatWeights, *, exact: bool) -> FlatWeights:
        if flat.size != self._size:
            raise WeightsError(f"{flat.size} elements for a policy of {self._size}", reason="size")
        parts = [flat[run] for is_exact, run in self._runs if is_exact is exact]
        return np.concatenate(parts) if parts else flat[:0]


def division_of(dtype: WireDtype, sizes: Sequence[int], exact: Sequence[bool]) -> Division:
    """Return the division of a policy's states (all weights of a version) for a wire dtype.

    Args:
        dtype: The number format in which the float32 elements are sent.
        sizes: Number of elements of each float32 tensor (`PolicySpec.sizes`).
        exact: For each of them, True if it is never rounded (`PolicySpec.exact`). Empty: no tensor is exact.
    """
    return _division(tuple(sizes), tuple(exact) if dtype is not WireDtype.FP32 and any(exact) else ())


@lru_cache(maxsize=64)
def _division(sizes: tuple[int, ...], exact: tuple[bool, ...]) -> Division:
    return Division(sizes, exact)
