"""The built-in policy that samples discrete actions: a softmax over logits."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.action_heads import CategoricalHead
from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.draws import PYTHON_MAX_ACTIONS, draw, draw_allowed
from rl4sys_zmq.policies.network import OutputNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import DiscreteSpace, PolicySnapshot, PolicySpec

__all__ = ["CategoricalPolicy"]

_TOTALS = 1e-100, 1e100
"""The smallest and the largest sum of exponentials whose logarithm is accurate without a shift by the largest logit."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CategoricalPolicy:
    """A policy for discrete actions that samples an allowed action from the softmax of the network's outputs."""

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: OutputNetwork
    _head: CategoricalHead

    @classmethod
    def of(cls, spec: PolicySpec, snapshot: PolicySnapshot, network: OutputNetwork) -> CategoricalPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        assert isinstance(spec.action_space, DiscreteSpace)
        return cls(snapshot, snapshot.generation, snapshot.version, network, CategoricalHead.of(spec.action_space))

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        return self._head.choose(self._network.single(observation), mask, rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, actions = self._network.fused, self._head.actions
        if fused is None or len(actions) > PYTHON_MAX_ACTIONS:
            return lambda observation, mask: self.act(observation, mask, rng, explore)
        forward, uniform = fused.forward(), rng.uniform
        least, most = _TOTALS

        def act(observation: NDArray[Any], mask: NDArray[Any] | None) -> tuple[Action, Action, float]:
            logits = forward(observation).tolist()
            if mask is not None:
                index, log_prob = draw_allowed(logits, mask.tolist(), uniform() if explore else None)
            elif not explore:
                index, log_prob = draw(logits, None)
            else:  # as `draw`, without the shift by the largest logit where that is not needed
                cumulative = []
                total = 0.0
                try:
                    for logit in logits:
                        total += exp(logit)
                        cumulative.append(total)
                except OverflowError:
                    total = 0.0
                if least < total < most:
                    index = bisect_right(cumulative, uniform() * total)
                    log_prob = logits[index] - log(total)
                else:
                    index, log_prob = draw(logits, uniform())
            action = actions[index]
            return action, action, log_prob

        return act

    def assess(
        self, act: Action, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, state: Any
    ) -> tuple[Action, float]:
        """Return the raw action of an action, and its log-probability, as `AssessingPolicy.assess` describes."""
        return self._head.assess(act, self._network.single(observation), mask, rng)

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        return self._head.choose_batch(self._network.batch(observations), masks, rng, explore)
