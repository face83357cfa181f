"""Wire dtypes: the number formats in which weights are sent, the rounding to them, and their mappings to integers.

In memory the weights are always float32. A wire dtype says which float32 values occur. Differences of weights are computed with
integers, one for each value, in arithmetic that wraps at the size of an integer. So they are exact for every bit pattern and can
be added and inverted without error. Neighbouring weights have neighbouring integers.
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

Steps = tuple[int, ...]
"""The steps of the wire dtype ``grid``: for each tensor, the exponent of the power of two whose multiples its weights are."""

LEAST_EXPONENT, MOST_EXPONENT = -126, 127
_MANTISSA = 23
_FINE = 10
"""The first step of a tensor, before any update was measured, is its largest absolute value divided by two to this power."""
_SLACK = 0.6
"""The largest difference between the exponents of the present step and of the ideal step for which the step is kept."""
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
    """A mapping between float32 weights and integers, for one wire dtype.

    Attributes:
        dtype: The wire dtype.
        exponents: For ``GRID``, the exponent of each element's step, int8 ``[n]``; else None.
        word: Integer type of the differences. A difference that does not fit wraps around.
        rounds: True if `canonical` can change weights.
    """

    dtype: WireDtype = WireDtype.FP32
    exponents: NDArray[np.int8] | None = None
    word: type[np.int16] | type[np.int32] = np.int32
    rounds = False

    @abstractmethod
    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        """Return the integer that stands for each weight, in a new array."""

    @abstractmethod
    def flat(self, integers: Integers) -> FlatWeights:
        """Convert integers from the method `integers` back to weights: return float32 values in a new array."""

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        """Return the weights, each rounded to a value that has an integer: the same array unless `rounds`."""
        return flat

    def select(self, where: Integers | slice) -> IntegerMapping:
        """Return the mapping for a part of the weights, given by indices or a slice."""
        return self


class _Fp32Mapping(IntegerMapping):
    """The mapping of a float32 to its bits, changed so that integers and values have the same order."""

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        return _ordered(flat.view(np.int32))

    def flat(self, integers: Integers) -> FlatWeights:
        return _ordered(integers.astype(np.int32, copy=False)).view(np.float32)


class _Bf16Mapping(IntegerMapping):
    """The mapping of a bfloat16 value to the upper half of its integer in `_Fp32Mapping`. Other values raise `WeightsError`."""

    dtype = WireDtype.BF16
    word = np.int16

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        bits = flat.view(np.int32)
        if np.bitwise_or.reduce(bits, initial=0) & _LOW_HALF:
            raise WeightsError("the state has values that bf16 cannot represent", reason="dtype")
        out = _ordered(bits)
        out >>= 16
        return out

    def flat(self, integers: Integers) -> FlatWeights:
        upper = integers.astype(np.int16, copy=False).astype(np.int32)
        upper ^= (upper >> 31) & np.int32(0x7FFF)
        upper <<= 16
        return upper.view(np.float32)


class _FixedPointMapping(IntegerMapping):
    """The mapping of a weight to the nearest number of steps. A step is a power of two. A tie goes to the even number."""

    dtype = WireDtype.GRID
    exponents: NDArray[np.int8]
    rounds = True

    def __init__(self, exponents: NDArray[np.int8]) -> None:
        self.exponents = exponents

    def integers(self, flat: FlatWeights) -> NDArray[np.int32]:
        multiples = np.rint(np.ldexp(flat.astype(np.float64), -self.exponents.astype(np.int32)))
        return np.clip(multiples, -_MOST, _MOST, out=multiples).astype(np.int32)

    def flat(self, integers: Integers) -> FlatWeights:
        with np.errstate(over="ignore"):
            return np.ldexp(integers.astype(np.float64), self.exponents).astype(np.float32)

    def canonical(self, flat: FlatWeights) -> FlatWeights:
        return self.flat(self.integers(flat))

    def select(self, where: Integers | slice) -> IntegerMapping:
        return _FixedPointMapping(self.exponents[where])


FP32, BF16 = _Fp32Mapping(), _Bf16Mapping()


def form_of(dtype: WireDtype, steps: Steps = (), sizes: Sequence[int] = ()) -> IntegerMapping:
    """Return the mapping of a wire dtype; for ``GRID`` with the step and the size of each tensor."""
    if dtype is WireDtype.GRID:
        return _FixedPointMapping(np.repeat(np.array(steps, dtype=np.int8), np.array(sizes, dtype=np.int64)))
    return BF16 if dtype is WireDtype.BF16 else FP32


def round_to(dtype: WireDtype, flat: FlatWeights, steps: Steps = (), sizes: Sequence[int] = ()) -> FlatWeights:
    """Round weights to the nearest values of a wire dtype. Return them in a new array, float32 ``[n]``.

    If two values are equally near, the result is the even one.

    Args:
        dtype: The wire dtype.
        flat: The weights, finite float32 ``[n]``.
        steps: For ``GRID``, the step of each tensor.
        sizes: For ``GRID``, the number of elements of each tensor.

    Raises:
        WeightsError: If a value is not finite, before or after rounding (``reason="finite"``).
    """
    match dtype:
        case WireDtype.FP32:
            rounded = flat.copy()
        case WireDtype.BF16:
            bits = flat.view(np.uint32)
            half = (bits >> np.uint32(16)) & np.uint32(1)
            half += np.uint32(0x7FFF)
            half += bits
            half &= np.uint32(0xFFFF0000)
            rounded = half.view(np.float32)
        case WireDtype.GRID:
            rounded = form_of(dtype, steps, sizes).canonical(flat)
    if not np.isfinite(rounded).all() or (dtype is not WireDtype.FP32 and not np.isfinite(flat).all()):
        raise WeightsError("the weights are not finite", reason="finite")
    return rounded


def steps_of(flat: FlatWeights, sizes: Sequence[int]) -> Steps:
    """Return, for each tensor, the largest step of which all its weights are multiples."""
    bits = flat.view(np.int32)
    fractions = bits & 0x7FFFFF
    exponents = (bits >> 23) & 0xFF
    fractions |= (exponents > 0).astype(np.int32) << 23
    lowest = np.frexp((fractions & -fractions).astype(np.float32))[1] - 1 + np.maximum(exponents, 1) - 150
    lowest[fractions == 0] = MOST_EXPONENT
    starts = np.cumsum([0, *sizes])[:-1]
    return tuple(int(lowest[a : a + size].min(initial=MOST_EXPONENT)) for a, size in zip(starts, sizes, strict=True))


def choose_steps(flat: FlatWeights, last: FlatWeights | None, steps: Steps, sizes: Sequence[int], *, noise: float) -> Steps:
    """Choose the steps of the wire dtype ``grid`` for the next policy version.

    The rounding error should be small compared with an update of the weights. So the ideal step of a tensor is `noise` times the
    root mean square of its last update. The present step is kept while it is within a factor of about 1.5 of the ideal one. A
    step is never so small that a multiple needs more than 23 bits.

    Args:
        flat: The weights of the next version before rounding, finite float32 ``[n]``.
        last: The weights of the last version before rounding; None for the first version.
        steps: Steps of the last version; empty for the first version.
        sizes: Number of elements of each tensor.
        noise: Ratio of the step to the root mean square of an update.
    """
    out = []
    begin = 0
    for index, size in enumerate(sizes):
        now = flat[begin : begin + size].astype(np.float64)
        most = float(np.abs(now).max()) if size else 0.0
        moved = 0.0
        if last is not None and size:
            moved = float(np.sqrt(np.mean((now - last[begin : begin + size]) ** 2)))
        begin += size
        if moved:
            wanted = float(np.log2(noise * moved))
        elif steps:
            wanted = float(steps[index])
        else:
            wanted = float(np.log2(most)) - _FINE if most else float(LEAST_EXPONENT)
        step = round(wanted)
        if steps and last is not None and abs(steps[index] - wanted) <= _SLACK:
            step = steps[index]
        least = int(np.frexp(most)[1]) - _MANTISSA if most else LEAST_EXPONENT
        out.append(min(MOST_EXPONENT, max(LEAST_EXPONENT, least, step)))
    return tuple(out)


def _ordered(bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """Invert the bits of negative floats, except for the sign. A second call returns the original bits."""
    out: NDArray[np.int32] = bits >> 31
    out &= _MAGNITUDE
    out ^= bits
    return out
