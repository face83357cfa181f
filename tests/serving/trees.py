"""The equality of trees of arrays."""

from typing import Any

import numpy as np


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in type, structure, dtype and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype != object:
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and all(map(same, one.flat, other.flat))
    return bool(one == other) or (one != one and other != other)
