"""Arrays of other libraries as NumPy arrays, the bits of bfloat16, the range of float32, and errors of floats.

PyTorch tensors and JAX arrays are recognised by their methods, so neither library is imported. NumPy has no bfloat16. Here the
dtype `BFLOAT16_BITS` stands for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

BFLOAT16_BITS = np.dtype([("bfloat16", "<u2")])
"""The dtype of bfloat16 numbers of which only the bits are known: the first 16 bits of the float32 with the same value."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

FLOAT_ERRORS = (FloatingPointError, RuntimeWarning)
"""What NumPy raises when a float is too large, too small or undefined, if a host wants it to.

A host can make NumPy raise such errors (``np.seterr``), or make exceptions of all warnings (``python -W error``). A policy
computes on tiny and on huge numbers as part of its work, and the results are checked where they matter. So the computation is
repeated in ``np.errstate(all="ignore")``. To compute there from the beginning would take a microsecond of each step.
"""

P = ParamSpec("P")
R = TypeVar("R")


def array_from(value: Any) -> NDArray[Any] | None:
    """Return an array of any library as a NumPy array, or None if the value is not an array.

    A PyTorch tensor is detached from its graph and read from its device. The result can share memory with the value.
    """
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
    """Return a copy of an array of numbers in another dtype. Floats are rounded to a dtype of floats."""
    if dtype.kind == "f" or array.dtype == dtype:
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):  # NaN and infinity, which then differ
        converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise ValueError(f"the values {array.tolist()!s:.80} change in {dtype}")
    return converted


def fits_float32(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each element of an array of floats whether it is a finite number in float32, in which policies compute."""
    fits: NDArray[np.bool_] = np.abs(array) <= LARGEST_FLOAT32 if array.dtype.itemsize > 4 else np.isfinite(array)
    return fits


def read_bfloat16(bits: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of the dtype `BFLOAT16_BITS` in a dtype that a program can calculate with."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is not None:
        return bits.view(ml_dtypes.bfloat16)
    wide = np.zeros((*bits.shape, 2), "<u2")  # a float32 begins, at its high end, with the bits of the bfloat16
    wide[..., 1] = bits.view("<u2")
    return wide.view("<f4")[..., 0]


def without_float_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it is called again, without such errors, when it raises one of `FLOAT_ERRORS`."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FLOAT_ERRORS:
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)

    return inner
