"""N-step returns of the steps of a segment, or of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.values import Segment


@dataclass(frozen=True, slots=True, eq=False)
class NStepReturns:
    """The n-step returns of a segment of ``T`` steps, or of ``B`` sequences with arrays ``[B, T]``.

    The target value of a step is ``returns + discounts * V(observations[reach])``, where ``V`` is the estimated value.

    Attributes:
        returns: The discounted sum of the rewards of the next ``n_t`` steps, float32 ``[T]``. ``n_t`` is `n_step`, or less near
            the end of the segment.
        discounts: ``gamma ** n_t``, float32 ``[T]``; 0 if the episode terminated within these steps.
        reach: The row of the observations whose value is added to the return, int64 ``[T]``; any valid row if the discount is
            0.
    """

    returns: NDArray[np.float32]
    discounts: NDArray[np.float32]
    reach: NDArray[np.int64]


def n_step_columns(segment: Segment, n_step: int, gamma: float) -> NStepReturns:
    """Compute the n-step returns of all steps of a segment (Sutton & Barto, 2nd edition, equation 7.1).

    Only rewards of the same segment are used, because the next segment of the episode can arrive much later, or never. So step
    ``t`` of ``T`` looks ahead ``n_t = min(n_step, T - t)`` steps. The value after the last step is 0 if the episode terminated,
    and otherwise the value of the observation after that step.
    """
    steps = segment.steps
    rows = np.arange(steps)
    reach = np.minimum(rows + n_step, steps)
    returns = np.zeros(steps, dtype=np.float64)
    for ahead in range(min(n_step, steps)):
        returns[: steps - ahead] += gamma**ahead * segment.rewards[ahead:]
    discounts = gamma ** (reach - rows)
    if segment.terminated:
        discounts = np.where(reach == steps, 0.0, discounts)
        reach = np.minimum(reach, steps - 1)
    return NStepReturns(returns.astype(np.float32), discounts.astype(np.float32), reach)


def n_step_sequences(
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    n_step: int,
    gamma: float,
) -> NStepReturns:
    """Compute the n-step returns of the valid steps of ``B`` sequences, like `n_step_columns`."""
    steps = valid.shape[1]
    rows = np.arange(steps)
    end = (steps - valid[:, ::-1].argmax(axis=1))[:, None]  # the step after the last valid one
    reach = np.minimum(rows + n_step, end)
    paid = np.where(valid, rewards, 0.0).astype(np.float64)
    returns = np.zeros(valid.shape)
    for ahead in range(min(n_step, steps)):
        returns[:, : steps - ahead] += gamma**ahead * paid[:, ahead:]
    ended = terminated.any(axis=1, keepdims=True) & (reach == end)
    discounts = np.where(ended, 0.0, gamma ** np.maximum(reach - rows, 0))
    return NStepReturns(returns.astype(np.float32), discounts.astype(np.float32), reach)
