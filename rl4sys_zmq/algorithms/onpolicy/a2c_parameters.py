"""The entries of A2C and A3C in the registry of algorithms, and their parameters. This module imports no torch.

A2C is PPO with one gradient step on each batch, without clipping, and with RMSProp (Huang et al. 2022, "A2C is a special case of
PPO"). The defaults are those of Stable-Baselines3 for 5 steps in each of 16 environments, with two differences: observations and
rewards are normalised, and `vf_coef` weights half the mean squared error, so that its 0.5 is 0.25 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters, policy_planner
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters, PPOSetting
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, Staleness, TaskPreset, inherited
from rl4sys_zmq.learner.registry.like import Libraries


@dataclass(frozen=True, slots=True)
class A2CParameters(PPOSetting):
    """All parameters of `A2C`."""

    changeable: ClassVar[frozenset[str]] = ActorCriticParameters.changeable | {"ent_coef", "vf_coef"}
    libraries: ClassVar[Libraries] = tables.A2C
    default_steps: ClassVar[int] = 80

    learning_rate: float = inherited(ActorCriticParameters, "learning_rate", 7e-4, doc="step size of the optimizer")
    gae_lambda: float = inherited(ActorCriticParameters, "gae_lambda", 1.0)
    ent_coef: float | None = inherited(PPOParameters, "ent_coef", 0.0)
    vf_coef: float = inherited(PPOParameters, "vf_coef", 0.5)
    norm_adv: bool = inherited(ActorCriticParameters, "norm_adv", False)
    rms_prop: bool = inherited(ActorCriticParameters, "rms_prop", True)
    steps_per_update: int | None = inherited(
        ActorCriticParameters,
        "steps_per_update",
        None,
        doc="steps per update, from all environments; null: 80, unless episodes_per_update is given",
    )
    rollout_length: int | None = inherited(ActorCriticParameters, "rollout_length", 5, doc="most steps per segment")

    def ppo(self) -> PPOParameters:
        """Return the parameters of PPO with which it does one gradient step on a batch, without clipping."""
        return PPOParameters(
            **self.shared(), ent_coef=self.ent_coef, vf_coef=self.vf_coef, norm_adv_over="minibatch",
            clip_coef=math.inf, update_epochs=1, num_minibatches=1,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class A3CParameters(A2CParameters):
    """All parameters of `A3C`, which are those of A2C."""

    libraries: ClassVar[Libraries] = {}


CARTPOLE = {
    "steps_per_update": 80,
    "rollout_length": 10,
    "learning_rate": 2e-3,
    "gamma": 0.98,
    "normalise_observations": False,
    "normalise_rewards": False,
}

A2C_ENTRY = AlgorithmEntry(
    name="A2C",
    factory="rl4sys_zmq.algorithms.onpolicy.ppo:A2C",
    summary="Advantage actor-critic: PPO with one gradient step per batch and without clipping, for all actions.",
    kind="onpolicy",
    parameters=A2CParameters,
    plan=policy_planner("A2C", A2CParameters),
    staleness=Staleness(max_policy_lag=4, correction="probability ratios, which are not clipped"),
    presets={"CartPole-v1": TaskPreset(parameters=CARTPOLE, num_envs=4, actors=2, pacing_lag=0, target_return=475.0)},
    extra="learner",
    spaces="any observations; any actions",
    reference="Huang et al. 2022, A2C is a special case of PPO",
    takes_masks=True,
)

A3C_ENTRY = AlgorithmEntry(
    name="A3C",
    factory="rl4sys_zmq.algorithms.onpolicy.ppo:A3C",
    summary="Asynchronous advantage actor-critic: A2C whose actors do not wait for updates.",
    kind="onpolicy",
    parameters=A3CParameters,
    plan=policy_planner("A3C", A3CParameters),
    staleness=Staleness(max_policy_lag=None, correction="probability ratios, which are not clipped", pacing_lag=8),
    presets={"CartPole-v1": TaskPreset(parameters=CARTPOLE, num_envs=4, actors=2, pacing_lag=8, target_return=475.0)},
    extra="learner",
    spaces="any observations; any actions",
    reference="Mnih et al. 2016, Asynchronous methods for deep reinforcement learning",
    takes_masks=True,
)
