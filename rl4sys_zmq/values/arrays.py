"""Conversion of other libraries' arrays to NumPy, and helpers for bfloat16, the float32 range and floating-point errors.

PyTorch tensors and JAX arrays are recognised by their methods, so neither library is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

BFLOAT16_BITS = np.dtype([("bfloat16", "<u2")])
"""Stands for bfloat16, which NumPy lacks: the first 16 bits of the float32 with the same value."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

FLOAT_ERRORS = (FloatingPointError, RuntimeWarning)
"""What NumPy raises for floats that are too large, too small or undefined, if a host wants it (``np.seterr``).

A policy computes on tiny and on huge numbers as part of its work, and the results are checked where they matter. So the
computation is repeated in ``np.errstate(all="ignore")``. To compute there from the beginning would take a microsecond of each
step.
"""

P = ParamSpec("P")
R = TypeVar("R")


def array_from(value: Any) -> NDArray[Any] | None:
    """Return an array of any library as a NumPy array, which can share its memory. Return None if the value is not an array."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.view(sys.modules["torch"].int16)
            return np.asarray(tensor.numpy()).view(BFLOAT16_BITS)
        return np.asarray(tensor.numpy())
    if not hasattr(value, "__array__"):
        return None
    array = np.asarray(value)
    return array.view(BFLOAT16_BITS) if array.dtype.name == "bfloat16" else array


def cast_exactly(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy in another dtype. No value changes, except by rounding to a floating-point dtype."""
    if dtype.kind == "f" or array.dtype == dtype:
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):  # NaN and infinity, which then differ
        converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise ValueError(f"the values {array.tolist()!s:.80} change in {dtype}")
    return converted


def fits_float32(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return True for each element of a floating-point array that is finite in float32, the dtype in which policies compute."""
    fits: NDArray[np.bool_] = np.abs(array) <= LARGEST_FLOAT32 if array.dtype.itemsize > 4 else np.isfinite(array)
    return fits


def read_bfloat16(bits: NDArray[Any]) -> NDArray[Any]:
    """Convert bfloat16 numbers, stored as `BFLOAT16_BITS`, to a dtype that a program can calculate with."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is not None:
        return bits.view(ml_dtypes.bfloat16)
    wide = np.zeros((*bits.shape, 2), "<u2")  # a float32 begins, at its high end, with the bits of the bfloat16
    wide[..., 1] = bits.view("<u2")
    return wide.view("<f4")[..., 0]


def without_float_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function: if a call raises one of `FLOAT_ERRORS`, repeat the call with floating-point errors off."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FLOAT_ERRORS:
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)

    return inner
