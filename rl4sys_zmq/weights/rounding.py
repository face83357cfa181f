"""From the learner's float32 weights to the values that travel: bf16, or a grid of a power of two for each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights.forms import WireDtype, form_of

__all__ = ["LEAST_EXPONENT", "MOST_EXPONENT", "Steps", "choose_steps", "round_to", "steps_of"]

Steps = tuple[int, ...]
"""The exponents of a grid's steps, one for each tensor."""

LEAST_EXPONENT, MOST_EXPONENT = -126, 127
_MANTISSA = 23
_FINE = 10
"""Without an update to go by, a step is so many halvings of a tensor's size."""
_SLACK = 0.6
"""How far, in halvings, a step may be from the one that would be chosen now before it changes."""


def round_to(dtype: WireDtype, flat: FlatWeights, steps: Steps = (), sizes: Sequence[int] = ()) -> FlatWeights:
    """The nearest values that travel, in a fresh array ``[n]``; of two that are as near, the even one.

    Args:
        dtype: the wire dtype.
        flat: finite float32 ``[n]``.
        steps: of a grid.
        sizes: of a grid: the elements of each tensor.

    Raises:
        WeightsError: for what is not finite, also after rounding (``reason="finite"``).
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
            form = form_of(dtype, steps, sizes)
            rounded = form.flat(form.integers(flat))
    if not np.isfinite(rounded).all() or (dtype is not WireDtype.FP32 and not np.isfinite(flat).all()):
        raise WeightsError("the weights are not finite", reason="finite")
    return rounded


def steps_of(flat: FlatWeights, sizes: Sequence[int]) -> Steps:
    """The coarsest grid that has all values of a state on it: the lowest bit that is set in any element of a tensor."""
    bits = flat.view(np.int32)
    fractions = bits & 0x7FFFFF
    exponents = (bits >> 23) & 0xFF
    fractions |= (exponents > 0).astype(np.int32) << 23
    lowest = np.frexp((fractions & -fractions).astype(np.float32))[1] - 1 + np.maximum(exponents, 1) - 150
    lowest[fractions == 0] = MOST_EXPONENT
    starts = np.cumsum([0, *sizes[:-1]])
    return tuple(int(lowest[a : a + size].min(initial=MOST_EXPONENT)) for a, size in zip(starts, sizes, strict=True))


def choose_steps(flat: FlatWeights, last: FlatWeights | None, steps: Steps, sizes: Sequence[int], *, noise: float) -> Steps:
    """The steps of the next version, which depend on nothing but the arguments.

    The error of rounding is to be small beside what an update does, so a tensor's step follows the size of its updates:
    it is about `noise` times their root mean square. It stays while that is within a factor of about 1.5, and it is never so
    small that multiples of it have more than 23 bits.

    Args:
        flat: the learner's weights, finite float32 ``[n]``.
        last: the ones that were published last, before rounding; None at first.
        steps: of the last version, empty at first.
        sizes: the elements of each tensor.
        noise: see above.
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
