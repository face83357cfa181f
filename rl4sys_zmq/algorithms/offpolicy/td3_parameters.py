"""The registry entries of TD3 and DDPG, and their parameters. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import CriticParameters, replay_entry
from rl4sys_zmq.config.options import flag, number, option, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import TaskPreset, with_settings
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Space

_NOISE = number(0.0, 100.0)


@dataclass(frozen=True, slots=True)
class TD3Parameters(CriticParameters):
    """All parameters of TD3. The word *steps* means environment steps, except in *gradient steps*.

    Actions are scaled so that the bounds of the action space are -1 and 1. The noises have this unit.
    """

    changeable: ClassVar[frozenset[str]] = CriticParameters.changeable | {
        "policy_delay", "target_noise", "target_noise_clip", "exploration_noise"
    }  # fmt: skip
    libraries: ClassVar[Libraries] = tables.TD3

    twin_critics: bool = option(flag, True, doc="two critics, the smaller of which gives the targets; false: one critic")
    policy_delay: int = option(
        whole_number(1, 10_000),
        2,
        names=("policy_frequency",),
        doc="gradient steps of the critics for each one of the policy and of the target networks",
    )
    target_noise: float = option(
        _NOISE, 0.2, names=("policy_noise", "target_policy_noise"), doc="standard deviation of the noise on the targets' actions"
    )
    target_noise_clip: float = option(_NOISE, 0.5, names=("noise_clip",), doc="largest absolute value of this noise")
    exploration_noise: float = option(
        _NOISE, 0.1, names=("noise_scale",), doc="standard deviation of the noise that actors add to actions"
    )

    def head(self, name: str, action_space: Space) -> HeadParameters:
        if isinstance(action_space, BoxSpace) and action_space.bounded:
            return HeadParameters(head="deterministic")
        others = "SAC or PPO" if isinstance(action_space, DiscreteSpace) else "PPO"
        raise ConfigError(
            f"{name} needs a Box action space with finite bounds, not {action_space!s:.80}; use {others}", key="action_space"
        )


@with_settings(twin_critics=False, policy_delay=1, target_noise=0.0)
class DDPGParameters(TD3Parameters):
    """All parameters of DDPG: those of TD3, with defaults for one critic, no delay and no noise on the targets' actions."""

    libraries: ClassVar[Libraries] = tables.DDPG


_PENDULUM = TaskPreset(
    parameters={
        "learning_rate": 1e-3, "gamma": 0.98, "learning_starts": 1000, "hidden_sizes": [64, 64], "rollout_length": 16,
    },
    num_envs=1,
    actors=1,
    pacing_lag=1,
    target_return=-250.0,
)  # fmt: skip

_SPACES = "any observations; bounded Box actions"

TD3_ENTRY = replay_entry(
    "TD3",
    TD3Parameters,
    "td3:TD3",
    summary="Twin delayed deterministic policy gradient, for bounded Box actions.",
    presets={"Pendulum-v1": _PENDULUM},
    spaces=_SPACES,
    reference="Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
    takes_masks=False,
)
DDPG_ENTRY = replay_entry(
    "DDPG",
    DDPGParameters,
    "td3:DDPG",
    summary="Deep deterministic policy gradient: TD3 with one critic, no delay and no target noise.",
    presets={"Pendulum-v1": _PENDULUM},
    spaces=_SPACES,
    reference="Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
    takes_masks=False,
)
