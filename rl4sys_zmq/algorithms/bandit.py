"""The linear contextual bandit: Bayesian linear regression of the reward for each action, in numpy.

With the features ``x`` and the reward ``r`` of each decision for action ``a`` (Li et al. 2010, algorithm 1, "disjoint"
models)::

    A_a = ridge * I + sum(w * x x^T)        b_a = sum(w * r * x)        mean_a = A_a^-1 b_a

The weight ``w`` of a decision is 1, or ``forgetting ** n`` if ``n`` further decisions followed, for any action (Russac et al.
2019, Weighted linear bandits for non-stationary environments). With ``init``, the posterior of the given policy takes the place
of ``ridge * I``; as it is forgotten, ``ridge * I`` returns. Actors get the means, and the inverse of the Cholesky factor
``L_a`` of each ``A_a``, from which they compute standard errors: ``x^T A_a^-1 x = |L_a^-1 x|^2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, one_of, option, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, Staleness, read_parameters
from rl4sys_zmq.policies.linear_bandit import MAX_SAMPLES, STRATEGIES, context_features, linear_bandit_spec
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space

GREEDY_EPSILON = 0.1
"""The default of `epsilon` for the strategy ``greedy``, which otherwise explores nothing."""


@dataclass(frozen=True, slots=True)
class BanditParameters:
    """All parameters of `BANDIT`. A *decision* is a step whose reward depends only on its observation and action."""

    changeable: ClassVar[frozenset[str]] = frozenset({"scale", "epsilon", "ridge", "forgetting", "steps_per_update"})
    strategy: str = option(
        one_of(*STRATEGIES),
        "thompson",
        doc="the rule of the choice: thompson samples the posterior, ucb adds the standard error (LinUCB), greedy takes the "
        "highest mean, softmax draws from the means",
    )
    scale: float = option(
        number(0.0, MAX_NUMBER),
        1.0,
        names=("alpha", "v", "temperature"),
        doc="thompson and ucb: factor of the standard error, about the noise of the rewards; softmax: its temperature",
    )
    epsilon: float | None = nullable(
        number(0.0, 1.0), doc="probability of a uniformly random allowed action, with each strategy; null: 0.1 for greedy, else 0"
    )
    ridge: float = option(
        number(0.0, MAX_NUMBER, above=True),
        1.0,
        names=("lambda", "lambda_", "regularisation"),
        doc="precision of the prior of each coefficient, in units of the noise of the rewards",
    )
    forgetting: float = option(
        number(0.0, 1.0, above=True),
        1.0,
        names=("discount",),
        doc="factor of the weight of all earlier decisions with each further decision; 1 forgets nothing",
    )
    intercept: bool = option(flag, True, doc="append a constant 1 to the features")
    propensity_samples: int = option(
        whole_number(1, MAX_SAMPLES), 100, doc="thompson: posterior samples per decision, from which its probability is estimated"
    )
    steps_per_update: int = option(
        whole_number(1, 1 << 30), 32, doc="decisions per update of the models; each update is a version of the policy"
    )
    rollout_length: int = option(whole_number(1, 1 << 20), 32, doc="most steps per segment")

    def epsilon_in_force(self) -> float:
        return self.epsilon if self.epsilon is not None else GREEDY_EPSILON if self.strategy == "greedy" else 0.0


def plan_bandit(observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]) -> PolicySpec:
    """Return the specification of the policy of a bandit with these parameters."""
    p = read_parameters(BanditParameters, parameters, algorithm="BANDIT")
    return linear_bandit_spec(observation_space, action_space, p.strategy, intercept=p.intercept, samples=p.propensity_samples)


ENTRY = AlgorithmEntry(
    name="BANDIT",
    factory="rl4sys_zmq.algorithms.bandit:LinearBandit",
    summary="Linear contextual bandit with a model per action, for problems of one step.",
    kind="onpolicy",
    parameters=BanditParameters,
    plan=plan_bandit,
    staleness=Staleness(
        max_policy_lag=None, correction="none needed, because the models do not depend on who chose the actions", pacing_lag=8
    ),
    spaces="any observations; Discrete actions",
    reference="Li et al. 2010, A contextual-bandit approach to personalized news article recommendation; Agrawal and Goyal 2013, "
    "Thompson sampling for contextual bandits with linear payoffs",
    takes_masks=True,
)


Array = NDArray[np.float64]
_ARRAYS = "gram", "moment", "means", "factors"
"""The arrays of the state, which are attributes by these names."""


class LinearBandit:
    """The algorithm `BANDIT`: for each action, a linear model of the reward.

    Each step of a segment is a separate decision, whether or not the episode continues.
    """

    kind: ClassVar[str] = "onpolicy"
    publish_every_updates = 1
    max_policy_lag: int | None = None

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        self._spec = plan_bandit(observation_space, action_space, parameters)
        assert isinstance(action_space, DiscreteSpace)
        self._space, self._actions = observation_space, action_space
        self.change(parameters)
        count, width = self._spec.tensors[0].shape
        self._gram: Array = np.zeros((count, width, width))
        self._moment: Array = np.zeros((count, width))
        self._ridge_share = 1.0  # the rest of the prior is in `_gram`
        self._decisions = 0
        self._waiting: list[Segment] = []
        self._waiting_steps = 0
        self._means, self._factors = self._posterior()

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from now on. Only a new `ridge` waits for the next update."""
        self.parameters = read_parameters(BanditParameters, parameters, algorithm="BANDIT")
        self.rollout_length = self.parameters.rollout_length

    def spec(self) -> PolicySpec:
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self._waiting.append(segment)
        self._waiting_steps += segment.steps

    def demand(self) -> int:
        return max(0, self.parameters.steps_per_update - self._waiting_steps)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Fit the models of the actions to the observed decisions. Return metrics; None if there are too few decisions."""
        if not self._waiting or (self.demand() and not partial):
            return None
        segments, self._waiting, self._waiting_steps = self._waiting, [], 0
        features = np.concatenate([self._features(segment) for segment in segments])
        actions = np.concatenate([segment.actions for segment in segments]) - self._actions.start
        rewards = np.concatenate([segment.rewards for segment in segments]).astype(np.float64)
        predicted = np.einsum("nd,nd->n", features, self._means[actions])
        self._add(features, actions, rewards)
        self._means, self._factors = self._posterior()
        self._decisions += len(actions)
        return {
            "losses/prediction": float(np.square(rewards - predicted).mean()),
            "charts/mean_reward": float(rewards.mean()),
            "charts/mean_propensity": float(np.exp(np.concatenate([s.log_probs for s in segments]).astype(np.float64)).mean()),
            "charts/decisions": float(self._decisions),
        }

    def _features(self, segment: Segment) -> Array:
        features = context_features(self._space, segment.observations, self.parameters.intercept)
        return features[: segment.steps].astype(np.float64)

    def _add(self, features: Array, actions: NDArray[np.int64], rewards: Array) -> None:
        """Reduce the weight of earlier decisions, and add ``N`` decisions to the sums from which the models follow."""
        count, forgetting = len(actions), self.parameters.forgetting
        kept = forgetting**count
        self._gram *= kept
        self._moment *= kept
        self._ridge_share = 1.0 - kept * (1.0 - self._ridge_share)
        weights = forgetting ** np.arange(count - 1, -1, -1, dtype=np.float64)
        for action in np.unique(actions):
            rows = actions == action
            weighted = features[rows] * weights[rows, None]
            self._gram[action] += weighted.T @ features[rows]
            self._moment[action] += weighted.T @ rewards[rows]

    def _posterior(self) -> tuple[Array, Array]:
        """Return each action's model of ``D`` weights: means ``[n, D]`` and inverse Cholesky factors ``[n, D, D]``."""
        identity = np.eye(self._gram.shape[1])
        try:
            lower = np.linalg.cholesky(self._gram + self._ridge_share * self.parameters.ridge * identity)
        except np.linalg.LinAlgError:  # sums too large for float64; the learner thread undoes the update
            return np.full_like(self._moment, np.nan), np.full_like(self._gram, np.nan)
        factors = np.tril(np.linalg.solve(lower, np.broadcast_to(identity, lower.shape)))
        means = np.einsum("ade,ad->ae", factors, np.einsum("ade,ae->ad", factors, self._moment))
        return means, factors

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        return {
            "means": self._means.astype(np.float32),
            "factors": self._factors.astype(np.float32),
            "scale": np.array([self.parameters.scale], dtype=np.float32),
            "epsilon": np.array([self.parameters.epsilon_in_force()], dtype=np.float32),
        }

    def state(self) -> dict[str, Any]:
        arrays = {name: getattr(self, f"_{name}").copy() for name in _ARRAYS}
        return {**arrays, "ridge_share": self._ridge_share, "decisions": self._decisions}

    def load(self, state: Mapping[str, Any]) -> None:
        arrays = {name: np.array(state[name], dtype=np.float64) for name in _ARRAYS}
        if arrays["gram"].shape != self._gram.shape or arrays["moment"].shape != self._moment.shape:
            raise ConfigError(
                f"the state has models of the shape {arrays['gram'].shape}; expected {self._gram.shape}",
                key="algorithm_parameters",
            )
        self._gram, self._moment, self._means, self._factors = arrays.values()
        self._ridge_share, self._decisions = float(state["ridge_share"]), int(state["decisions"])
        self._waiting, self._waiting_steps = [], 0

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Start the training from a bandit policy with these tensors: from its models of the actions."""
        means, factors = (np.array(tensors[name], dtype=np.float64) for name in ("means", "factors"))
        identity = np.eye(factors.shape[1])
        try:
            lower = np.linalg.solve(factors, np.broadcast_to(identity, factors.shape))
        except np.linalg.LinAlgError as exc:
            raise ConfigError(
                f"the factors of the given bandit cannot be inverted ({exc}); give another policy", key="init"
            ) from exc
        precision = lower @ lower.transpose(0, 2, 1)
        self._gram, self._ridge_share = precision, 0.0
        self._moment = np.einsum("ade,ae->ad", precision, means)
        self._means, self._factors = means, factors
