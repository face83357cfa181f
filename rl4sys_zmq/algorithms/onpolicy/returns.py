"""Advantages and value targets for a batch of steps, computed without padding and without a loop over time.

All columns are flat arrays ``[T]`` with the steps of all segments, one after another:

- ``continues[t]``: True if step ``t + 1`` of the batch is the next step of the same episode.
- ``values[t]``: V(s_t), the estimated value of the observation before the step.
- ``next_values[t]``: V(s_{t+1}), the estimated value of the observation after the step; 0 if the episode terminated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


def discounted_sums(x: Column, decay: Column, *, reverse: bool = False) -> Column:
    """Return the solution ``y`` of ``y[t] = x[t] + decay[t] * y[t + 1]`` for all ``t``, with ``y[T] = 0``.

    The sums are computed by doubling their range in each round (parallel prefix sum, Hillis & Steele 1986). The number of rounds
    is the number of binary digits of the longest run of steps with a non-zero `decay`.

    Args:
        x: The terms, float64 ``[T]``.
        decay: The factors, float64 ``[T]``. A zero ends a sum.
        reverse: True to sum forwards in time instead: ``y[t] = x[t] + decay[t] * y[t - 1]``, with ``y[-1] = 0``.
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


def vtrace(  # noqa: PLR0913 - the symbols of one formula
    rewards: Column,
    values: Column,
    next_values: Column,
    continues: NDArray[np.bool_],
    rhos: Column,
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Column, Column]:
    """Return the advantages and the value targets of all steps, float64 ``[T]`` each, by V-trace.

    The targets are V-trace's (Espeholt et al. 2018, equation 1, with ``ρ = min(ρ̄, w)`` and ``c = λ min(c̄, w)`` for an
    importance weight ``w``, remark 2)::

        v_t = V(s_t) + ρ_t δ_t + γ c_t (v_{t+1} - V(s_{t+1})),    δ_t = r_t + γ V(s_{t+1}) - V(s_t)

    The advantages are ``r_t + γ [(1 - λ) V(s_{t+1}) + λ v_{t+1}] - V(s_t)``. With ``w = 1`` both are GAE's (Schulman et al.
    2016, equation 16): ``A_t = δ_t + γ λ A_{t+1}`` and ``V(s_t) + A_t``. The advantage is not weighted by its own ``ρ_t``:
    PPO's objective already multiplies it by the ratio, and IMPALA multiplies it by ``ρ_t``.

    Args:
        rewards: r_t, ``[T]``.
        values: V(s_t), ``[T]``.
        next_values: V(s_{t+1}), ``[T]``; 0 if the episode terminated with the step.
        continues: ``[T]``, True if step ``t + 1`` of the batch is the next step of the same episode.
        rhos: The importance weights w_t = π(a_t|s_t) / μ(a_t|s_t), ``[T]``, where π is the current and μ the acting policy; 1
            for a step without correction.
        gamma: γ, the discount per step.
        lam: λ, the decay of the trace.
        rho_clip: ρ̄, the largest weight of a temporal difference. It determines the policy whose value is estimated.
        c_clip: c̄, the largest factor of the trace. It limits the variance.
    """
    deltas = rewards + gamma * next_values - values
    traces = np.where(continues, gamma * lam * np.minimum(rhos, c_clip), 0.0)
    corrections = discounted_sums(np.minimum(rhos, rho_clip) * deltas, traces)
    following = np.append(corrections[1:], 0.0)
    advantages = deltas + np.where(continues, gamma * lam * following, 0.0)
    return advantages, values + corrections


def explained_variance(predicted: Column, targets: Column) -> float:
    """Return the share of the targets' variance that a prediction explains; 0 for constant targets.

    It is ``1 - Var[targets - predicted] / Var[targets]``: 1 for a perfect prediction, 0 for one no better than a constant.
    """
    spread = float(np.var(targets))
    return 1.0 - float(np.var(targets - predicted)) / spread if spread > 1e-12 else 0.0
