"""IMPALA's entry in the registry of algorithms, and its parameters. This module imports no torch."""

from __future__ import annotations

from typing import ClassVar

from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters, actor_critic_entry
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters
from rl4sys_zmq.config.options import MAX_NUMBER, flag, number, option
from rl4sys_zmq.learner.registry.algorithm_entry import Setting, Staleness, TaskPreset, inherited, with_settings


@with_settings(
    learning_rate=Setting(1e-3, "step size of the optimizer"),
    gae_lambda=Setting(1.0, "λ, the further decay of V-trace's traces"),
    norm_adv=False,
    steps_per_update=Setting(
        None, "steps per update, which is one gradient step; null: 256, unless episodes_per_update is given"
    ),
    rollout_length=Setting(32, "most steps per segment"),
)
class IMPALAParameters(ActorCriticParameters):
    """All parameters of `IMPALA`."""

    changeable: ClassVar[frozenset[str]] = ActorCriticParameters.changeable | {
        "ent_coef",
        "vf_coef",
        "vtrace",
        "rho_clip",
        "c_clip",
    }
    default_steps: ClassVar[int] = 256

    ent_coef: float | None = inherited(PPOParameters, "ent_coef", None)
    vf_coef: float = inherited(PPOParameters, "vf_coef", 0.5)
    vtrace: bool = option(
        flag, True, doc="correct for the age of the data; false: as if the newest policy had chosen all actions"
    )
    rho_clip: float = option(number(0.0, MAX_NUMBER), 1.0, doc="ρ̄, the largest importance weight of a step")
    c_clip: float = option(number(0.0, MAX_NUMBER), 1.0, doc="c̄, the largest importance weight in a trace")


ENTRY = actor_critic_entry(
    "IMPALA",
    IMPALAParameters,
    "impala:IMPALA",
    summary="Actor-critic whose V-trace corrects for data of any age, for all actions.",
    staleness=Staleness(max_policy_lag=None, correction="V-trace with truncated importance weights", pacing_lag=1),
    presets={
        "CartPole-v1": TaskPreset(
            parameters={
                "steps_per_update": 256,
                "rollout_length": 32,
                "learning_rate": 1.2e-3,
                "anneal_lr": True,
                "total_steps": 200_000,
                "gamma": 0.98,
                "reward_scale": 0.1,
                "normalise_observations": False,
                "normalise_rewards": False,
            },
            num_envs=4,
            actors=2,
            pacing_lag=1,
            target_return=475.0,
        ),
    },
    reference="Espeholt et al. 2018, IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures",
)
