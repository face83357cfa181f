"""DQN's entry in the registry of algorithms: its parameters, its policy, and tested settings. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.config.options import MAX_NUMBER, flag, number, one_of, option, optional, sizes, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.entry import ANY_AGE, AlgorithmEntry, TaskPreset, gradient_norm, read_parameters
from rl4sys_zmq.policies.mlp import check_not_image, mlp_spec
from rl4sys_zmq.replay.insert_rate import SamplesPerInsert
from rl4sys_zmq.replay.priorities import PriorityOptions
from rl4sys_zmq.values import ACTIVATIONS, DiscreteSpace, ObservationSpace, PolicySpec, Space
from rl4sys_zmq.values.observations import flat_space

__all__ = ["ENTRY", "DQNParameters", "plan_dqn"]

LARGEST_DIFFERENCE = 0.5
"""The limit between the two meanings of `epsilon_decay`.

Up to this limit, `epsilon_decay` is subtracted from epsilon at each step. A larger value multiplies epsilon at each step.
"""


@dataclass(frozen=True, slots=True)
class DQNParameters:
    """All parameters of `DQN`. The word *steps* means environment steps, except in *gradient steps*."""

    changeable: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "learning_rate_final", "total_steps", "batch_size", "gradient_steps", "huber_delta", "max_grad_norm"}
        | {"target_network_frequency", "target_update", "target_net_update_frequency", "tau", "polyak", "double_q"}
        | {"epsilon", "epsilon_min", "end_e", "exploration_fraction", "epsilon_decay", "priority_beta", "priority_beta_final"}
    )
    """The parameters that can change in a running client. The others determine the network, the replay buffer (which has n-step
    returns, discounted by `gamma`) or the number of updates that are due."""

    learning_rate: float = option(number(0.0, 10.0), 5e-4, names=("q_lr", "lr"), doc="Adam's step size")
    learning_rate_final: float | None = option(
        optional(number(0.0, 10.0)), None, doc="learning rate at total_steps, reached linearly; null: constant"
    )
    total_steps: int = option(
        whole_number(1), 500_000, names=("total_timesteps",), doc="length of the schedules in steps; training continues after it"
    )
    gamma: float = option(number(0.0, 1.0), 0.99, doc="discount per step")
    n_step: int = option(whole_number(1, 1000), 3, names=("n_steps",), doc="number of rewards summed before the bootstrap")
    batch_size: int = option(whole_number(1, 1 << 20), 128, doc="transitions per gradient step")
    buffer_size: int = option(
        whole_number(1, 1 << 30),
        100_000,
        names=("buf_size", "buffer_capacity", "replay_size"),
        doc="transitions held in the replay",
    )
    buffer_memory_bytes: int = option(
        whole_number(0),
        1 << 30,
        doc="size of a full replay up to which it is in memory; a larger one is in files in the run directory, if there is one",
    )
    prioritised: bool = option(
        flag, False, names=("prioritized", "prioritized_replay"), doc="draw transitions with large TD errors more often"
    )
    priority_alpha: float = option(
        number(0.0, 2.0), 0.6, names=("prioritized_replay_alpha",), doc="exponent of the priorities; 0 draws uniformly"
    )
    priority_beta: float = option(
        number(0.0, 10.0), 0.4, names=("prioritized_replay_beta0",), doc="importance weights at the start: 1 corrects in full"
    )
    priority_beta_final: float = option(
        number(0.0, 10.0), 1.0, doc="importance weights at total_steps, reached linearly from priority_beta"
    )
    priority_epsilon: float = option(
        number(1e-100, MAX_NUMBER), 1e-6, names=("prioritized_replay_eps",), doc="added to each priority, so that each is above 0"
    )
    learning_starts: int = option(whole_number(0), 1000, doc="steps that are observed before units of training become due")
    train_frequency: int = option(whole_number(1), 4, names=("train_freq", "train_update_freq"), doc="steps per unit of training")
    gradient_steps: int = option(
        whole_number(1, 10_000), 1, names=("train_q_iters", "train_iters"), doc="gradient steps in a unit of training"
    )
    samples_per_insert: float | None = option(
        optional(number(1e-6, MAX_NUMBER)),
        None,
        doc="transitions drawn per step, instead of train_frequency; actors wait while training lags; null: count steps",
    )
    samples_per_insert_tolerance: float | None = option(
        optional(number(0.0, MAX_NUMBER)),
        None,
        names=("error_buffer",),
        doc="transitions by which samples_per_insert can be missed; null: as few as possible",
    )
    traj_per_epoch: int | None = option(
        optional(whole_number(1)),
        None,
        doc="ended episodes per unit of training, instead of train_frequency steps; null: count steps",
    )
    target_network_frequency: int | None = option(
        optional(whole_number(1)),
        None,
        names=("target_update_interval",),
        doc="steps between target updates, rounded to whole units of training; null: target_update, else 1000",
    )
    target_update: int | None = option(
        optional(whole_number(1)), None, doc="as in RL4Sys, target_network_frequency if that is not given"
    )
    target_net_update_frequency: int | None = option(
        optional(whole_number(1)), None, doc="gradient steps between target updates; overrides target_network_frequency"
    )
    tau: float = option(number(0.0, 1.0), 1.0, doc="share of the online network in each target update; 1 copies it")
    polyak: float | None = option(optional(number(0.0, 1.0)), None, doc="another way to give tau: 1 - tau")
    double_q: bool = option(
        flag, True, names=("double_dqn",), doc="the online network chooses the bootstrap action, the target network values it"
    )
    huber_delta: float = option(
        number(1e-9, MAX_NUMBER),
        100.0,
        doc="error beyond which the loss is linear; if it is far below the values, rare failures are not learnt",
    )
    max_grad_norm: float | None = option(
        gradient_norm, 10.0, names=("grad_norm_clip",), doc="largest norm of the gradient; null, 0 or less: no limit"
    )
    adam_epsilon: float = option(number(0.0, 1.0), 1e-5, doc="Adam's epsilon")
    hidden_sizes: tuple[int, ...] = option(sizes, (64, 64), names=("net_arch",), doc="widths of the hidden layers")
    activation: str = option(one_of(*ACTIVATIONS), "relu", doc="activation of the hidden layers")
    epsilon: float = option(
        number(0.0, 1.0), 1.0, names=("start_e", "exploration_initial_eps"), doc="probability of a uniform action at the start"
    )
    epsilon_min: float = option(
        number(0.0, 1.0), 0.05, names=("exploration_final_eps",), doc="probability of a uniform action at the end"
    )
    end_e: float | None = option(
        optional(number(0.0, 1.0)), None, doc="as in CleanRL, epsilon_min of the linear schedule; ignored with epsilon_decay"
    )
    exploration_fraction: float = option(number(0.0, 1.0), 0.1, doc="share of total_steps over which epsilon falls linearly")
    epsilon_decay: float | None = option(
        optional(number(0.0, 1.0)),
        None,
        doc="instead of exploration_fraction: up to 0.5, the decrease of epsilon per step; above, the factor of epsilon per "
        "step, as in RL4Sys",
    )
    rollout_length: int = option(whole_number(1, 1 << 20), 32, names=("num_steps",), doc="most steps per segment")

    def __post_init__(self) -> None:
        if self.polyak is not None and self.tau not in (1.0, 1.0 - self.polyak):
            raise ConfigError(
                f"algorithm_parameters.polyak: {self.polyak} contradicts tau {self.tau}; set only one of them",
                key="algorithm_parameters.polyak",
            )
        if self.samples_per_insert is not None and self.traj_per_epoch is not None:
            raise ConfigError(
                f"algorithm_parameters.samples_per_insert: {self.samples_per_insert:g} contradicts traj_per_epoch "
                f"{self.traj_per_epoch}; set only one of them",
                key="algorithm_parameters.samples_per_insert",
            )
        rate = self.insert_rate
        if rate is not None and rate.tolerance < self._least_tolerance:
            raise ConfigError(
                f"algorithm_parameters.samples_per_insert_tolerance: {rate.tolerance:g} is too small; expected at least "
                f"{self._least_tolerance:g}, the larger of one unit of training and the samples of one segment",
                key="algorithm_parameters.samples_per_insert_tolerance",
            )
        if self.epsilon_end > self.epsilon:
            raise ConfigError(
                f"algorithm_parameters.epsilon_min: {self.epsilon_end} is above epsilon {self.epsilon}",
                key="algorithm_parameters.epsilon_min",
            )

    @property
    def epsilon_end(self) -> float:
        """The probability of a random action at the end of the schedule: `epsilon_min` or `end_e`."""
        return self.end_e if self.end_e is not None and self.epsilon_decay is None else self.epsilon_min

    @property
    def target_share(self) -> float:
        """The share of the online network's weights in each update of the target network, computed from `tau` or `polyak`."""
        return self.tau if self.polyak is None else 1.0 - self.polyak

    @property
    def target_every(self) -> int:
        """The number of gradient steps from one update of the target network to the next.

        The parameters `target_network_frequency` and `target_update` count environment steps, as Stable-Baselines3 and CleanRL
        do. These projects update the target network only between units of training. For example, with units of 256 environment
        steps and 128 gradient steps, an interval of 10 environment steps means one target update per 128 gradient steps. So the
        interval is rounded to whole units here. Updates every 10 gradient steps would diverge in this example.
        """
        if self.target_net_update_frequency is not None:
            return self.target_net_update_frequency
        return (
            max(1, round((self.target_network_frequency or self.target_update or 1000) / self.unit_steps)) * self.gradient_steps
        )

    @property
    def unit_samples(self) -> int:
        """The number of transitions that a unit of training draws."""
        return self.batch_size * self.gradient_steps

    @property
    def unit_steps(self) -> float:
        """The mean number of steps per unit of training, unless ended episodes are counted."""
        return self.train_frequency if self.samples_per_insert is None else self.unit_samples / self.samples_per_insert

    @property
    def insert_rate(self) -> SamplesPerInsert | None:
        """The limit on samples and steps; None if `samples_per_insert` is not set."""
        if self.samples_per_insert is None:
            return None
        given = self.samples_per_insert_tolerance
        tolerance = self._least_tolerance if given is None else given
        return SamplesPerInsert(ratio=self.samples_per_insert, tolerance=tolerance, least=self.learning_starts)

    @property
    def _least_tolerance(self) -> float:
        """The smallest tolerance with which neither the actors nor the training can wait for the other forever."""
        return max(self.unit_samples, (self.samples_per_insert or 0.0) * self.rollout_length)

    @property
    def priority(self) -> PriorityOptions | None:
        """The options of prioritized sampling; None if transitions are drawn uniformly."""
        return PriorityOptions(alpha=self.priority_alpha, epsilon=self.priority_epsilon) if self.prioritised else None

    def priority_beta_at(self, steps: int) -> float:
        """Return the exponent of the importance weights after `steps` observed steps."""
        done = min(1.0, steps / self.total_steps)
        return self.priority_beta + (self.priority_beta_final - self.priority_beta) * done

    def epsilon_at(self, steps: int) -> float:
        """Return epsilon, the probability of a random action, after `steps` observed steps."""
        decay = self.epsilon_decay
        if decay is not None and decay > LARGEST_DIFFERENCE:
            return max(self.epsilon_end, self.epsilon * decay**steps)
        if decay is None:
            over = self.exploration_fraction * self.total_steps
            decay = (self.epsilon - self.epsilon_end) / over if over > 0 else 1.0
        return max(self.epsilon_end, self.epsilon - decay * steps)

    def readings(self) -> list[str]:
        """Return one line for each parameter in use that comes from RL4Sys or CleanRL and needs an explanation.

        The learner logs these lines at its start.
        """
        lines = []
        if self.epsilon_decay is not None and self.epsilon_decay > LARGEST_DIFFERENCE:
            lines.append(f"epsilon_decay {self.epsilon_decay:g}: a factor of epsilon per step, down to {self.epsilon_end:g}")
        if self.end_e is not None and self.epsilon_end != self.end_e:
            lines.append(f"end_e {self.end_e:g}: ignored, because epsilon_decay ends at epsilon_min {self.epsilon_min:g}")
        if self.traj_per_epoch is not None:
            lines.append(f"traj_per_epoch {self.traj_per_epoch}: a unit of training after so many ended episodes")
        return lines

    def learning_rate_at(self, steps: int) -> float:
        """Return the learning rate after `steps` observed steps."""
        if self.learning_rate_final is None:
            return self.learning_rate
        left = max(0.0, 1.0 - steps / self.total_steps)
        return self.learning_rate_final + (self.learning_rate - self.learning_rate_final) * left


