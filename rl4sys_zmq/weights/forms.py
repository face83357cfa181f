"""Integer forms of states: neighbouring values have neighbouring integers.

The difference of two such integers, wrapped to the size of a word, is exact for every bit pattern. Differences can be inverted
and added. In memory a state is always float32; `bf16` and `grid` restrict which float32 values occur.
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
    """The form of a state's elements on the wire."""

    FP32 = 0
    BF16 = 1
    GRID = 2

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 2 if self is WireDtype.BF16 else 4


class IntegerForm(ABC):
    """A mapping between states and integers.

    Attributes:
        word: Dtype of the integers, in which differences wrap.
    """

    word: type[np.int16] | type[np.int32] = np.int32

    @abstractmethod
    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return the integer of each element, in a fresh array."""

    @abstractmethod
    def flat(self, integers: Integers) -> FlatWeights:
        """Return the elements with these integers, in a fresh array."""

    @abstractmethod
    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the state with each element replaced by the value of its integer; the state itself if nothing changes."""

    def select(self, where: Integers | slice) -> IntegerForm:
        """Return the form for some of the elements."""
        return self


class Fp32(IntegerForm):
    """The form of all float32 values: their bits as integers of the same order."""

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return the integers (`IntegerForm.integers`)."""
        return _ordered(flat.view(np.int32))

    def flat(self, integers: Integers) -> FlatWeights:
        """Return the elements (`IntegerForm.flat`)."""
        return _ordered(integers.astype(np.int32, copy=False)).view(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the state itself (`IntegerForm.canonical`)."""
        return flat


class Bf16(Fp32):
    """The form of float32 values whose lower 16 bits are 0: the upper halves of the integers of `Fp32`."""

    word = np.int16

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return the integers (`IntegerForm.integers`).

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
        """Return the elements (`IntegerForm.flat`)."""
        upper = integers.astype(np.int16, copy=False).astype(np.int32)
        upper ^= (upper >> 31) & np.int32(0x7FFF)
        upper <<= 16
        return upper.view(np.float32)


class Grid(IntegerForm):
    """The form of multiples of a power of two, one power for each tensor. The integers are the multiples."""

    def __init__(self, exponents: Integers) -> None:
        """Create the form.

        Args:
            exponents: Exponent of the power of two, for each element.
        """
        self._exponents = exponents

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return the nearest multiples (`IntegerForm.integers`). A tie goes to the even one."""
        multiples = np.rint(np.ldexp(flat.astype(np.float64), -self._exponents))
        return np.clip(multiples, -_MOST, _MOST, out=multiples).astype(np.int32)

    def flat(self, integers: Integers) -> FlatWeights:
        """Return the elements (`IntegerForm.flat`)."""
        with np.errstate(over="ignore"):
            return np.ldexp(integers.astype(np.float64), self._exponents).astype(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the state on the grid (`IntegerForm.canonical`)."""
        return self.flat(self.integers(flat))

    def select(self, where: Integers | slice) -> Grid:
        """Return the form for some of the elements (`IntegerForm.select`)."""
        return Grid(self._exponents[where])


FP32, BF16 = Fp32(), Bf16()


def form_of(dtype: WireDtype, exponents: Sequence[int] = (), sizes: Sequence[int] = ()) -> IntegerForm:
    """Return the form of a wire dtype.

    Args:
        dtype: The wire dtype.
        exponents: For a grid, the exponent of each tensor.
        sizes: For a grid, the number of elements of each tensor.
    """
    match dtype:
        case WireDtype.FP32:
            return FP32
        case WireDtype.BF16:
            return BF16
        case WireDtype.GRID:
            return Grid(np.repeat(np.array(exponents, dtype=np.int32), np.array(sizes, dtype=np.int64)))


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return float bits as integers of the same order (negative: all bits but the sign inverted). Its own inverse."""
    out: NDArray[np.int32] = bits >> 31
    out &= _MAGNITUDE
    out ^= bits
    return out
