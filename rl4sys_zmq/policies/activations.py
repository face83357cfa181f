"""The activation functions of the built-in networks, as functions ``f(h, out)`` on float32 arrays.

The output array `out` can be `h` itself. The functions follow torch's definitions. They do not overflow for large inputs, so the
host gets no floating-point warning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Activation = Callable[[NDArray[Any], NDArray[Any]], object]
"""A function of `h` and `out` that writes its result for each element of `h` to `out`. Its return value is not used."""

# 0-d arrays: a Python or numpy scalar doubles the time of a small ufunc call.
_ZERO = np.zeros((), dtype=np.float32)
_HALF = np.full((), 0.5, dtype=np.float32)
_ONE = np.ones((), dtype=np.float32)
_SLOPE = np.full((), 0.01, dtype=np.float32)
_ROOT_HALF = np.full((), 0.5**0.5, dtype=np.float32)
_ERF_P = np.full((), 0.3275911, dtype=np.float32)
_ERF_A = tuple(np.full((), a, dtype=np.float32) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
_ERF_LIMIT = np.full((), 4.0, dtype=np.float32)


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """Return the Gauss error function of each element of a float32 array, with an absolute error below 5e-7.

    The approximation is 7.1.26 in Abramowitz and Stegun, Handbook of Mathematical Functions (error 1.5e-7 in exact arithmetic).
    Absolute values above 4 are replaced by 4, so that the exponential does not underflow. The function of such values differs
    from 1 by less than 2e-8.
    """
    a = np.minimum(np.abs(x), _ERF_LIMIT)
    t = _ONE / (_ONE + _ERF_P * a)
    poly = _ERF_A[0] * t
    for coefficient in _ERF_A[1:]:
        poly += coefficient
        poly *= t
    poly *= np.exp(-a * a)
    result: NDArray[Any] = np.copysign(_ONE - poly, x)
    return result


def _relu(h: NDArray[Any], out: NDArray[Any]) -> None:
    np.maximum(h, _ZERO, out=out)


def _leaky_relu(h: NDArray[Any], out: NDArray[Any]) -> None:
    np.maximum(h, _SLOPE * h, out=out)


def _elu(h: NDArray[Any], out: NDArray[Any]) -> None:
    # max(h, 0) + expm1(min(h, 0)): one of the two terms is always exactly zero.
    negative = np.expm1(np.minimum(h, _ZERO))
    np.maximum(h, _ZERO, out=out)
    np.add(out, negative, out)


def _silu(h: NDArray[Any], out: NDArray[Any]) -> None:
    # sigmoid(h) = (1 + tanh(h / 2)) / 2: no exponential that could overflow.
    half = h * _HALF
    gate = np.tanh(half)
    np.add(gate, _ONE, gate)
    np.multiply(half, gate, out)


def _gelu(h: NDArray[Any], out: NDArray[Any]) -> None:
    gate = erf(h * _ROOT_HALF)
    np.add(gate, _ONE, gate)
    np.multiply(gate, _HALF, gate)
    np.multiply(h, gate, out)


def _identity(h: NDArray[Any], out: NDArray[Any]) -> None:
    if out is not h:
        out[...] = h


ACTIVATION_FUNCTIONS: dict[str, Activation] = {
    "tanh": np.tanh,
    "relu": _relu,
    "elu": _elu,
    "silu": _silu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "identity": _identity,
}
