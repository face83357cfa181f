"""Advantages and value targets for a batch of consecutive segments: pure functions of flat columns.

The steps of a segment are adjacent; ``continues[t]`` is True if step ``t + 1`` of the batch is the next step of the same
episode. So nothing is padded and no loop runs over time. ``values[t]`` is V(s_t), and ``next_values[t]`` is V(s_{t+1}): zero
after a terminal state, the bootstrap value where a segment was cut or truncated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["discounted_sums", "explained_variance", "vtrace"]

Column = NDArray[np.float64]


def discounted_sums(x: Column, decay: Column, *, reverse: bool = False) -> Column:
    """Solve ``y[t] = x[t] + decay[t] * y[t + 1]`` for all ``t`` at once, with ``y[T] = 0``.

    Neighbouring intervals are merged by doubling (Hillis & Steele 1986). The number of rounds is the number of binary digits of
    the longest run of non-zero `decay`.

    Args:
        x: Float64 ``[T]``.
        decay: Float64 ``[T]``; a zero ends a run.
        reverse: Run forwards in time instead: ``y[t] = x[t] + decay[t] * y[t - 1]``.
    """
    if reverse:
        return discounted_sums(x[::-1], decay[::-1])[::-1]
    y, a = x.copy(), decay.copy()
    a[-1:] = 0.0  # the last step has no successor
    span = 1
    while span < len(y) and a.any():
        y[:-span] += a[:-span] * y[span:]
        a[:-span] *= a[span:]
        a[-span:] = 0.0
        span *= 2
    return y


def vtrace(
    rewards: Column,
    values: Column,
    next_values: Column,
    continues: NDArray[np.bool_],
    rhos: Column,
    *,
    gamma: float,
    lam: float,
) -> tuple[Column, Column]:
    """Return advantages and value targets ``[T]``, with importance weights truncated at 1.

    The targets are V-trace's (Espeholt et al. 2018, equation 1, with ``c = λ min(1, ρ)``, remark 2)::

        v_t = V(s_t) + ρ_t δ_t + γ c_t (v_{t+1} - V(s_{t+1})),    δ_t = r_t + γ V(s_{t+1}) - V(s_t)

    The advantages are ``r_t + γ [(1 - λ) V(s_{t+1}) + λ v_{t+1}] - V(s_t)``. With ``ρ = 1`` both are GAE's (Schulman et al.
    2016, equation 16): ``A_t = δ_t + γ λ A_{t+1}`` and ``V(s_t) + A_t``. The advantage is not weighted by its own ``ρ_t``,
    because PPO's objective already multiplies it by that ratio.

    Args:
        rewards: ``[T]``.
        values: V(s_t), ``[T]``.
        next_values: V(s_{t+1}), ``[T]``; 0 after a terminal state.
        continues: ``[T]``, True if step ``t + 1`` of the batch follows step ``t``.
        rhos: π(a_t|s_t) / μ(a_t|s_t), ``[T]``, of the current over the acting policy; 1 for a step without correction.
        gamma: The discount.
        lam: λ, the decay of the trace.
    """
    weights = np.minimum(rhos, 1.0)
    deltas = rewards + gamma * next_values - values
    corrections = discounted_sums(weights * deltas, np.where(continues, gamma * lam * weights, 0.0))
    following = np.append(corrections[1:], 0.0)
    advantages = deltas + np.where(continues, gamma * lam * following, 0.0)
    return advantages, values + corrections


def explained_variance(predicted: Column, targets: Column) -> float:
    """Return ``1 - Var[targets - predicted] / Var[targets]``; 0 for constant targets.

    1 is a perfect prediction; 0 is no better than a constant.
    """
    spread = float(np.var(targets))
    return 1.0 - float(np.var(targets - predicted)) / spread if spread > 1e-12 else 0.0
