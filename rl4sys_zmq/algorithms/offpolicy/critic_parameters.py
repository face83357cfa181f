"""The registry entries of SAC, TD3 and DDPG, and their parameters. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import CriticParameters, replay_entry
from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, option, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import TaskPreset, parameter_error, with_settings
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Space


@dataclass(frozen=True, slots=True)
class SACParameters(CriticParameters):
    """All parameters of SAC. The word *steps* means environment steps, except in *gradient steps*."""

    ignored: ClassVar[frozenset[str]] = frozenset({"discrete"})
    """RL4Sys's key for the kind of actions. Here the action space has this information."""

    changeable: ClassVar[frozenset[str]] = CriticParameters.changeable | {"temperature_learning_rate", "target_entropy"}
    libraries: ClassVar[Libraries] = tables.SAC

    learn_temperature: bool = option(
        flag, True, names=("adaptive_alpha", "autotune"), doc="the temperature is learned, so that the entropy reaches its target"
    )
    temperature: float | None = nullable(
        number(0.0, MAX_NUMBER, above=True),
        names=("alpha",),
        doc="the weight of the entropy: its initial value if it is learned, else its value; null: 1 if it is learned, else 0.2",
    )
    temperature_learning_rate: float | None = nullable(
        number(0.0, 10.0), names=("alpha_lr",), doc="Adam's step size of the temperature; null: learning_rate"
    )
    target_entropy: float | None = nullable(
        number(-MAX_NUMBER, MAX_NUMBER),
        doc="target of the policy's entropy in nats, of actions scaled to -1 to 1; null: minus the number of dimensions of "
        "continuous actions, or target_entropy_ratio for discrete ones",
    )
    target_entropy_ratio: float = option(
        number(0.0, 1.0),
        0.98,
        names=("target_entropy_scale",),
        doc="discrete actions: target of the entropy as a fraction of that of uniform random allowed actions",
    )
    log_std_min: float = option(
        number(-20.0, 2.0), -20.0, doc="continuous actions: least logarithm of the standard deviation, before the tanh"
    )
    log_std_max: float = option(
        number(-20.0, 2.0), 2.0, doc="continuous actions: largest logarithm of the standard deviation, before the tanh"
    )

    def __post_init__(self) -> None:
        CriticParameters.__post_init__(self)
        if self.log_std_min > self.log_std_max:
            raise parameter_error("log_std_min", f"{self.log_std_min:g} is above log_std_max {self.log_std_max:g}")

    def initial_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return 1.0 if self.learn_temperature else 0.2

    def head(self, name: str, action_space: Space) -> HeadParameters:
        if isinstance(action_space, DiscreteSpace):
            return HeadParameters(head="categorical")
        if isinstance(action_space, BoxSpace) and action_space.bounded:
            return HeadParameters(head="squashed_gaussian", log_std_min=self.log_std_min, log_std_max=self.log_std_max)
        text = f"{name} needs a Discrete action space or a Box with finite bounds, not {action_space!s:.80}; use PPO"
        raise ConfigError(text, key="action_space")

    @property
    def temperature_rate(self) -> float:
        return self.learning_rate if self.temperature_learning_rate is None else self.temperature_learning_rate


def _pendulum(**parameters: object) -> dict[str, TaskPreset]:
    settings = {"learning_rate": 1e-3, "hidden_sizes": [64, 64], "rollout_length": 16, **parameters}
    return {"Pendulum-v1": TaskPreset(settings, num_envs=1, actors=1, pacing_lag=1, target_return=-250.0)}


ENTRY = replay_entry(
    "SAC",
    SACParameters,
    "sac:make_sac",
    summary="Soft actor-critic, for bounded Box and for Discrete actions.",
    presets=_pendulum(learning_starts=100),
    spaces="any observations; bounded Box or Discrete actions",
    reference="Haarnoja et al. 2018, Soft actor-critic algorithms and applications; Christodoulou 2019, Soft actor-critic for "
    "discrete action settings",
    takes_masks=True,
)


_NOISE = number(0.0, 100.0)


@dataclass(frozen=True, slots=True)
class TD3Parameters(CriticParameters):
    """All parameters of TD3. The word *steps* means environment steps, except in *gradient steps*.

    Actions are scaled so that the bounds of the action space are -1 and 1. The standard deviations of noise are in these units.
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


_PENDULUM = _pendulum(gamma=0.98, learning_starts=1000)
_SPACES = "any observations; bounded Box actions"

TD3_ENTRY = replay_entry(
    "TD3",
    TD3Parameters,
    "td3:TD3",
    summary="Twin delayed deterministic policy gradient, for bounded Box actions.",
    presets=_PENDULUM,
    spaces=_SPACES,
    reference="Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
    takes_masks=False,
)
DDPG_ENTRY = replay_entry(
    "DDPG",
    DDPGParameters,
    "td3:DDPG",
    summary="Deep deterministic policy gradient: TD3 with one critic, no delay and no target noise.",
    presets=_PENDULUM,
    spaces=_SPACES,
    reference="Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
    takes_masks=False,
)