def plan_dqn(observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]) -> PolicySpec:
    """Return the specification of the policy that a DQN with these parameters would train. No network is built.

    Raises:
        ConfigError: If a parameter is invalid, the actions are not discrete, or the observations are a Dict or a Tuple.
    """
    observations = flat_space(observation_space, "DQN")
    if not isinstance(action_space, DiscreteSpace):
        raise ConfigError(f"DQN needs a Discrete action space, not {action_space}; use PPO for a Box", key="action_space")
    p = read_parameters(DQNParameters, parameters, algorithm="DQN")
    check_not_image(observations, p.hidden_sizes, "DQN")
    return mlp_spec(observations, action_space, "q_values", p.hidden_sizes, p.activation)


ENTRY = AlgorithmEntry(
    name="DQN",
    factory="rl4sys_zmq.learner.algorithms.dqn:DQN",
    summary="Double Q-learning from a replay of n-step transitions, for discrete actions.",
    kind="offpolicy",
    parameters=DQNParameters,
    plan=plan_dqn,
    staleness=ANY_AGE,
    presets={
        "CartPole-v1": TaskPreset(
            parameters={
                "learning_rate": 1e-3,
                "learning_rate_final": 1e-4,
                "total_steps": 100_000,
                "gamma": 0.99,
                "n_step": 20,
                "batch_size": 64,
                "buffer_size": 100_000,
                "learning_starts": 1000,
                "train_frequency": 4,
                "gradient_steps": 1,
                "target_net_update_frequency": 1,
                "tau": 0.005,
                "huber_delta": 100.0,
                "max_grad_norm": 10.0,
                "hidden_sizes": [64, 64],
                "activation": "relu",
                "epsilon": 1.0,
                "epsilon_min": 0.05,
                "exploration_fraction": 0.1,
                "rollout_length": 64,
            },
            num_envs=4,
            actors=2,
            pacing_lag=1,
            target_return=475.0,
        ),
    },
    extra="learner",
    spaces="observations as one Box or Discrete; Discrete actions",
    reference="van Hasselt et al. 2016, Deep reinforcement learning with double Q-learning",
)
