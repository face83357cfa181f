"""Rounding of the learner's float32 weights to a wire dtype, so that diffs take fewer bytes.

The wire dtype is bf16, or a *grid*: all weights of a tensor are multiples of a *step*, a power of two chosen for the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights.forms import WireDtype, form_of

__all__ = ["LEAST_EXPONENT", "MOST_EXPONENT", "Steps", "choose_steps", "round_to", "steps_of"]

Steps = tuple[int, ...]
"""The steps of the wire dtype ``grid``: for each tensor, the exponent of the power of two whose multiples its weights are."""

LEAST_EXPONENT, MOST_EXPONENT = -126, 127
_MANTISSA = 23
_FINE = 10
"""The first step of a tensor, before any update was measured, is its largest absolute value divided by two to this power."""
_SLACK = 0.6
"""The largest difference between the exponents of the present step and of the ideal step for which the step is kept."""


def round_to(dtype: WireDtype, flat: FlatWeights, steps: Steps = (), sizes: Sequence[int] = ()) -> FlatWeights:
    """Round weights to the nearest values of a wire dtype (number format for sending). Return them in a new array.

    The new array is float32 ``[n]``. If two values are equally near, the result is the even one.

    Args:
        dtype: The wire dtype.
        flat: The weights, finite float32 ``[n]``.
        steps: For ``GRID``, the exponent of the power of two whose multiples the weights of each tensor become.
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
            form = form_of(dtype, steps, sizes)
            rounded = form.flat(form.integers(flat))
    if not np.isfinite(rounded).all() or (dtype is not WireDtype.FP32 and not np.isfinite(flat).all()):
        raise WeightsError("the weights are not finite", reason="finite")
    return rounded


def steps_of(flat: FlatWeights, sizes: Sequence[int]) -> Steps:
    """Return, for each tensor, the largest power of two of which all elements are multiples, as an exponent.

    Args:
        flat: The weights, float32 ``[n]``.
        sizes: Number of elements of each tensor.
    """
    bits = flat.view(np.int32)
    fractions = bits & 0x7FFFFF
    exponents = (bits >> 23) & 0xFF
    fractions |= (exponents > 0).astype(np.int32) << 23
    lowest = np.frexp((fractions & -fractions).astype(np.float32))[1] - 1 + np.maximum(exponents, 1) - 150
    lowest[fractions == 0] = MOST_EXPONENT
    starts = np.cumsum([0, *sizes])[:-1]
    return tuple(int(lowest[a : a + size].min(initial=MOST_EXPONENT)) for a, size in zip(starts, sizes, strict=True))


def choose_steps(flat: FlatWeights, last: FlatWeights | None, steps: Steps, sizes: Sequence[int], *, noise: float) -> Steps:
    """Choose the precision for sending the weights of the next policy version: a power of two (step) for each tensor.

    The weights of a tensor are rounded to multiples of its step. The result has the exponents of the steps. The rounding error
    should be small compared with an update of the weights. So the ideal step of a tensor is `noise` times the root mean square
    of its last update. The present step is kept while it is within a factor of about 1.5 of the ideal step. A step is never so
    small that a multiple needs more than 23 bits.

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
