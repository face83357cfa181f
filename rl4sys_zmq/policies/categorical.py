"""The two built-in policies for discrete actions: a softmax over logits, and epsilon-greedy over action values."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import exp, isnan, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import MaskError
from rl4sys_zmq.policies.base import Act, Action
from rl4sys_zmq.policies.network import PolicyNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import DiscreteSpace, PolicySnapshot, PolicySpec

__all__ = ["CategoricalPolicy", "EpsilonGreedyPolicy", "draw"]

PYTHON_MAX_ACTIONS = 40
"""The largest number of actions for which Python floats are faster than numpy (for 4 actions, 0.6 us instead of 8 us)."""

LOOP_MAX_LOGITS = 32
"""The largest number of logits in a batch (rows times actions) for which a loop over the rows is faster than numpy."""

_TOTALS = 1e-100, 1e100
"""The smallest and the largest sum of exponentials whose logarithm is accurate without a shift by the largest logit."""

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class CategoricalPolicy:
    """A policy for discrete actions that samples an allowed action from the softmax of the network's outputs."""

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: PolicyNetwork
    _actions: tuple[np.int64, ...]

    @classmethod
    def of(cls, spec: PolicySpec, snapshot: PolicySnapshot, network: PolicyNetwork) -> CategoricalPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        return cls(snapshot, snapshot.generation, snapshot.version, network, _actions(spec))

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        outputs = self._network.single(observation)
        actions = self._actions
        if len(actions) > PYTHON_MAX_ACTIONS:
            index, log_prob = _draw_large(outputs, mask, rng.uniform() if explore else None)
        elif mask is None:
            index, log_prob = draw(outputs.tolist(), rng.uniform() if explore else None)
        else:
            index, log_prob = _draw_allowed(outputs.tolist(), mask.tolist(), rng.uniform() if explore else None)
        action = actions[index]
        return action, action, log_prob

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, actions = self._network.fused, self._actions
        if fused is None or len(actions) > PYTHON_MAX_ACTIONS:
            return lambda observation, mask: self.act(observation, mask, rng, explore)
        forward, uniform = fused.forward(), rng.uniform
        least, most = _TOTALS

        def act(observation: NDArray[Any], mask: NDArray[Any] | None) -> tuple[Action, Action, float]:
            logits = forward(observation).tolist()
            if mask is not None:
                index, log_prob = _draw_allowed(logits, mask.tolist(), uniform() if explore else None)
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
        logits = self._network.batch(observations)
        draws = rng.uniforms(len(logits)) if explore else None
        index, log_probs = (_draw_each if logits.size <= LOOP_MAX_LOGITS else _draw_rows)(logits, masks, draws)
        index += self._actions[0]
        # Two arrays: the host can write to its own.
        return index, index.copy(), log_probs


