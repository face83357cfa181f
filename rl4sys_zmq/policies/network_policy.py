"""A policy that leaves the choice of actions from the outputs of its network to an action head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.action_heads import ActionHead
from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.network import OutputNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.values.trees import Tree

__all__ = ["NetworkPolicy"]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NetworkPolicy:
    """A network and an action head, which chooses actions from the outputs of the network. It implements `Policy`."""

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: OutputNetwork
    _head: ActionHead

    @classmethod
    def of(cls, snapshot: PolicySnapshot, network: OutputNetwork, head: ActionHead) -> NetworkPolicy:
        """Build a policy. `network` and `head` must have been built from the weights in `snapshot`."""
        return cls(snapshot, snapshot.generation, snapshot.version, network, head)

    def act(self, observation: Tree, mask: NDArray[Any] | None, rng: RandomSource, explore: bool) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        return self._head.choose(self._network.single(observation), mask, rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, choose = self._network.fused, self._head.choose
        forward = self._network.single if fused is None else fused.forward()
        return lambda observation, mask: choose(forward(observation), mask, rng, explore)

    def assess(
        self, act: Action, observation: Tree, mask: NDArray[Any] | None, rng: RandomSource, state: Any
    ) -> tuple[Action, float]:
        """Return the raw action of an action, and its log-probability, as `AssessingPolicy.assess` describes."""
        return self._head.assess(act, self._network.single(observation), mask, rng)

    def act_batch(
        self, observations: Tree, masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Tree, Tree, NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        return self._head.choose_batch(self._network.batch(observations), masks, rng, explore)
