"""What the elements of a state are on the wire, as integers: neighbouring values have neighbouring integers.

The difference of two such integers, wrapped to the size of a word, is exact for every bit pattern, invertible, and composable by
addition. In memory a state is float32 in any case; `bf16` and `grid` say which float32 values there are.
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

__all__ = ["BF16", "FP32", "IntegerForm", "Grid", "WireDtype", "form_of"]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_LOW_HALF = np.int32(0xFFFF)
_MOST = float(2**31 - 1)


class WireDtype(IntEnum):
    """What the elements of a state are on the wire."""

    FP32 = 0
    BF16 = 1
    GRID = 2

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 2 if self is WireDtype.BF16 else 4


class IntegerForm(ABC):
    """A way to see a state as integers.

    Attributes:
        word: the dtype of the integers, in which differences wrap.
    """

    word: type[np.int16] | type[np.int32] = np.int32

    @abstractmethod
    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """The integer of each element, in a fresh array."""

    @abstractmethod
    def flat(self, integers: Integers) -> FlatWeights:
        """The elements with these integers, in a fresh array."""

    @abstractmethod
    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """The state in which each element has the value that its integer stands for: itself where that is so anyway."""

    def select(self, where: Integers | slice) -> IntegerForm:
        """The same for some of the elements."""
        return self


class Fp32(IntegerForm):
    """All float32 values: their bits, as integers of the same order (of negative floats all bits but the sign are flipped)."""

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """See `IntegerForm`."""
        return _ordered(flat.view(np.int32))

    def flat(self, integers: Integers) -> FlatWeights:
        """See `IntegerForm`."""
        return _ordered(integers.astype(np.int32, copy=False)).view(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """See `IntegerForm`."""
        return flat


class Bf16(Fp32):
    """The float32 values whose lower 16 bits are 0: the upper halves of those integers."""

    word = np.int16

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """See `IntegerForm`.

        Raises:
            WeightsError: for a value that bf16 does not have (``reason="dtype"``).
        """
        bits = flat.view(np.int32)
        if np.bitwise_or.reduce(bits, initial=0) & _LOW_HALF:
            raise WeightsError("a state with values that bf16 does not have", reason="dtype")
        out = _ordered(bits)
        out >>= 16
        return out

    def flat(self, integers: Integers) -> FlatWeights:
        """See `IntegerForm`."""
        upper = integers.astype(np.int16, copy=False).astype(np.int32)
        upper ^= (upper >> 31) & np.int32(0x7FFF)
        upper <<= 16
        return upper.view(np.float32)


class Grid(IntegerForm):
    """Multiples of a power of two, which each tensor has its own of: the integers are the multiples."""

    def __init__(self, exponents: Integers) -> None:
        """Makes it.

        Args:
            exponents: of the power of two, for each element.
        """
        self._exponents = exponents

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """See `IntegerForm`. What lies between two multiples goes to the nearer, of two that are as near to the even one."""
        multiples = np.rint(np.ldexp(flat.astype(np.float64), -self._exponents))
        return np.clip(multiples, -_MOST, _MOST, out=multiples).astype(np.int32)

    def flat(self, integers: Integers) -> FlatWeights:
        """See `IntegerForm`."""
        with np.errstate(over="ignore"):
            return np.ldexp(integers.astype(np.float64), self._exponents).astype(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """See `IntegerForm`."""
        return self.flat(self.integers(flat))

    def select(self, where: Integers | slice) -> Grid:
        """See `IntegerForm`."""
        return Grid(self._exponents[where])


FP32, BF16 = Fp32(), Bf16()


def form_of(dtype: WireDtype, exponents: Sequence[int] = (), sizes: Sequence[int] = ()) -> IntegerForm:
    """The form of a wire dtype.

    Args:
        dtype: the wire dtype.
        exponents: of a grid: one for each tensor.
        sizes: of a grid: the elements of each tensor.
    """
    match dtype:
        case WireDtype.FP32:
            return FP32
        case WireDtype.BF16:
            return BF16
        case WireDtype.GRID:
            return Grid(np.repeat(np.array(exponents, dtype=np.int32), np.array(sizes, dtype=np.int64)))


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Float bits to integers of the same order, in a fresh array; its own inverse."""
    out: NDArray[np.int32] = bits >> 31
    out &= _MAGNITUDE
    out ^= bits
    return out
