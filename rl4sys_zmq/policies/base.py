"""The interface between an agent and its policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.sampler import Sampler
from rl4sys_zmq.values import PolicySnapshot, PolicySpec

__all__ = ["Act", "Action", "Policy", "PolicyFactory", "bind"]

Action = np.int64 | NDArray[Any]
"""One action: an int64 scalar for a discrete space, an array of the space's shape for a box."""


Act = Callable[[NDArray[Any], NDArray[Any] | None], tuple[Action, Action, float]]
"""`Policy.act` bound to one thread: from observation and mask to raw action, action and log-probability."""


class Policy(Protocol):
    """One version of a policy. It is immutable: threads can share it, each with its own `Sampler`.

    A policy can have the additional method ``bind(rng, explore) -> Act``: its `act` for one thread, with buffers of that thread.
    """

    @property
    def snapshot(self) -> PolicySnapshot:
        """The weights. The policy views their buffer."""

    @property
    def generation(self) -> int:
        """The generation of the snapshot: the number of the learner thread that published it. A new thread has a higher one."""

    @property
    def version(self) -> int:
        """The version of the snapshot: the number of the publication. Generation and version together identify the weights."""

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: Sampler, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action.

        Args:
            observation: ``[*obs]``, finite, of the space's shape. It is cast to float32. If the space is a Dict or Tuple, a tree
                of such arrays with the dtypes of their spaces.
            mask: ``[n]`` bool or 0/1, nonzero where an action is allowed. None allows all. Continuous policies ignore it.
            rng: The source of random numbers.
            explore: False for the mode of the distribution instead of a sample.

        Returns:
            The raw action that is trained on (int64 scalar with the space's `start` added, or float32 ``[*shape]``), the
            action for the environment (the same scalar, or an array of the space's dtype within its bounds), and the
            log-probability of the raw action.

        Raises:
            MaskError: If `mask` forbids every action.
        """

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: Sampler, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions with one forward pass.

        Args:
            observations: ``[N, *obs]``, or a tree of such arrays.
            masks: ``[N, n]`` or None, as in `act`.
            rng: The source of random numbers. The draws differ from those of ``N`` calls of `act`.
            explore: As in `act`.

        Returns:
            Raw actions ``[N, *act]``, environment actions ``[N, *act]``, log-probabilities float32 ``[N]``.

        Raises:
            MaskError: If a row of `masks` forbids every action.
        """


def bind(policy: Policy, rng: Sampler, explore: bool) -> Act:
    """Return ``policy.act`` for the thread of `rng`, or the policy's own faster form (`bind`) if it has one."""
    own: Callable[[Sampler, bool], Act] | None = getattr(policy, "bind", None)
    if own is not None:
        return own(rng, explore)
    act = policy.act
    return lambda observation, mask: act(observation, mask, rng, explore)


PolicyFactory = Callable[[PolicySpec, PolicySnapshot], Policy]
"""The builder of policies of one kind. It must not write to the snapshot."""
