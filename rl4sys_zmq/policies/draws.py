"""Draws from categorical distributions: one index for each row of logits.

For few logits, a loop over Python floats is faster than numpy.
"""

from __future__ import annotations

from math import exp, inf, isnan, log, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import MaskError
from rl4sys_zmq.policies.base import Mask

PYTHON_MAX_ACTIONS = 40
"""The largest number of actions for which Python floats are faster than numpy (for 4 actions, 0.6 us instead of 8 us)."""

LOOP_MAX_LOGITS = 32
"""The largest number of logits in a batch (rows times actions) for which a loop over the rows is faster than numpy."""

Draws = tuple[NDArray[np.int64], NDArray[np.float32]]
"""The drawn indices ``[N]`` and their log-probabilities ``[N]``."""

_LARGEST = float(np.finfo(np.float32).max)


def draw(logits: list[float], uniform: float | None) -> tuple[int, float]:
    """Draw an index from the softmax of `logits`: the first at which the cumulative probability exceeds `uniform`, in ``[0, 1)``.

    Without `uniform`, return the most probable index. The second result is the log-probability of the index in float64: NaN if a
    logit is NaN or infinity, or if all are minus infinity. An index with probability zero is never drawn.
    """
    top = max(logits)
    cumulative = []
    total = 0.0
    for logit in logits:
        total += exp(logit - top)
        cumulative.append(total)
    if isnan(total):
        # The weights overflowed the network. The index is possible, so that nothing fails in the host's loop.
        return draw(finite(np.asarray(logits)).tolist(), uniform)[0], nan
    if uniform is None:
        index = logits.index(top)
    else:
        cut = uniform * total
        index = 0
        while cumulative[index] <= cut:
            index += 1
    return index, logits[index] - top - log(total)


def draw_allowed(logits: list[float], mask: list[bool], uniform: float | None) -> tuple[int, float]:
    """Draw an index of an allowed action, as `draw` does. `mask` is True for each allowed action.

    Raises:
        MaskError: If no action is allowed.
    """
    allowed = [i for i, ok in enumerate(mask) if ok]
    if not allowed:
        raise MaskError("the mask forbids every action")
    index, log_prob = draw([logits[i] for i in allowed], uniform)
    return allowed[index], log_prob


def draw_large(logits: NDArray[Any], mask: Mask, uniform: float | None) -> tuple[int, float]:
    """Draw an index from logits ``[n]`` with numpy. The mask is bool ``[n]`` or None. The result is that of `draw_allowed`."""
    draws = None if uniform is None else np.asarray([uniform])
    index, log_probs = draw_rows(logits[None], None if mask is None else mask[None], draws)
    return int(index[0]), float(log_probs[0])


def _draw_each(logits: NDArray[Any], masks: Mask, draws: NDArray[np.float64] | None) -> Draws:
    """Draw an index for each row of `logits`, as `draw_rows` does, but with a loop in Python."""
    rows = logits.tolist()
    uniforms = [None] * len(rows) if draws is None else draws.tolist()
    if masks is None:
        drawn = [draw(row, u) for row, u in zip(rows, uniforms, strict=True)]
    else:
        drawn = [draw_allowed(row, mask, u) for row, mask, u in zip(rows, masks.tolist(), uniforms, strict=True)]
    return np.array([d[0] for d in drawn], dtype=np.int64), np.array([d[1] for d in drawn], dtype=np.float32)


def draw_batch(logits: NDArray[Any], masks: Mask, draws: NDArray[np.float64] | None) -> Draws:
    """Draw an index for each row of `logits`, by `draw_rows` or, if that is faster for few numbers, by a loop in Python."""
    return (_draw_each if logits.size <= LOOP_MAX_LOGITS else draw_rows)(logits, masks, draws)


def draw_rows(logits: NDArray[Any], masks: Mask, draws: NDArray[np.float64] | None) -> Draws:
    """Draw an index for each row of `logits` ``[N, n]`` as `draw` does, but with numpy. `draws` are ``N`` uniform numbers."""
    limited = finite(logits)
    z = limited.astype(np.float64)
    if masks is not None:
        allowed = allowed_rows(masks, logits.shape)
        z = np.where(allowed, z, -np.inf)
    z -= z.max(axis=1, keepdims=True)
    cumulative = np.exp(z).cumsum(axis=1)
    total = cumulative[:, -1]
    index = z.argmax(axis=1) if draws is None else (cumulative <= (draws * total)[:, None]).sum(axis=1)
    log_probs = (z[np.arange(len(z)), index] - np.log(total)).astype(np.float32)
    if limited is not logits:
        largest = (logits if masks is None else np.where(allowed, logits, -np.inf)).max(axis=1)
        log_probs[~np.isfinite(largest)] = nan
    return index, log_probs


def log_prob_of(index: int, logits: NDArray[Any], mask: Mask) -> float:
    """Return the log-probability of an index under the softmax of logits ``[n]``: minus infinity if it is forbidden."""
    z = finite(logits).astype(np.float64)
    if mask is not None:
        z = np.where(mask, z, -inf)
    z -= z.max()
    return float(z[index] - np.log(np.exp(z).sum()))


def allowed_rows(masks: Mask, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return masks ``[N, n]`` as bools, of which no row may forbid every action; for None, an array in which all are True."""
    if masks is None:
        return np.ones(shape, np.bool_)
    allowed: NDArray[np.bool_] = np.asarray(masks).astype(np.bool_, copy=False)
    if not allowed.any(axis=1).all():
        raise MaskError("a mask forbids every action")
    return allowed


def finite(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of `values` in which infinities are the float32 limits and NaN is the lowest float32 number.

    Return the same array if all values are finite.
    """
    if np.isfinite(values).all():
        return values
    limited: NDArray[Any] = np.nan_to_num(values, nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    return limited
