"""The interface of a policy: the object that chooses actions for an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree

Action = Tree
"""One action: an int64 scalar for a Discrete space, an array for other spaces, a dict or tuple of these for a Dict or Tuple."""


Act = Callable[[NDArray[Any], NDArray[Any] | None], tuple[Action, Action, float]]
"""A policy's `act` for one thread: it takes an observation and a mask (or None).

It returns the raw action (trained on), the action for the environment, and the raw action's log-probability.
"""


class Policy(Protocol):
    """The interface of a policy: an object with fixed weights that chooses actions for observations.

    It is immutable, so threads can share it, each with its own `RandomSource`. A policy can also have a method
    ``bind(rng, explore) -> Act``, which returns a faster form of `act` for one thread. That form can use buffers, because no
    other thread calls it. `AssessingPolicy` is a further optional method.
    """

    @property
    def snapshot(self) -> PolicySnapshot:
        """The weights of this version. The policy can use views of their buffer."""

    @property
    def generation(self) -> int:
        """The generation of the weights: the number of the learner thread that published them. Later threads have higher ones."""

    @property
    def version(self) -> int:
        """The version of the weights: the number of the publication. Generation and version together identify the weights."""

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action.

        Args:
            observation: ``[*obs]``, finite, of the space's shape. The policy casts it to float32. If the space is a Dict or
                Tuple: a tree of such arrays with the dtypes of their spaces.
            mask: ``[n]`` for ``n`` discrete actions, bool or 0/1, nonzero where an action is allowed. None allows all actions.
                Continuous policies ignore the mask.
            rng: The source of random numbers.
            explore: True to sample an action, False for the most probable action.

        Returns:
            Three values:

            - The raw action, which is trained on: an int64 scalar with the space's `start` added, or float32 ``[*shape]``.
            - The action for the environment: the same scalar, or an array of the space's dtype within the bounds of the space.
            - The log-probability of the raw action. NaN means that the policy cannot choose: the agent then goes back to the
              version before.

        Raises:
            MaskError: If `mask` forbids every action.
        """

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions with one forward pass.

        Args:
            observations: ``[N, *obs]``, or a tree of such arrays.
            masks: ``[N, n]`` or None, as in `act`.
            rng: The source of random numbers. The random draws differ from those of ``N`` calls of `act`.
            explore: As in `act`.

        Returns:
            Raw actions ``[N, *act]``, environment actions ``[N, *act]``, log-probabilities float32 ``[N]``.

        Raises:
            MaskError: If a row of `masks` forbids every action.
        """


@runtime_checkable
class AssessingPolicy(Protocol):
    """The optional method of a policy that knows the log-probability of any action, for `RL4SysAction.override`.

    Without it, the raw action of an overridden step is the action itself, and its log-probability is NaN.
    """

    def assess(
        self, act: Action, observation: Tree, mask: NDArray[Any] | None, rng: RandomSource, state: Any
    ) -> tuple[Action, float]:
        """Return the raw action that stands for an action of the environment, and its log-probability when exploring.

        Args:
            act: The action for the environment, within the space, in the dtypes of the space.
            observation: The observation for which the policy chose another action, as in `Policy.act`.
            mask: The mask of that observation, as in `Policy.act`. It allows `act`.
            rng: The thread's source of random numbers. The method must not draw from it.
            state: The state before the step, as in `ExtraColumnPolicy.step`. None for a policy without a state.

        Returns:
            The raw action, in the form of `Policy.act`, and its log-probability: minus infinity if the policy never takes it.
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
