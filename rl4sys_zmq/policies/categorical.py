"""The two built-in policies for discrete actions: a softmax over logits, and epsilon-greedy over action values."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import MaskError
from rl4sys_zmq.policies.action_heads import CategoricalHead
from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.draws import PYTHON_MAX_ACTIONS, allowed_rows, draw, draw_allowed, finite
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.network import OutputNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import DiscreteSpace, PolicySnapshot, PolicySpec

__all__ = ["CategoricalPolicy", "EpsilonGreedyPolicy"]

_TOTALS = 1e-100, 1e100
"""The smallest and the largest sum of exponentials whose logarithm is accurate without a shift by the largest logit."""


@dataclass(frozen=True, slots=True, eq=False)
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

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        return self._head.choose_batch(self._network.batch(observations), masks, rng, explore)


@dataclass(frozen=True, slots=True, eq=False)
class EpsilonGreedyPolicy:
    """An epsilon-greedy policy over action values, for discrete actions.

    It chooses the allowed action with the highest value, or with probability epsilon a random allowed action (uniform). If
    several actions have the highest value, it chooses the first of them. The log-probability is always that of the epsilon-greedy
    choice, also with ``explore=False``, which never chooses at random.

    With the option `epsilon_ladder`, each actor has its own epsilon (Horgan et al. 2018, Distributed prioritized experience
    replay). The exponent depends on the actor's place, not on its number among all actors, which no actor knows.
    """

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: OutputNetwork
    _actions: tuple[np.int64, ...]
    _epsilon: float
    _ladder: float
    _means: _DistributionMeans | None

    @classmethod
    def of(
        cls, spec: PolicySpec, parameters: HeadParameters, snapshot: PolicySnapshot, network: OutputNetwork
    ) -> EpsilonGreedyPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        assert isinstance(spec.action_space, DiscreteSpace)
        epsilon = min(max(float(spec.views(snapshot.flat)["epsilon"][0]), 0.0), 1.0)
        actions = CategoricalHead.of(spec.action_space).actions
        means = _DistributionMeans.of(parameters) if parameters.head == "q_distribution" else None
        return cls(snapshot, snapshot.generation, snapshot.version, network, actions, epsilon, parameters.epsilon_ladder, means)

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        outputs = self._network.single(observation)
        values = outputs if self._means is None else self._means.single(outputs)
        return self._choose(values, mask, rng, explore, self._epsilon_of(rng))

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, choose, epsilon = self._network.fused, self._choose, self._epsilon_of(rng)
        forward = self._network.single if fused is None else fused.forward()
        if self._means is None:
            return lambda observation, mask: choose(forward(observation), mask, rng, explore, epsilon)
        mean = self._means.single
        return lambda observation, mask: choose(mean(forward(observation)), mask, rng, explore, epsilon)

    def _epsilon_of(self, rng: RandomSource) -> float:
        """Return the probability of a random action for the actor with these random numbers."""
        return self._epsilon if not self._ladder else float(self._epsilon ** (1.0 + self._ladder * rng.place))

    def _choose(
        self, values: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool, epsilon: float
    ) -> tuple[Action, Action, float]:
        if mask is None:
            allowed, count = None, len(self._actions)
            index = greedy = int(values.argmax())
        else:
            allowed = mask.nonzero()[0]
            count = len(allowed)
            if not count:
                raise MaskError("the mask forbids every action")
            index = greedy = int(allowed[values[allowed].argmax()])
        if explore and rng.uniform() < epsilon:
            index = int(rng.uniform() * count)
            if allowed is not None:
                index = int(allowed[index])
        probability = epsilon / count + (1.0 - epsilon if index == greedy else 0.0)
        action = self._actions[index]
        return action, action, log(probability)

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions, as `Policy.act_batch` describes."""
        values, epsilon = self._network.batch(observations), self._epsilon_of(rng)
        if self._means is not None:
            values = self._means.batch(values)
        allowed = np.ones(values.shape, dtype=np.bool_) if masks is None else allowed_rows(masks)
        counts = allowed.sum(axis=1)
        greedy = np.where(allowed, finite(values), -np.inf).argmax(axis=1)
        index = greedy
        if explore:
            chance, which = rng.uniforms((2, len(values)))
            # The k-th allowed action is the first place where the running count exceeds k.
            rank = (which * counts).astype(np.int64)
            uniform = (allowed.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
            index = np.where(chance < epsilon, uniform, greedy)
        probability = epsilon / counts + np.where(index == greedy, 1.0 - epsilon, 0.0)
        actions = index + self._actions[0]
        return actions, actions.copy(), np.log(probability).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _DistributionMeans:
    """A function from the logits of distributions over `atoms` values to the means of the distributions.

    One product computes the sums of the weighted values and of the weights: `_sums` is ``[atoms, 2]``, the values and ones.
    """

    _atoms: int
    _sums: NDArray[np.float32]

    @classmethod
    def of(cls, parameters: HeadParameters) -> _DistributionMeans:
        values = np.linspace(parameters.v_min, parameters.v_max, parameters.atoms, dtype=np.float32)
        return cls(parameters.atoms, np.stack([values, np.ones_like(values)], axis=1))

    def single(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the means ``[n]`` for logits ``[n * atoms]``."""
        table = logits.reshape(-1, self._atoms)
        sums = np.exp(table - table.max(1, keepdims=True)).dot(self._sums)
        means: NDArray[np.float32] = sums[:, 0] / sums[:, 1]
        return means

    def batch(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the means ``[N, n]`` for logits ``[N, n * atoms]``."""
        return self.single(logits).reshape(len(logits), -1)
