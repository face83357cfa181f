"""The built-in policy for actions with several parts: MultiDiscrete, MultiBinary, Dict and Tuple spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.action_heads import ActionHead, action_head
from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.network import OutputNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree

__all__ = ["JointPolicy"]


@dataclass(frozen=True, slots=True, eq=False)
class JointPolicy:
    """A policy that samples each part of an action from the outputs of its network. It implements `Policy`.

    `rl4sys_zmq.policies.action_heads.JointHead` describes the samples.
    """

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: OutputNetwork
    _head: ActionHead

    @classmethod
    def of(cls, spec: PolicySpec, document: HeadParameters, snapshot: PolicySnapshot, network: OutputNetwork) -> JointPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        head = action_head(spec.action_space, document.squash, spec.views(snapshot.flat).get("log_std"))
        return cls(snapshot, snapshot.generation, snapshot.version, network, head)

    def act(self, observation: Tree, mask: NDArray[Any] | None, rng: RandomSource, explore: bool) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        return self._head.choose(self._network.single(observation), mask, rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, choose = self._network.fused, self._head.choose
        forward = self._network.single if fused is None else fused.forward()
        return lambda observation, mask: choose(forward(observation), mask, rng, explore)

    def act_batch(
        self, observations: Tree, masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Tree, Tree, NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        return self._head.choose_batch(self._network.batch(observations), masks, rng, explore)
