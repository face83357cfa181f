"""The plugin of a learner: the network kind ``job_scorer``, and the environment for evaluations. This module imports no torch.

The import of this module registers both. A learner's ``plugins`` name it, or ``--plugin job_scheduling.plugin``.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

from job_scheduling.features import FEATURES
from job_scheduling.held_out import HELD_OUT
from job_scheduling.policy import KIND, scoring_spec
from rl4sys_zmq.algorithms.networks import NetworkEntry, PolicyRequirements, register_network
from rl4sys_zmq.config.options import number, one_of, option, sizes, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import PolicySpec

__all__ = ["ScorerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerOptions:
    """The options of the network kind ``job_scorer``."""

    hidden_sizes: tuple[int, ...] = option(sizes, (16, 8), doc="widths of the hidden layers of the policy")
    value_units: int = option(whole_number(1, 4096), 32, doc="units of the value network")
    preference: float = option(
        number(0.0, 1000.0),
        20.0,
        doc="initial preference for jobs with a low value of the feature `preferred`; 0: none",
    )
    preferred: str = option(one_of(*FEATURES), "requested time", doc="the feature that decides the initial preference")


def plan(options: ScorerOptions, requirements: PolicyRequirements) -> PolicySpec:
    """Return the specification of a policy with this network.

    Raises:
        ConfigError: If the spaces are not those of jobs, or observations are to be standardised.
    """
    if requirements.normalise_observations:
        raise ConfigError(
            f"a {KIND} network takes features as they are; set normalise_observations: false",
            key="algorithm_parameters.normalise_observations",
        )
    return scoring_spec(requirements.observation_space, requirements.action_space, options.hidden_sizes)


register_network(
    NetworkEntry(
        name=KIND,
        options=ScorerOptions,
        plan=plan,
        actor_critic="job_scheduling.network:JobScorer",
        summary="A score for each waiting job, with the same weights for all, and a value of the sum over the jobs.",
        reference="Zhang et al. 2020, RLScheduler: an automated HPC batch job scheduler using reinforcement learning",
        extra="learner",
    )
)

if HELD_OUT not in gymnasium.registry:
    gymnasium.register(HELD_OUT, "job_scheduling.held_out:make", disable_env_checker=True)
