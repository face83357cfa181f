"""The mapping of the raw samples of a continuous policy into the bounds of a Box action space."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.immutable import immutable_object
from rl4sys_zmq.values import BoxSpace

Bounder = Callable[[NDArray[np.float32]], NDArray[Any]]
"""A function from raw actions ``[..., n]`` to new arrays of actions for the environment."""

NEAREST_1 = 1.0 - 1e-15
"""The largest tanh of a raw action that `unbounder` returns. So the raw action of a bound is finite: about 17."""


@immutable_object
class ActionBounds:
    """The bounds of a Box action space, and its half widths and centres, each ``[n]``. `work` is the dtype of these arrays."""

    work: np.dtype[Any]  # narrow types are computed in float32, wide ones in float64, and rounded once at the end
    low: NDArray[Any]
    high: NDArray[Any]
    half: NDArray[Any]  # half of the width, and the middle of the range; not finite without bounds
    centre: NDArray[Any]


def action_bounds(space: BoxSpace) -> ActionBounds:
    """Return the bounds of a continuous action space."""
    dtype = np.dtype(space.dtype)
    work: np.dtype[Any] = np.dtype(np.float32) if dtype in (np.float32, np.float16) else np.dtype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        low: NDArray[Any] = _edge(space.low_array().ravel(), dtype).astype(work)
        high: NDArray[Any] = _edge(space.high_array().ravel(), dtype).astype(work)
        return ActionBounds(work, low, high, high / 2 - low / 2, high / 2 + low / 2)


@lru_cache(maxsize=64)
def bounder(space: BoxSpace, squash: str) -> Bounder:
    """Return the function that maps raw actions into the bounds by `squash` (``clip`` or ``tanh``), in the space's dtype."""
    dtype = np.dtype(space.dtype)
    bounds = action_bounds(space)
    work, low, high, half, centre = bounds.work, bounds.low, bounds.high, bounds.half, bounds.centre
    whole_number = dtype.kind in "iub"
    free = bool(np.all(low == -np.inf) and np.all(high == np.inf))

    def bound(raw: NDArray[np.float32]) -> NDArray[Any]:
        env: NDArray[Any] = raw.astype(work)
        if squash == "tanh":
            np.tanh(env, env)
            np.multiply(env, half, env)
            np.add(env, centre, env)
        if whole_number:
            np.rint(env, env)
        if not free:
            np.maximum(env, low, out=env)
            np.minimum(env, high, out=env)
        return env if work == dtype else env.astype(dtype)

    return bound


@lru_cache(maxsize=64)
def unbounder(space: BoxSpace, squash: str) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """Return the inverse of `bounder`: a function from one action within the bounds to its raw action, float32 ``[n]``."""
    if squash != "tanh":
        return lambda act: np.array(act, np.float32).reshape(-1)
    bounds = action_bounds(space)
    centre, half = bounds.centre.astype(np.float64), bounds.half.astype(np.float64)
    half[half == 0.0] = np.inf  # equal bounds

    def unbound(act: NDArray[Any]) -> NDArray[np.float32]:
        share = (np.asarray(act, np.float64).reshape(-1) - centre) / half
        return np.arctanh(np.clip(share, -NEAREST_1, NEAREST_1)).astype(np.float32)

    return unbound


def _edge(bound: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Return one bound of a space for each dimension, limited to the range of `dtype`."""
    if dtype in (np.float64, np.float32):
        return bound
    if dtype == np.float16:
        limit = float(np.finfo(np.float16).max)
        return np.clip(bound, -limit, limit).astype(np.float16).astype(np.float64)
    if dtype.kind == "b":
        return np.clip(bound, 0.0, 1.0)
    info = np.iinfo(dtype)
    # The largest 64-bit integers are not exact floats; use the next float below.
    top = float(info.max) if dtype.itemsize < 8 else float(np.nextafter(float(info.max), 0.0))
    return np.clip(bound, float(info.min), top)