@dataclass(frozen=True, slots=True, eq=False)
class EpsilonGreedyPolicy:
    """An epsilon-greedy policy over action values, for discrete actions.

    It chooses the allowed action with the highest value, or with probability epsilon a random allowed action (uniform). If
    several actions have the highest value, it chooses the first of them. The log-probability is always that of the epsilon-greedy
    choice, also with ``explore=False``, which never chooses at random.
    """

    snapshot: PolicySnapshot
    generation: int
    version: int
    _network: PolicyNetwork
    _actions: tuple[np.int64, ...]
    _epsilon: float

    @classmethod
    def of(cls, spec: PolicySpec, snapshot: PolicySnapshot, network: PolicyNetwork) -> EpsilonGreedyPolicy:
        """Build the policy that `spec` describes. `network` must have been built from the weights in `snapshot`."""
        epsilon = min(max(float(spec.views(snapshot.flat)["epsilon"][0]), 0.0), 1.0)
        return cls(snapshot, snapshot.generation, snapshot.version, network, _actions(spec), epsilon)

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action, as `Policy.act` describes."""
        return self._choose(self._network.single(observation), mask, rng, explore)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        fused, choose = self._network.fused, self._choose
        forward = self._network.single if fused is None else fused.forward()
        return lambda observation, mask: choose(forward(observation), mask, rng, explore)

    def _choose(
        self, values: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        epsilon = self._epsilon
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
        values, epsilon = self._network.batch(observations), self._epsilon
        allowed = np.ones(values.shape, dtype=np.bool_) if masks is None else _allowed(masks)
        counts = allowed.sum(axis=1)
        greedy = np.where(allowed, _finite(values), -np.inf).argmax(axis=1)
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


def draw(logits: list[float], uniform: float | None) -> tuple[int, float]:
    """Draw an index from the softmax of `logits`.

    An index with probability zero is never drawn.

    Args:
        logits: One logit for each action.
        uniform: A random number in ``[0, 1)``, at which the cumulative distribution is inverted. None returns the most probable
            index.

    Returns:
        The index and its log-probability, ``log_softmax(logits)[index]``, in float64.
    """
    top = max(logits)
    cumulative = []
    total = 0.0
    for logit in logits:
        total += exp(logit - top)
        cumulative.append(total)
    if isnan(total):
        # The weights overflowed the network. Act on the finite logits rather than fail in the host's loop.
        return draw(_finite(np.asarray(logits)).tolist(), uniform)
    if uniform is None:
        index = logits.index(top)
    else:
        cut = uniform * total
        index = 0
        while cumulative[index] <= cut:
            index += 1
    return index, logits[index] - top - log(total)


def _draw_allowed(logits: list[float], mask: list[bool], uniform: float | None) -> tuple[int, float]:
    allowed = [i for i, ok in enumerate(mask) if ok]
    if not allowed:
        raise MaskError("the mask forbids every action")
    index, log_prob = draw([logits[i] for i in allowed], uniform)
    return allowed[index], log_prob


def _draw_large(logits: NDArray[Any], mask: NDArray[Any] | None, uniform: float | None) -> tuple[int, float]:
    draws = None if uniform is None else np.asarray([uniform])
    index, log_probs = _draw_rows(logits[None], None if mask is None else mask[None], draws)
    return int(index[0]), float(log_probs[0])


def _draw_each(
    logits: NDArray[Any], masks: NDArray[Any] | None, draws: NDArray[np.float64] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw an index for each row of `logits` with a loop in Python, which is faster than numpy for few rows.

    The arguments and the result are those of `_draw_rows`.
    """
    rows = logits.tolist()
    uniforms = [None] * len(rows) if draws is None else draws.tolist()
    if masks is None:
        drawn = [draw(row, u) for row, u in zip(rows, uniforms, strict=True)]
    else:
        drawn = [_draw_allowed(row, mask, u) for row, mask, u in zip(rows, masks.tolist(), uniforms, strict=True)]
    return np.array([d[0] for d in drawn], dtype=np.int64), np.array([d[1] for d in drawn], dtype=np.float32)


def _draw_rows(
    logits: NDArray[Any], masks: NDArray[Any] | None, draws: NDArray[np.float64] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw an index for each row of `logits`, with numpy.

    Args:
        logits: ``[N, n]``.
        masks: ``[N, n]``, nonzero where an action is allowed, or None.
        draws: ``[N]`` random numbers in ``[0, 1)``. None returns the most probable indices.

    Returns:
        The indices ``[N]`` and their log-probabilities ``[N]``, as in `draw`.
    """
    z = _finite(logits).astype(np.float64)
    if masks is not None:
        z = np.where(_allowed(masks), z, -np.inf)
    z -= z.max(axis=1, keepdims=True)
    cumulative = np.exp(z).cumsum(axis=1)
    total = cumulative[:, -1]
    index = z.argmax(axis=1) if draws is None else (cumulative <= (draws * total)[:, None]).sum(axis=1)
    chosen = z[np.arange(len(z)), index]
    return index, (chosen - np.log(total)).astype(np.float32)


def _allowed(masks: NDArray[Any]) -> NDArray[np.bool_]:
    allowed: NDArray[np.bool_] = masks.astype(np.bool_, copy=False)
    if not allowed.any(axis=1).all():
        raise MaskError("a mask forbids every action")
    return allowed


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of `values` in which infinities are the float32 limits and NaN is the lowest float32 number.

    Return the same array if all values are finite.
    """
    if np.isfinite(values).all():
        return values
    finite: NDArray[Any] = np.nan_to_num(values, nan=-_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    return finite


def _actions(spec: PolicySpec) -> tuple[np.int64, ...]:
    assert isinstance(spec.action_space, DiscreteSpace)
    return _scalars(spec.action_space)


@lru_cache(maxsize=64)
def _scalars(space: DiscreteSpace) -> tuple[np.int64, ...]:
    """Return all actions of a discrete space as int64 scalars. Looking one up takes 0.01 us, creating a new one 0.2 us."""
    return tuple(np.arange(space.start, space.start + space.n, dtype=np.int64))
