"""The built-in policy for continuous actions: a diagonal Gaussian.

The raw sample is trained on. The environment gets a bounded form of that sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.action_heads import GaussianHead
from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.network import OutputNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, PolicySnapshot, PolicySpec

__all__ = ["GaussianPolicy"]


@dataclass(frozen=True, slots=True, eq=False)
class GaussianPolicy:
    """A policy that samples from a diagonal Gaussian around the outputs of its network. It implements `Policy`.

    `GaussianHead` describes the samples. Masks are ignored.
    """

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: OutputNetwork
    _head: GaussianHead

    @classmethod
    def of(cls, spec: PolicySpec, document: HeadParameters, snapshot: PolicySnapshot, network: OutputNetwork) -> GaussianPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        assert isinstance(spec.action_space, BoxSpace)
        head = GaussianHead.of(spec.action_space, document.squash, spec.views(snapshot.flat)["log_std"])
        return cls(snapshot, snapshot.generation, snapshot.version, network, head)

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        return self._head.choose(self._network.single(observation), None, rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, choose = self._network.fused, self._head.choose
        if fused is None:
            return lambda observation, mask: self.act(observation, mask, rng, explore)
        forward = fused.forward()
        return lambda observation, mask: choose(forward(observation), None, rng, explore)

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        return self._head.choose_batch(self._network.batch(observations), None, rng, explore)
