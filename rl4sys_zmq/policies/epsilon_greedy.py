"""The epsilon-greedy choice of discrete actions from action values, or from distributions of the return."""

from __future__ import annotations

from math import inf, isfinite, log, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import MaskError
from rl4sys_zmq.policies.action_heads import action_scalars
from rl4sys_zmq.policies.base import Action, Choice, Choices, Mask
from rl4sys_zmq.policies.draws import allowed_rows
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import DiscreteSpace, PolicySnapshot, PolicySpec


class EpsilonGreedyHead:
    """The head for a network that estimates action values, or distributions of the return. It implements `ActionHead`.

    The head chooses the allowed action with the highest value, or with probability epsilon a uniformly random allowed action.
    If several actions have the highest value, it chooses the first of them. The log-probability is always that of the
    epsilon-greedy choice, also with ``explore=False``, which never chooses at random.

    With the option `epsilon_ladder`, each actor has its own epsilon (Horgan et al. 2018, Distributed prioritized experience
    replay). Epsilon is raised to a power that depends on the actor's `RandomSource.place`. The paper uses the actor's number
    among all actors, which no actor here knows.
    """

    def __init__(self, spec: PolicySpec, parameters: HeadParameters, snapshot: PolicySnapshot) -> None:
        assert isinstance(spec.action_space, DiscreteSpace)
        self._actions = action_scalars(spec.action_space)
        self._epsilon = min(max(float(spec.views(snapshot.flat)["epsilon"][0]), 0.0), 1.0)
        self._ladder = parameters.epsilon_ladder
        self._atoms: NDArray[np.float32] | None = None
        if parameters.head == "q_distribution":
            atoms = np.linspace(parameters.v_min, parameters.v_max, parameters.atoms, dtype=np.float32)
            # [atoms, 2], the values and ones: one product gives the weighted values and the weights
            self._atoms = np.stack([atoms, np.ones_like(atoms)], axis=1)

    def choose(self, outputs: NDArray[Any], mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        values = outputs if self._atoms is None else self.means(outputs)
        if mask is None:
            allowed, count = None, len(self._actions)
            index = greedy = int(values.argmax())
        else:
            allowed = mask.nonzero()[0]
            count = len(allowed)
            if not count:
                raise MaskError("the mask forbids every action")
            index = greedy = int(allowed[values[allowed].argmax()])
        epsilon = self._epsilon if not self._ladder else self._epsilon_of(rng)
        if explore and rng.uniform() < epsilon:
            index = int(rng.uniform() * count)
            if allowed is not None:
                index = int(allowed[index])
        probability = epsilon / count + (1.0 - epsilon if index == greedy else 0.0)
        action = self._actions[index]
        return action, action, log(probability) if isfinite(values.item(greedy)) else nan

    def assess(self, act: Action, outputs: NDArray[Any], mask: Mask, rng: RandomSource) -> tuple[Action, float]:
        values = outputs if self._atoms is None else self.means(outputs)
        allowed = np.arange(len(values)) if mask is None else mask.nonzero()[0]
        greedy, epsilon = int(allowed[values[allowed].argmax()]), self._epsilon_of(rng)
        probability = epsilon / len(allowed) + (1.0 - epsilon if act - self._actions[0] == greedy else 0.0)
        return act, log(probability) if probability else -inf

    def choose_batch(self, outputs: NDArray[Any], masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        values = outputs if self._atoms is None else self.means(outputs)
        epsilon = self._epsilon_of(rng)
        allowed = allowed_rows(masks, values.shape)
        counts = allowed.sum(axis=1)
        ranked = np.where(allowed, values, -np.inf)
        greedy = ranked.argmax(axis=1)
        unusable = ~np.isfinite(ranked[np.arange(len(ranked)), greedy])  # NaN counts as the highest value
        greedy[unusable] = allowed[unusable].argmax(axis=1)
        index = greedy
        if explore:
            chance, which = rng.uniforms((2, len(values)))
            # The k-th allowed action is the first place where the running count exceeds k.
            rank = (which * counts).astype(np.int64)
            uniform = (allowed.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
            index = np.where(chance < epsilon, uniform, greedy)
        probability = epsilon / counts + np.where(index == greedy, 1.0 - epsilon, 0.0)
        probability[unusable] = nan
        actions = index + self._actions[0]
        return actions, actions.copy(), np.log(probability).astype(np.float32)

    def _epsilon_of(self, rng: RandomSource) -> float:
        """Return the probability of a random action for the actor to which `rng` belongs."""
        return float(self._epsilon ** (1.0 + self._ladder * rng.place))

    def means(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean ``[..., n]`` of each action's distribution of the return, from the logits ``[..., n * atoms]``."""
        assert self._atoms is not None
        table = logits.reshape(-1, len(self._atoms))
        sums = np.exp(table - table.max(1, keepdims=True)).dot(self._atoms)
        means: NDArray[np.float32] = (sums[:, 0] / sums[:, 1]).reshape(*logits.shape[:-1], -1)
        return means
