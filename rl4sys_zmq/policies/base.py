"""The interface of a policy: the object that chooses actions for an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.interfaces import Policy
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree

Action = Tree
"""One action: an int64 scalar for a Discrete space, an array for other spaces, a dict or tuple of these for a Dict or Tuple."""

Mask = NDArray[Any] | None
"""The options that a choice may take: ``[n]``, or ``[N, n]`` for a batch, nonzero for an allowed option. None allows all."""

Choice = tuple[Action, Action, float]
"""The raw action (trained on), the action for the environment, and the raw action's log-probability."""

Choices = tuple[Tree, Tree, NDArray[np.float32]]
"""The parts of ``N`` choices: arrays ``[N, ...]`` or trees of them, and ``N`` log-probabilities."""

Act = Callable[[Any, Mask], Choice]
"""A policy's `act` for one thread: a function of an observation and a mask."""


@runtime_checkable
class AssessingPolicy(Protocol):
    """A policy that can compute the log-probability of any action. `RL4SysAction.override` uses its method `assess`.

    For any other policy, the raw action of an overridden step is the action itself, and its log-probability is NaN.
    """

    def assess(self, act: Action, observation: Tree, mask: Mask, rng: RandomSource, state: Any) -> tuple[Action, float]:
        """Return the raw action that stands for the action `act`, and its log-probability with ``explore=True``.

        Args:
            act: The action for the environment, within the space, in the dtypes of the space.
            observation: The observation for which the policy chose another action, as in `Policy.act`.
            mask: The mask of that observation, as in `Policy.act`. It allows `act`.
            rng: The thread's source of random numbers. The method must not draw from it.
            state: The state before the step, as in `ExtraColumnPolicy.step`. None for a policy without a state.

        Returns:
            The raw action, in the form of `Policy.act`, and its log-probability: minus infinity if the policy never chooses
            this action.
        """


def bind(policy: Policy, rng: RandomSource, explore: bool) -> Act:
    """Return a function that calls ``policy.act`` with `rng` and `explore`, for one thread.

    If the policy has a method `bind`, return the result of that method instead.
    """
    own: Callable[[RandomSource, bool], Act] | None = getattr(policy, "bind", None)
    if own is not None:
        return own(rng, explore)
    act = policy.act
    return lambda observation, mask: act(observation, mask, rng, explore)


PolicyFactory = Callable[[PolicySpec, PolicySnapshot], Policy]
"""A function that builds a policy of one kind from its spec and its weights. It must not write to the weights."""
