"""Mappings between weights and integers, one for each wire dtype. Neighbouring weights have neighbouring integers.

Differences of weights are computed with these integers, in arithmetic that wraps at the size of an integer. So they are exact for
every bit pattern and can be added and inverted without error. In memory the weights are always float32. The wire dtypes ``bf16``
and ``grid`` only restrict which float32 values occur.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights.bits import Integers

__all__ = ["BF16", "FP32", "IntegerMapping", "FixedPointMapping", "WireDtype", "form_of"]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_LOW_HALF = np.int32(0xFFFF)
_MOST = float(2**31 - 1)


class WireDtype(IntEnum):
    """The number format in which the float32 elements of the weights are sent.

    `FP32`: any float32 value. `BF16`: values whose lower 16 bits are 0, in 2 bytes. `GRID`: multiples of a power of two, which is
    chosen for each tensor.
    """

    FP32 = 0
    BF16 = 1
    GRID = 2

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes, without compression."""
        return 2 if self is WireDtype.BF16 else 4


class IntegerMapping(ABC):
    """A mapping between float32 weights and integers, for one wire dtype (number format in which weights are sent).

    Differences of weights are computed with these integers, so that they are exact.

    Attributes:
        word: Integer type of the differences. A difference that does not fit wraps around.
    """

    word: type[np.int16] | type[np.int32] = np.int32

    @abstractmethod
    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return the integer that stands for each weight, in a new array."""

    @abstractmethod
    def flat(self, integers: Integers) -> FlatWeights:
        """Return the weights for which these integers stand, in a new array. It is the inverse of `integers`."""

    @abstractmethod
    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the weights, each rounded to a value that this mapping can represent.

        Mappings other than `FixedPointMapping` do not round and return the same array.
        """

    def select(self, where: Integers | slice) -> IntegerMapping:
        """Return the same mapping for a part of the weights, for example for those that changed.

        Args:
            where: Indices or slice of the weights.
        """
        return self


class Fp32Mapping(IntegerMapping):
    """The mapping for any float32 values: their bits as integers, changed so that integers and values have the same order."""

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return an integer for each weight, in a new array: its bits, changed so that integers keep the order of weights."""
        return _ordered(flat.view(np.int32))

    def flat(self, integers: Integers) -> FlatWeights:
        """Return the weights for which these integers stand, in a new array. It is the inverse of `integers`."""
        return _ordered(integers.astype(np.int32, copy=False)).view(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the same array of weights, because this mapping can represent every float32 value."""
        return flat


class Bf16Mapping(Fp32Mapping):
    """The mapping for float32 values whose lower 16 bits are 0: the upper 16 bits of the integers of `Fp32Mapping`."""

    word = np.int16

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return an integer for each weight, in a new array: the upper 16 bits of its integer in `Fp32Mapping`.

        Raises:
            WeightsError: For a value that bf16 cannot represent (``reason="dtype"``).
        """
        bits = flat.view(np.int32)
        if np.bitwise_or.reduce(bits, initial=0) & _LOW_HALF:
            raise WeightsError("the state has values that bf16 cannot represent", reason="dtype")
        out = _ordered(bits)
        out >>= 16
        return out

    def flat(self, integers: Integers) -> FlatWeights:
        """Return the weights for which these integers stand, in a new array. It is the inverse of `integers`."""
        upper = integers.astype(np.int16, copy=False).astype(np.int32)
        upper ^= (upper >> 31) & np.int32(0x7FFF)
        upper <<= 16
        return upper.view(np.float32)


class FixedPointMapping(IntegerMapping):
    """The mapping for weights that are multiples of a power of two. The integer is the weight divided by this power.

    Each tensor has its own power of two.
    """

    def __init__(self, exponents: Integers) -> None:
        """Create the mapping.

        Args:
            exponents: Exponent of the power of two for each element, int32 ``[n]``.
        """
        self._exponents = exponents

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return an integer for each weight, in a new array: the weight divided by the power of two of its tensor, rounded.

        A tie goes to the even integer.
        """
        multiples = np.rint(np.ldexp(flat.astype(np.float64), -self._exponents))
        return np.clip(multiples, -_MOST, _MOST, out=multiples).astype(np.int32)

    def flat(self, integers: Integers) -> FlatWeights:
        """Return the weights for which these integers stand: each integer times the power of two of its tensor."""
        with np.errstate(over="ignore"):
            return np.ldexp(integers.astype(np.float64), self._exponents).astype(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the weights, each rounded to the nearest multiple of the power of two of its tensor."""
        return self.flat(self.integers(flat))

    def select(self, where: Integers | slice) -> FixedPointMapping:
        """Return the same mapping for a part of the weights, given by indices or a slice."""
        return FixedPointMapping(self._exponents[where])


FP32, BF16 = Fp32Mapping(), Bf16Mapping()


def form_of(dtype: WireDtype, exponents: Sequence[int] = (), sizes: Sequence[int] = ()) -> IntegerMapping:
    """Return the mapping between weights and integers for a wire dtype (number format in which weights are sent).

    Args:
        dtype: The wire dtype.
        exponents: For ``GRID``, the exponent of the power of two of each tensor.
        sizes: For ``GRID``, the number of elements of each tensor.
    """
    match dtype:
        case WireDtype.FP32:
            return FP32
        case WireDtype.BF16:
            return BF16
        case WireDtype.GRID:
            return FixedPointMapping(np.repeat(np.array(exponents, dtype=np.int32), np.array(sizes, dtype=np.int64)))


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the bits of floats as integers that have the same order as the floats.

    The bits of negative floats are inverted, except for the sign. A second call returns the original bits.
    """
    out: NDArray[np.int32] = bits >> 31
    out &= _MAGNITUDE
    out ^= bits
    return out
