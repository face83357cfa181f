"""Prints the coefficients of policy/kernels.inc: minimax polynomials, by Lawson's algorithm (iterated least squares)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def minimax(function: Callable[[Array], Array], low: float, high: float, degree: int, weight: Callable[[Array], Array]) -> Array:
    """Return the coefficients, lowest power first, that minimise the largest weighted error on a grid."""
    x = np.cos(np.linspace(0, np.pi, 4001)) * (high - low) / 2 + (high + low) / 2
    powers, lawson = np.vander(x, degree + 1, increasing=True), np.ones_like(x)
    for _ in range(60):
        scale = np.sqrt(lawson) * weight(x)
        coefficients: Array = np.linalg.lstsq(powers * scale[:, None], function(x) * scale, rcond=None)[0]
        error = np.abs((powers @ coefficients - function(x)) * weight(x))
        lawson *= error / error.max() + 1e-12
        lawson /= lawson.max()
    print(f"largest error {error.max():.2g}")
    return coefficients


def exp_tail(r: Array) -> Array:
    """(exp(r) - 1 - r) / r^2"""
    safe = np.where(r == 0, 1, r)
    return np.where(np.abs(r) < 1e-3, 0.5 + r / 6 + r * r / 24, (np.expm1(r) - r) / (safe * safe))


def tanh_tail(z: Array) -> Array:
    """(tanh(sqrt(z)) / sqrt(z) - 1) / z"""
    safe = np.where(z < 1e-6, 1, z)
    return np.where(z < 1e-6, -1 / 3 + 2 * z / 15, (np.tanh(np.sqrt(safe)) / np.sqrt(safe) - 1) / safe)


half = np.log(2) / 2 * 1.0001
print("exp", *(f"{c:.9g}" for c in minimax(exp_tail, -half, half, 4, np.square)))
print("tanh", *(f"{c:.9g}" for c in minimax(tanh_tail, 1e-9, 0.625**2, 4, lambda z: z)))
