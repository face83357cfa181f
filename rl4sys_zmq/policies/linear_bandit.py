"""The policy kind ``linear_bandit``: it chooses a discrete action by a linear model of the reward of each action, in numpy.

The model of an action is a Bayesian linear regression over the decisions for this action ("disjoint" models; Li et al. 2010, A
contextual-bandit approach to personalized news article recommendation). With features ``x [D]`` of the observation, the reward
of action ``a`` has the mean ``x . means[a]``. The standard error of that mean is ``|factors[a] @ x|``, in units of the noise of
the rewards: ``factors[a].T @ factors[a]`` is the inverse of ``ridge * I + sum(x x^T)`` over the decisions for ``a``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import check_fields, flag, integer, one_of, option, parse_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.base import Action, Choice, Choices, Mask
from rl4sys_zmq.policies.draws import allowed_rows, finite
from rl4sys_zmq.policies.registry import PolicyEntry
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import (
    DiscreteSpace,
    ObservationSpace,
    PolicySnapshot,
    PolicySpec,
    Space,
    TensorSpec,
    feature_size,
)
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree

STRATEGIES = ("thompson", "ucb", "greedy", "softmax")
MAX_SAMPLES = 1 << 16

_CHUNK = 1 << 20
"""The largest number of posterior samples that a batch holds in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearBanditDocument:
    """The contents of `PolicySpec.document` for the policy kind ``linear_bandit``.

    The strategies, with the tensor ``scale`` ``[1]`` as their parameter:

    - ``thompson``: The action with the highest mean in a sample of the posterior distribution, whose standard error is
      multiplied by ``scale`` (Agrawal and Goyal 2013, Thompson sampling for contextual bandits with linear payoffs).
    - ``ucb``: The action with the highest mean plus ``scale`` times the standard error (LinUCB; Li et al. 2010).
    - ``greedy``: The action with the highest mean.
    - ``softmax``: A draw from the softmax of the means divided by ``scale``.

    With `intercept`, the last feature is a constant 1. With the probability in the tensor ``epsilon`` ``[1]``, each strategy
    chooses a uniformly random allowed action instead.

    The log-probability is that of choosing the action. For ``ucb``, ``greedy`` and ``softmax`` it is exact. For ``thompson``,
    the policy draws `samples` samples of the posterior, and chooses the action of one of them. The logged probability is the
    share of the samples with this action: exact for given samples, so importance weights with this share are unbiased for all
    actions that some sample chose. As an estimate of the probability ``p`` before the samples were drawn, the share has the
    relative standard error ``sqrt((1 - p) / (p * samples))``.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    strategy: str = option(one_of(*STRATEGIES), required=True)
    intercept: bool = option(flag, True)
    samples: int = option(integer(1, MAX_SAMPLES), 100)

    def __post_init__(self) -> None:
        check_fields(self)

    def tensors(self, observation_space: ObservationSpace, action_space: Space) -> tuple[TensorSpec, ...]:
        """Return the names and shapes of the tensors of a policy with this document, for these spaces.

        Raises:
            ConfigError: If the actions are not Discrete.
        """
        if not isinstance(action_space, DiscreteSpace):
            text = f"a linear bandit needs a Discrete action space, not {action_space!s:.80}; use PPO"
            raise ConfigError(text, key="action_space")
        width = feature_size(observation_space) + self.intercept
        return (
            TensorSpec("means", (action_space.n, width)),
            TensorSpec("factors", (action_space.n, width, width)),
            TensorSpec("scale", (1,), exact=True),
            TensorSpec("epsilon", (1,), exact=True),
        )


def linear_bandit_spec(
    observation_space: ObservationSpace, action_space: Space, strategy: str, *, intercept: bool = True, samples: int = 100
) -> PolicySpec:
    """Return the `PolicySpec` of a linear bandit. `LinearBanditDocument` describes the arguments.

    Raises:
        ConfigError: If a value is invalid, or the policy cannot act in these spaces.
    """
    document = LinearBanditDocument(strategy=strategy, intercept=intercept, samples=samples)
    tensors = document.tensors(observation_space, action_space)
    return PolicySpec(observation_space, action_space, "linear_bandit", asdict(document), tensors)


def linear_bandit_document(spec: PolicySpec) -> LinearBanditDocument:
    """Check a policy spec of the kind ``linear_bandit``, and return its document.

    Raises:
        ConfigError: If a key is unknown, a value is invalid, the tensors do not match the spaces, or the spec has a blob or extra
            columns.
    """
    document = LinearBanditDocument(**parse_options(LinearBanditDocument, spec.document))  # type: ignore[arg-type]
    if document.tensors(spec.observation_space, spec.action_space) != spec.tensors:
        raise ConfigError("the tensors of a linear bandit do not match its spaces", key="tensors")
    if spec.blob or spec.columns:
        raise ConfigError("a linear bandit has neither a blob nor extra columns", key="blob" if spec.blob else "columns")
    return document


def context_features(space: ObservationSpace, observations: Tree, intercept: bool) -> NDArray[np.float32]:
    """Return the features of `FeatureLayout`, float32 ``[N, D]``. With `intercept`, the last feature is a constant 1."""
    features = feature_layout(space).batch(observations)
    return np.concatenate([features, np.ones((len(features), 1), np.float32)], axis=1) if intercept else features


class LinearBanditPolicy:
    """A policy of the kind ``linear_bandit``. `LinearBanditDocument` describes its choice and its log-probability.

    With ``explore=False`` it chooses the allowed action with the highest mean, with the log-probability 0. If a mean or a
    standard error of an allowed action is not finite in float32, the log-probability is NaN.
    """

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        document = linear_bandit_document(spec)
        tensors = spec.views(snapshot.flat)
        assert isinstance(spec.action_space, DiscreteSpace)
        self.snapshot = snapshot
        self.generation, self.version = snapshot.generation, snapshot.version
        self._space, self._leaves = spec.observation_space, leaves_of(spec.observation_space)
        self._start, self._count = spec.action_space.start, spec.action_space.n
        self._document = document
        self._means: NDArray[np.float32] = tensors["means"]
        self._factors: NDArray[np.float32] = tensors["factors"].reshape(-1, self._means.shape[1])
        self._scale = max(float(tensors["scale"][0]), 0.0)
        self._epsilon = min(max(float(tensors["epsilon"][0]), 0.0), 1.0)

    def act(self, observation: Tree, mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        masks = None if mask is None else mask[None]
        raw, _, log_probs = self.act_batch(self._leaves.stack([observation]), masks, rng, explore)
        return raw[0], raw[0], float(log_probs[0])

    def act_batch(self, observations: Tree, masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        features = context_features(self._space, observations, self._document.intercept)
        allowed = allowed_rows(masks, (len(features), self._count))
        if explore:
            chances = self._chances(features, allowed, rng)
            cumulative = chances.cumsum(axis=1)
            total = cumulative[:, -1]
            cut = np.minimum(rng.uniforms(len(features)) * total, np.nextafter(total, 0.0))  # below the total after rounding too
            index = (cumulative <= cut[:, None]).sum(axis=1)
            unusable = np.isnan(total)
            index[unusable] = allowed[unusable].argmax(axis=1)
            log_probs = np.log(chances[np.arange(len(index)), index]).astype(np.float32)
        else:
            means = features @ self._means.T
            index = _masked(means, allowed).argmax(axis=1)
            log_probs = np.where(_usable(means, allowed), 0.0, nan).astype(np.float32)
        actions = index + np.int64(self._start)
        return actions, actions.copy(), log_probs

    def assess(self, act: Action, observation: Tree, mask: Mask, rng: RandomSource, state: Any) -> tuple[Action, float]:
        chances = self.probabilities(self._leaves.stack([observation]), None if mask is None else mask[None])
        probability = chances[0, act - self._start]
        return act, float(np.log(probability)) if probability else -inf

    def probabilities(self, observations: Tree, masks: Mask = None, rng: RandomSource | None = None) -> NDArray[np.float64]:
        """Return the probability of each action in ``N`` contexts, float64 ``[N, n]``, as in `act_batch` with ``explore=True``.

        `rl4sys_zmq.policies.off_policy_value` needs these probabilities to estimate the value of this policy from another
        policy's decisions.

        Args:
            observations: ``[N, *obs]``, or a tree of such arrays.
            masks: ``[N, n]`` or None, as in `act_batch`.
            rng: The source of the posterior samples of ``thompson``. None: a generator with the seed 0.

        Raises:
            MaskError: If a row of `masks` forbids every action.
        """
        features = context_features(self._space, observations, self._document.intercept)
        return self._chances(features, allowed_rows(masks, (len(features), self._count)), rng or RandomSource(0))

    def _chances(self, features: NDArray[np.float32], allowed: NDArray[np.bool_], rng: RandomSource) -> NDArray[np.float64]:
        """Return the probabilities ``[N, n]`` of the actions; NaN if an allowed action's mean or standard error is not finite."""
        strategy = self._document.strategy
        means, errors = features @ self._means.T, np.zeros(())
        usable = _usable(means, allowed)
        means = _masked(means, allowed)
        if strategy in ("thompson", "ucb"):
            errors = np.where(allowed, self._errors(features), 0.0)
            usable &= _usable(errors, allowed)
        if strategy == "thompson":
            chances = self._thompson(means, errors, rng)
        elif strategy == "softmax":
            shifted = means - means.max(axis=1, keepdims=True)
            # A scale of 0 is the limit: all weight on the highest mean.
            chances = np.exp(shifted / self._scale) if self._scale > 0.0 else (shifted == 0.0).astype(np.float64)
            chances = chances / chances.sum(axis=1, keepdims=True)
        else:
            scores = means + self._scale * errors if strategy == "ucb" else means
            chances = np.zeros_like(means)
            chances[np.arange(len(scores)), scores.argmax(axis=1)] = 1.0
        if self._epsilon > 0.0:
            uniform = allowed / allowed.sum(axis=1, keepdims=True)
            chances = (1.0 - self._epsilon) * chances + self._epsilon * uniform
        chances[~usable] = nan
        return chances

    def _errors(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the standard error of each action's mean, ``[N, n]``, in units of the noise of the rewards."""
        products = (features @ self._factors.T).reshape(len(features), self._count, -1)
        errors: NDArray[np.float64] = np.sqrt(np.einsum("nad,nad->na", products, products, dtype=np.float64))
        return errors

    def _thompson(self, means: NDArray[np.float64], errors: NDArray[np.float64], rng: RandomSource) -> NDArray[np.float64]:
        """Return, for each action, the share of the posterior samples in which it has the highest mean, ``[N, n]``."""
        samples = self._document.samples
        chances = np.empty_like(means)
        rows = max(1, _CHUNK // (samples * self._count))
        for first in range(0, len(means), rows):
            part = slice(first, first + rows)
            count = len(means[part])
            # The models of the actions are independent, so the scores are independent normal numbers.
            scores = rng.normals(count * samples * self._count).reshape(count, samples, self._count)
            best = (means[part, None] + self._scale * errors[part, None] * scores).argmax(axis=2)
            places = best + np.arange(count)[:, None] * self._count
            chances[part] = np.bincount(places.reshape(-1), minlength=count * self._count).reshape(count, -1)
        return chances / samples


def _usable(numbers: NDArray[Any], allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a bool for each row of ``[N, n]``: True if the numbers of all allowed actions are finite."""
    usable: NDArray[np.bool_] = (np.isfinite(numbers) | ~allowed).all(axis=1)
    return usable


def _masked(scores: NDArray[Any], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return `scores` ``[N, n]`` as finite float64 numbers, with minus infinity for each forbidden action."""
    return np.where(allowed, finite(scores.astype(np.float64)), -np.inf)


ENTRY = PolicyEntry(
    name="linear_bandit",
    factory="rl4sys_zmq.policies.linear_bandit:LinearBanditPolicy",
    summary="A linear model of the reward of each discrete action, with Thompson sampling, LinUCB, epsilon-greedy or softmax.",
    check=linear_bandit_document,
)
