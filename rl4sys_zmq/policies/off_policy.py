"""The value of a policy, estimated from the decisions of another policy that logged its probabilities.

Each decision is a problem of one step, as in a bandit: the reward depends only on the context and the action of this decision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.immutable import immutable


@immutable
class OffPolicyValue:
    """Estimates of the mean reward that a policy would get, from decisions of another policy (the *logging policy*).

    Attributes:
        ips: The estimate by inverse propensity scoring (Horvitz and Thompson 1952). It is unbiased if the logging policy gave
            each action that the policy can choose a probability above 0.
        ips_error: The standard error of `ips`; NaN for a single decision.
        snips: The self-normalised estimate (Swaminathan and Joachims 2015), with a small bias and often a smaller variance; NaN
            if the policy would never have chosen any logged action.
        effective_decisions: The number of equally weighted decisions that would give the same variance (Kish 1965). If it is
            far below `decisions`, few decisions determine the estimates.
        decisions: The number of logged decisions.
    """

    ips: float
    ips_error: float
    snips: float
    effective_decisions: float
    decisions: int


def off_policy_value(
    rewards: ArrayLike, log_probs: ArrayLike, probabilities: ArrayLike, *, max_weight: float | None = None
) -> OffPolicyValue:
    """Estimate the mean reward of a policy from ``N`` decisions of another policy.

    The weight of a decision is the probability of its action under the policy, divided by its probability under the logging
    policy.

    Args:
        rewards: The rewards ``[N]`` of the logged actions.
        log_probs: The logarithms ``[N]`` of the probabilities with which the logging policy chose these actions, as in
            `Segment.log_probs`.
        probabilities: The probabilities ``[N]`` with which the policy would have chosen the same actions in the same contexts.
        max_weight: The largest weight; larger ones are cut, which makes the variance smaller and adds a bias. None: no limit.

    Raises:
        ConfigError: If the arrays are empty or differ in length, contain values that are not finite, or contain values that are
            not probabilities; or if `max_weight` is not above 0.
    """
    given = {"rewards": rewards, "log_probs": log_probs, "probabilities": probabilities}
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in given.items()}
    reward, logged, wanted = columns.values()
    if reward.ndim != 1 or not reward.size or not reward.shape == logged.shape == wanted.shape:
        shapes = ", ".join(f"{name} {column.shape}" for name, column in columns.items())
        raise ConfigError(f"expected three arrays of one length of at least 1, not {shapes}", key="rewards")
    for name, column in columns.items():
        if not np.isfinite(column).all():
            place = int(np.flatnonzero(~np.isfinite(column))[0])
            raise ConfigError(f"{name}[{place}] is {column[place]}; expected finite numbers", key=name)
    if (logged > 1e-6).any() or (wanted < 0.0).any() or (wanted > 1.0 + 1e-6).any():
        message = (
            f"log_probs up to {logged.max():g} and probabilities from {wanted.min():g} to {wanted.max():g} are no probabilities"
        )
        raise ConfigError(f"{message}; expected logarithms of at most 0, and numbers from 0 to 1", key="log_probs")
    if max_weight is not None and not max_weight > 0.0:
        raise ConfigError(f"max_weight is {max_weight}; expected a number above 0, or None", key="max_weight")
    weights = wanted * np.exp(-logged)
    if max_weight is not None:
        weights = np.minimum(weights, max_weight)
    weighted, total, count = weights * reward, float(weights.sum()), len(weights)
    return OffPolicyValue(
        ips=float(weighted.mean()),
        ips_error=float(weighted.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan"),
        snips=float(weighted.sum() / total) if total > 0.0 else float("nan"),
        effective_decisions=float(total**2 / np.square(weights).sum()) if total > 0.0 else 0.0,
        decisions=count,
    )
