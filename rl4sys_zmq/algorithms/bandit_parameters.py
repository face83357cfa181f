"""The entry of the linear contextual bandit in the registry of algorithms, and its parameters. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.config.options import MAX_NUMBER, flag, number, one_of, option, optional, whole_number
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, Staleness, read_parameters
from rl4sys_zmq.policies.linear_bandit import MAX_SAMPLES, STRATEGIES, linear_bandit_spec
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space

GREEDY_EPSILON = 0.1
"""The default of `epsilon` for the strategy ``greedy``, which otherwise explores nothing."""


@dataclass(frozen=True, slots=True)
class BanditParameters:
    """All parameters of `BANDIT`. A *decision* is one step: its reward depends on its observation and its action only."""

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
    epsilon: float | None = option(
        optional(number(0.0, 1.0)),
        None,
        doc="probability of a uniformly random allowed action, with each strategy; null: 0.1 for greedy, else 0",
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
