"""The parameters that off-policy actor-critic algorithms share, such as SAC and TD3. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.config.options import number, one_of, option, optional, sizes, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.entry import gradient_norm
from rl4sys_zmq.values import ACTIVATIONS

__all__ = ["STEPS_PER_VERSION", "OffPolicyParameters"]

STEPS_PER_VERSION = 64
"""The number of environment steps from one published policy version to the next, about."""


@dataclass(frozen=True, slots=True)
class OffPolicyParameters:
    """The parameters of `ReplayAlgorithm`. The word *steps* means environment steps, except in *gradient steps*."""

    changeable: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "critic_learning_rate", "batch_size", "gradient_steps", "tau", "polyak", "max_grad_norm"}
    )
    """The parameters that can change in a running client. The others determine the networks, the replay buffer (which has n-step
    returns, discounted by `gamma`) or the number of updates that are due."""

    learning_rate: float = option(number(0.0, 10.0), 3e-4, names=("lr", "pi_lr", "policy_lr"), doc="Adam's step size")
    critic_learning_rate: float | None = option(
        optional(number(0.0, 10.0)), None, names=("q_lr", "vf_lr"), doc="Adam's step size of the critics; null: learning_rate"
    )
    gamma: float = option(number(0.0, 1.0), 0.99, doc="discount per step")
    n_step: int = option(whole_number(1, 1000), 1, names=("n_steps",), doc="number of rewards summed before the bootstrap")
    batch_size: int = option(whole_number(1, 1 << 20), 256, doc="transitions per gradient step")
    buffer_size: int = option(
        whole_number(1, 1 << 30),
        300_000,
        names=("buf_size", "buffer_capacity", "replay_size"),
        doc="transitions held in the replay",
    )
    buffer_memory_bytes: int = option(
        whole_number(0),
        1 << 30,
        doc="size of a full replay up to which it is in memory; a larger one is in files in the run directory, if there is one",
    )
    learning_starts: int = option(whole_number(0), 1000, doc="steps that are observed before units of training become due")
    train_frequency: int = option(whole_number(1), 1, names=("train_freq", "train_update_freq"), doc="steps per unit of training")
    gradient_steps: int = option(whole_number(1, 10_000), 1, names=("train_iters",), doc="gradient steps in a unit of training")
    traj_per_epoch: int | None = option(
        optional(whole_number(1)),
        None,
        doc="ended episodes per unit of training, instead of train_frequency steps; null: count steps",
    )
    tau: float = option(number(0.0, 1.0), 0.005, doc="share of the networks in each update of the target networks")
    polyak: float | None = option(optional(number(0.0, 1.0)), None, doc="another way to give tau: 1 - tau")
    max_grad_norm: float | None = option(
        gradient_norm,
        None,
        names=("grad_norm_clip", "clip_grad_norm"),
        doc="largest norm of the gradient of the policy, and of that of the critics; null, 0 or less: no limit",
    )
    adam_epsilon: float = option(number(0.0, 1.0), 1e-8, doc="Adam's epsilon")
    hidden_sizes: tuple[int, ...] = option(
        sizes, (256, 256), names=("net_arch",), doc="widths of the hidden layers of the policy and of each critic"
    )
    activation: str = option(one_of(*ACTIVATIONS), "relu", doc="activation of the hidden layers")
    rollout_length: int = option(whole_number(1, 1 << 20), 32, names=("num_steps",), doc="most steps per segment")

    def __post_init__(self) -> None:
        if self.polyak is not None and self.tau not in (0.005, 1.0 - self.polyak):
            raise ConfigError(
                f"algorithm_parameters.polyak: {self.polyak} contradicts tau {self.tau}; set only one of them",
                key="algorithm_parameters.polyak",
            )

    @property
    def target_share(self) -> float:
        """The share of the networks in each update of the target networks, computed from `tau` or `polyak`."""
        return self.tau if self.polyak is None else 1.0 - self.polyak

    @property
    def critic_rate(self) -> float:
        """The learning rate of the critics."""
        return self.learning_rate if self.critic_learning_rate is None else self.critic_learning_rate

    def updates_per_version(self) -> int:
        """Return the number of units of training from one published policy version to the next."""
        return max(1, round(STEPS_PER_VERSION / self.train_frequency)) if self.traj_per_epoch is None else 1

    def readings(self) -> list[str]:
        """Return one line for each parameter in use that comes from RL4Sys and needs an explanation, for the learner's log."""
        if self.traj_per_epoch is None:
            return []
        return [f"traj_per_epoch {self.traj_per_epoch}: a unit of training after so many ended episodes"]
