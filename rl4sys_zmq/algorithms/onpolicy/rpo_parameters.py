"""RPO's entry in the registry of algorithms, and its parameters. This module imports no torch.

RPO is PPO with a moved mean: in training, a uniform random number is added to the mean of each continuous action (Rahman & Xue
2022, "Robust policy optimization in deep reinforcement learning").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters, policy_planner
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, Staleness, TaskPreset, inherited
from rl4sys_zmq.learner.registry.like import Libraries


@dataclass(frozen=True, slots=True)
class RPOParameters(PPOParameters):
    """All parameters of `RPO`: those of PPO, with the values of CleanRL and RL4Sys as defaults.

    As in RL4Sys, `num_steps` is the size of a batch, and `total_timesteps_anneal_lr` the length of the schedule.
    """

    libraries: ClassVar[Libraries] = tables.RPO
    default_minibatches: ClassVar[int | None] = 32

    rpo_alpha: float = inherited(PPOParameters, "rpo_alpha", 0.5)
    num_minibatches: int | None = inherited(
        PPOParameters,
        "num_minibatches",
        None,
        doc="minibatches per pass; null: 32, unless minibatch_size or batch_size is given; a number replaces minibatch_size",
    )
    minibatch_size: int | None = inherited(
        PPOParameters,
        "minibatch_size",
        None,
        doc="approximate steps per gradient step: a batch is divided into equal minibatches; null: batch_size or num_minibatches",
    )
    clip_vloss: bool = inherited(PPOParameters, "clip_vloss", True)
    steps_per_update: int | None = inherited(PPOParameters, "steps_per_update", None, names=("steps_per_epoch", "num_steps"))
    rollout_length: int | None = inherited(ActorCriticParameters, "rollout_length", None, names=("n_steps",))
    total_steps: int | None = inherited(
        ActorCriticParameters, "total_steps", None, names=("total_timesteps", "total_timesteps_anneal_lr")
    )


ENTRY = AlgorithmEntry(
    name="RPO",
    factory="rl4sys_zmq.algorithms.onpolicy.ppo:RPO",
    summary="Robust policy optimisation: PPO with a randomly moved mean in training, for continuous actions.",
    kind="onpolicy",
    parameters=RPOParameters,
    plan=policy_planner("RPO", RPOParameters),
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
    extra="learner",
    spaces="any observations; actions with a Box",
    reference="Rahman and Xue 2022, Robust policy optimization in deep reinforcement learning",
    takes_masks=True,
)
