"""The registry entries of TD3 and DDPG: their parameters, their policy, and tested settings. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import CriticParameters
from rl4sys_zmq.config.options import flag, number, option, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import ANY_AGE, AlgorithmEntry, TaskPreset, inherited, read_parameters
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Space

_NOISE = number(0.0, 100.0)


@dataclass(frozen=True, slots=True)
class TD3Parameters(CriticParameters):
    """All parameters of TD3. The word *steps* means environment steps, except in *gradient steps*.

    Actions are scaled so that the bounds of the action space are -1 and 1. The noises have this unit.
    """

    changeable: ClassVar[frozenset[str]] = CriticParameters.changeable | {
        "policy_delay", "target_noise", "target_noise_clip", "exploration_noise"
    }  # fmt: skip
    """The parameters that can change in a running client."""

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


@dataclass(frozen=True, slots=True)
class DDPGParameters(TD3Parameters):
    """All parameters of DDPG: those of TD3, with defaults for one critic, no delay and no noise on the targets' actions."""

    libraries: ClassVar[Libraries] = tables.DDPG

    twin_critics: bool = inherited(TD3Parameters, "twin_critics", False)
    policy_delay: int = inherited(TD3Parameters, "policy_delay", 1)
    target_noise: float = inherited(TD3Parameters, "target_noise", 0.0)


def plan_td3(observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]) -> PolicySpec:
    """Return the specification of the policy that TD3 with these parameters would train. No network is built.

    Raises:
        ConfigError: If a parameter is invalid, or the actions are not a bounded Box.
    """
    return _plan("TD3", TD3Parameters, observation_space, action_space, parameters)


def plan_ddpg(observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]) -> PolicySpec:
    """Return the specification of the policy that DDPG with these parameters would train. No network is built.

    Raises:
        ConfigError: If a parameter is invalid, or the actions are not a bounded Box.
    """
    return _plan("DDPG", DDPGParameters, observation_space, action_space, parameters)


def _plan(
    name: str,
    cls: type[TD3Parameters],
    observation_space: ObservationSpace,
    action_space: Space,
    parameters: Mapping[str, object],
) -> PolicySpec:
    if not (isinstance(action_space, BoxSpace) and action_space.bounded):
        others = "SAC or PPO" if isinstance(action_space, DiscreteSpace) else "PPO"
        text = f"{name} needs a Box action space with finite bounds, not {action_space!s:.80}; use {others}"
        raise ConfigError(text, key="action_space")
    p = read_parameters(cls, parameters, algorithm=name)
    return p.policy(name, observation_space, action_space, HeadParameters(head="deterministic"))


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

TD3_ENTRY = AlgorithmEntry(
    name="TD3",
    factory="rl4sys_zmq.algorithms.offpolicy.td3:TD3",
    summary="Twin delayed deterministic policy gradient, for bounded Box actions.",
    kind="offpolicy",
    parameters=TD3Parameters,
    plan=plan_td3,
    staleness=ANY_AGE,
    presets={"Pendulum-v1": _PENDULUM},
    extra="learner",
    spaces=_SPACES,
    reference="Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
    takes_masks=False,
)
DDPG_ENTRY = AlgorithmEntry(
    name="DDPG",
    factory="rl4sys_zmq.algorithms.offpolicy.td3:DDPG",
    summary="Deep deterministic policy gradient: TD3 with one critic, no delay and no target noise.",
    kind="offpolicy",
    parameters=DDPGParameters,
    plan=plan_ddpg,
    staleness=ANY_AGE,
    presets={"Pendulum-v1": _PENDULUM},
    extra="learner",
    spaces=_SPACES,
    reference="Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
    takes_masks=False,
)
