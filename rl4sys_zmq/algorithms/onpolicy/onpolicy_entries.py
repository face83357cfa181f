"""Entries and parameters of IMPALA, and of PPO's variants A2C, A3C, REINFORCE and RPO. This module imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import (
    LONGEST_SEGMENT,
    ActorCriticParameters,
    BatchCompletionRule,
    actor_critic_entry,
    cartpole_preset,
)
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters, PPOVariantParameters
from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, option, whole_number
from rl4sys_zmq.learner.registry.algorithm_entry import Setting, Staleness, TaskPreset, inherited, parameter_error, with_settings
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.values import DiscreteSpace, Space

WHOLE_EPISODE = 4096
"""The default of `rollout_length` without a baseline, in steps. Then almost every segment is a whole episode."""


@with_settings(
    learning_rate=Setting(7e-4, "step size of the optimizer"),
    gae_lambda=1.0,
    norm_adv=False,
    rms_prop=True,
    steps_per_update=Setting(None, "steps per update, from all environments; null: 80, unless episodes_per_update is given"),
    rollout_length=Setting(5, "most steps per segment"),
)
class A2CParameters(PPOVariantParameters):
    """The parameters of A2C: PPO with one gradient step on each batch, without clipping, and with RMSProp (Huang et al. 2022).

    The defaults are those of Stable-Baselines3 for 5 steps in each of 16 environments, with two differences: observations and
    rewards are normalised, and `vf_coef` weights half the mean squared error, so its value 0.5 corresponds to 0.25 in
    Stable-Baselines3.
    """

    changeable: ClassVar[frozenset[str]] = ActorCriticParameters.changeable | {"ent_coef", "vf_coef"}
    libraries: ClassVar[Libraries] = tables.A2C
    default_steps: ClassVar[int] = 80
    fixed: ClassVar[Mapping[str, Any]] = {
        "norm_adv_over": "minibatch",
        "clip_coef": math.inf,
        "update_epochs": 1,
        "num_minibatches": 1,
    }

    ent_coef: float | None = inherited(PPOParameters, "ent_coef", 0.0)
    vf_coef: float = inherited(PPOParameters, "vf_coef", 0.5)


@with_settings()
class A3CParameters(A2CParameters):
    """The parameters of A3C, which are those of A2C."""

    libraries: ClassVar[Libraries] = {}


@with_settings(
    rpo_alpha=0.5,
    clip_vloss=True,
    num_minibatches=Setting(
        None, "minibatches per pass; null: 32, unless minibatch_size or batch_size is given; a number replaces minibatch_size"
    ),
    minibatch_size=Setting(
        None,
        "approximate steps per gradient step: a batch is divided into equal minibatches; null: batch_size or num_minibatches",
    ),
    steps_per_update=Setting(None, names=("steps_per_epoch", "num_steps")),
    rollout_length=Setting(None, names=("n_steps",)),
    total_steps=Setting(None, names=("total_timesteps", "total_timesteps_anneal_lr")),
)
class RPOParameters(PPOParameters):
    """The parameters of RPO: PPO whose means of continuous actions are moved in training (Rahman & Xue 2022).

    The defaults are those of CleanRL and RL4Sys. As in RL4Sys, `num_steps` is the size of a batch, and
    `total_timesteps_anneal_lr` the length of the schedule.
    """

    libraries: ClassVar[Libraries] = tables.RPO
    default_minibatches: ClassVar[int | None] = 32


@with_settings(
    gae_lambda=Setting(0.97, "decay of advantage traces; 1 without a baseline, whatever is given"),
    learning_rate=3e-3,
    max_grad_norm=None,
    steps_per_update=Setting(None, "steps per update, instead of episodes_per_update"),
    episodes_per_update=Setting(
        None, "trajectories per update; null: 12, unless steps_per_update is given", names=("traj_per_epoch",)
    ),
    rollout_length=Setting(
        None, "most steps per segment; null: 128 with a baseline, else 4096, because the return of a cut episode ends at the cut"
    ),
)
class REINFORCEParameters(PPOVariantParameters):
    """The parameters of REINFORCE: PPO with one gradient step of the policy on a batch of whole episodes (Williams 1992).

    Without a baseline, the advantage of an action is the discounted return after it. With a baseline, which is a value network,
    it is the generalized advantage (GAE). Names that RL4Sys uses have the same meaning as in RL4Sys.
    """

    changeable: ClassVar[frozenset[str]] = ActorCriticParameters.changeable | {"value_learning_rate", "train_vf_iters"}
    default_episodes: ClassVar[int] = 12
    fixed: ClassVar[Mapping[str, Any]] = {"value_lambda": 1.0, "clip_coef": math.inf, "train_pi_iters": 1}

    with_vf_baseline: bool = option(
        flag, False, names=("baseline",), doc="subtract the estimate of a value network from each return"
    )
    value_learning_rate: float | None = inherited(PPOParameters, "value_learning_rate", 1e-3)
    train_vf_iters: int = option(
        whole_number(1, 10_000), 80, doc="gradient steps of the value network on the whole batch, if there is one"
    )
    discrete: bool | None = nullable(
        flag, doc="as in RL4Sys, true for discrete actions; null: not compared with the action space"
    )

    def batch(self) -> BatchCompletionRule:
        if self.steps_per_update is not None:
            return BatchCompletionRule(steps=self.steps_per_update)
        return BatchCompletionRule(trajectories=self.episodes_per_update or self.default_episodes)

    def segment_length(self) -> int:
        return self.rollout_length or (LONGEST_SEGMENT if self.with_vf_baseline else WHOLE_EPISODE)

    def ppo(self) -> PPOParameters:
        baseline = self.with_vf_baseline
        return replace(
            PPOVariantParameters.ppo(self),
            gae_lambda=self.gae_lambda if baseline else 1.0,
            episodes_per_update=self.batch().trajectories,
            critic=baseline,
            train_v_iters=self.train_vf_iters,
        )

    def check_actions(self, name: str, action_space: Space) -> None:
        if self.discrete is not None and self.discrete is not isinstance(action_space, DiscreteSpace):
            raise parameter_error(
                "discrete",
                f"it is {str(self.discrete).lower()}, but the action space of {name} is "
                f"{action_space}; omit it, or correct the action space",
            )

    def rl4sys_notes(self) -> list[str]:
        lines = []
        if self.steps_per_update is None and self.episodes_per_update is not None:
            lines.append(f"episodes_per_update {self.episodes_per_update} (traj_per_epoch): ended trajectories per update")
        if self.with_vf_baseline:
            lines.append(
                f"with_vf_baseline: one gradient step of the policy, then {self.train_vf_iters} of the value network, "
                "each on the whole batch"
            )
        return lines


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


_A2C_CARTPOLE = {"steps_per_update": 80, "rollout_length": 10, "learning_rate": 2e-3, "gamma": 0.98}
_UNCLIPPED = "probability ratios, which are not clipped"

A2C = actor_critic_entry(
    "A2C",
    A2CParameters,
    "ppo:A2C",
    summary="Advantage actor-critic: PPO with one gradient step per batch and without clipping, for all actions.",
    staleness=Staleness(max_policy_lag=4, correction=_UNCLIPPED),
    presets=cartpole_preset(0, **_A2C_CARTPOLE),
    reference="Huang et al. 2022, A2C is a special case of PPO",
)
A3C = actor_critic_entry(
    "A3C",
    A3CParameters,
    "ppo:A3C",
    summary="Asynchronous advantage actor-critic: A2C whose actors do not wait for updates.",
    staleness=Staleness(max_policy_lag=None, correction=_UNCLIPPED, pacing_lag=8),
    presets=cartpole_preset(8, **_A2C_CARTPOLE),
    reference="Mnih et al. 2016, Asynchronous methods for deep reinforcement learning",
)
REINFORCE = actor_critic_entry(
    "REINFORCE",
    REINFORCEParameters,
    "ppo:REINFORCE",
    summary="Monte Carlo policy gradients on whole episodes, with or without a baseline, for all actions.",
    staleness=Staleness(max_policy_lag=4, correction=_UNCLIPPED),
    presets=cartpole_preset(0, episodes_per_update=12, learning_rate=5e-3, anneal_lr=True, total_steps=200_000, gamma=0.99),
    reference="Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning",
)
RPO = actor_critic_entry(
    "RPO",
    RPOParameters,
    "ppo:RPO",
    summary="Robust policy optimisation: PPO with a randomly moved mean in training, for continuous actions.",
    staleness=Staleness(max_policy_lag=4, correction="probability ratios, which are clipped; V-trace with on_lag: correct"),
    presets={
        "Pendulum-v1": TaskPreset(
            parameters={
                "steps_per_update": 4096,
                "minibatch_size": 64,
                "gamma": 0.9,
                "gae_lambda": 0.95,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_vloss": False,
            },
            num_envs=2,
            actors=2,
            pacing_lag=0,
            target_return=-250.0,
        ),
    },
    spaces="any observations; actions with a Box",
    reference="Rahman and Xue 2022, Robust policy optimization in deep reinforcement learning",
)
IMPALA = actor_critic_entry(
    "IMPALA",
    IMPALAParameters,
    "impala:IMPALA",
    summary="Actor-critic whose V-trace corrects for data of any age, for all actions.",
    staleness=Staleness(max_policy_lag=None, correction="V-trace with truncated importance weights", pacing_lag=1),
    presets=cartpole_preset(
        1,
        steps_per_update=256,
        rollout_length=32,
        learning_rate=1.2e-3,
        anneal_lr=True,
        total_steps=200_000,
        gamma=0.98,
        reward_scale=0.1,
    ),
    reference="Espeholt et al. 2018, IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures",
)
