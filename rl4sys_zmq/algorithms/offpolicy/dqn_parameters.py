"""The registry entries of DQN and C51, and their parameters. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import OffPolicyParameters, replay_entry
from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, one_of, option, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import Setting, TaskPreset, parameter_error, read_parameters, with_settings
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.replay.priorities import PriorityOptions
from rl4sys_zmq.replay.sequences import SequenceOptions
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Space

LARGEST_DIFFERENCE = 0.5
"""Up to this limit, `epsilon_decay` is subtracted from epsilon at each step. A larger value multiplies epsilon."""


@with_settings(
    learning_rate=Setting(5e-4, names=("q_lr", "lr")),
    n_step=3,
    batch_size=128,
    buffer_size=100_000,
    train_frequency=4,
    gradient_steps=Setting(1, names=("train_q_iters", "train_iters")),
    tau=Setting(1.0, "share of the online network in each target update; 1 copies it"),
    max_grad_norm=10.0,
    adam_epsilon=1e-5,
    hidden_sizes=Setting(None, "widths of the hidden layers, for the network mlp; null: [64, 64]"),
)
class DQNParameters(OffPolicyParameters):
    """All parameters of `DQN`. The word *steps* means environment steps, except in *gradient steps*."""

    changeable: ClassVar[frozenset[str]] = OffPolicyParameters.changeable | {
        "learning_rate_final", "total_steps", "huber_delta", "double_q", "priority_beta", "priority_beta_final",
        "target_network_frequency", "target_update", "target_update_units", "target_net_update_frequency", "kappa",
        "epsilon", "epsilon_min", "end_e", "exploration_fraction", "epsilon_decay",
    }  # fmt: skip
    libraries: ClassVar[Libraries] = tables.DQN
    network_forms: ClassVar[tuple[str, ...]] = ("offpolicy", "sequences")
    steps_per_version: ClassVar[int] = 256
    default_hidden_sizes: ClassVar[tuple[int, ...]] = (64, 64)

    initialisation: str = option(
        one_of("uniform", "orthogonal"),
        "uniform",
        doc="initial weights: uniform, as those of torch's layers, or orthogonal with zero biases, which learns more slowly",
    )
    learning_rate_final: float | None = nullable(
        number(0.0, 10.0), doc="learning rate at total_steps, reached linearly; null: constant"
    )
    total_steps: int = option(
        whole_number(1), 500_000, names=("total_timesteps",), doc="length of the schedules in steps; training continues after it"
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
    target_network_frequency: int | None = nullable(
        whole_number(1),
        names=("target_update_interval",),
        doc="steps between target updates, which come before the first unit of training at or after each multiple of it; "
        "null: target_update, else 1000",
    )
    target_update: int | None = nullable(whole_number(1), doc="as in RL4Sys, target_network_frequency if that is not given")
    target_update_units: int | None = nullable(
        whole_number(1),
        names=("target_update_freq",),
        doc="units of training between target updates, as in RL4Sys's C51; overrides target_network_frequency",
    )
    target_net_update_frequency: int | None = nullable(
        whole_number(1), doc="gradient steps between target updates; overrides the other intervals"
    )
    double_q: bool = option(
        flag, True, names=("double_dqn",), doc="the online network chooses the bootstrap action, the target network values it"
    )
    dueling: bool = option(
        flag, False, doc="the network estimates the value of the state, and the advantages of the actions over it"
    )
    distribution: str = option(
        one_of("none", "categorical", "quantile"),
        "none",
        doc="estimate of the return of an action: its mean (none), probabilities of atoms (C51), or quantiles (QR-DQN)",
    )
    atoms: int = option(whole_number(2, 10_000), 51, names=("n_atoms",), doc="categorical: number of returns with a probability")
    v_min: float = option(number(-MAX_NUMBER, MAX_NUMBER), -10.0, doc="categorical: the lowest atom; lower returns count as it")
    v_max: float = option(number(-MAX_NUMBER, MAX_NUMBER), 10.0, doc="categorical: the highest atom; higher returns count as it")
    quantiles: int = option(whole_number(1, 10_000), 200, names=("n_quantiles",), doc="quantile: number of quantiles")
    kappa: float = option(number(1e-9, MAX_NUMBER), 1.0, doc="quantile: error beyond which the loss is linear")
    huber_delta: float = option(
        number(1e-9, MAX_NUMBER),
        100.0,
        doc="distribution none: error beyond which the loss is linear; far below the values, rare failures are not learnt",
    )
    value_rescaling: bool = option(
        flag, False, doc="distribution none: learn the root of large returns, as R2D2; above all with a recurrent network"
    )
    epsilon: float = option(
        number(0.0, 1.0), 1.0, names=("start_e", "exploration_initial_eps"), doc="probability of a uniform action at the start"
    )
    epsilon_min: float = option(
        number(0.0, 1.0), 0.05, names=("exploration_final_eps",), doc="probability of a uniform action at the end"
    )
    end_e: float | None = nullable(
        number(0.0, 1.0), doc="as in CleanRL, epsilon_min of the linear schedule; ignored with epsilon_decay"
    )
    exploration_fraction: float = option(number(0.0, 1.0), 0.1, doc="share of total_steps over which epsilon falls linearly")
    epsilon_decay: float | None = nullable(
        number(0.0, 1.0),
        doc="instead of exploration_fraction: up to 0.5, the decrease of epsilon per step; above, the factor of epsilon per "
        "step, as in RL4Sys",
    )
    epsilon_ladder: float = option(
        number(0.0, 100.0),
        0.0,
        doc="each actor has its own epsilon ** (1 + epsilon_ladder u), with u in [0, 1) from its actor_id; 0: all the same; "
        "Ape-X has 7, with epsilon_min 0.4",
    )

    sequence_length: int | None = nullable(
        whole_number(1, 1 << 20), doc="recurrent network: steps of a sequence that are trained on; null: rollout_length"
    )
    burn_in: int = option(
        whole_number(0, 1 << 20),
        0,
        doc="recurrent network: steps before a sequence, of the same segment, that only bring its state up to date",
    )
    overlap: int = option(
        whole_number(0, 1 << 20),
        0,
        doc="recurrent network: trained steps that a sequence shares with the next one of its segment",
    )

    def __post_init__(self) -> None:
        OffPolicyParameters.__post_init__(self)
        self._check_sequences()
        if self.value_rescaling and self.distribution != "none":
            raise parameter_error("value_rescaling", f"it is for distribution none, not {self.distribution}")
        if self.epsilon_end > self.epsilon:
            name = "end_e" if self.epsilon_end == self.end_e else "epsilon_min"
            raise parameter_error(name, f"{self.epsilon_end:g} is above epsilon {self.epsilon:g}; set a smaller {name} too")
        if self.v_min >= self.v_max:
            raise parameter_error("v_min", f"{self.v_min:g} is not below v_max {self.v_max:g}")

    def _check_sequences(self) -> None:
        length, segment = self.steps_per_sequence, self.rollout_length
        if not self.recurrent:
            kind = self.chosen_network().entry.name
            for name in ("sequence_length", "burn_in", "overlap"):
                if value := getattr(self, name):
                    raise parameter_error(name, f"{value} is for a recurrent network such as gru, not for the kind {kind!r}")
        elif length + self.burn_in > segment:
            raise parameter_error(
                "sequence_length",
                f"{length} steps and a burn_in of {self.burn_in} do not fit into a segment of {segment} steps; use a larger "
                "rollout_length, or shorter sequences",
            )
        elif self.overlap >= length:
            raise parameter_error("overlap", f"{self.overlap} is not below sequence_length {length}")
        elif self.buffer_size <= segment:
            raise parameter_error("buffer_size", f"{self.buffer_size} has no room for a segment of {segment} steps and one more")

    @property
    def recurrent(self) -> bool:
        entry = self.chosen_network().entry
        return entry.serves("sequences") and not entry.serves("offpolicy")

    @property
    def steps_per_sequence(self) -> int:
        """The largest number of trained steps of a sequence."""
        return self.rollout_length if self.sequence_length is None else self.sequence_length

    @property
    def sequences(self) -> SequenceOptions | None:
        if not self.recurrent:
            return None
        return SequenceOptions(
            capacity=self.buffer_size,
            length=self.steps_per_sequence,
            burn_in=self.burn_in,
            overlap=self.overlap,
            priority=self.priority,
        )

    @property
    def epsilon_end(self) -> float:
        """The probability of a random action at the end of the schedule."""
        return self.end_e if self.end_e is not None and self.epsilon_decay is None else self.epsilon_min

    @property
    def target_steps(self) -> int | None:
        """The number of environment steps between updates of the target network; None if `target_every` applies instead.

        As in Stable-Baselines3 and CleanRL, an update comes before the first unit of training at or after each multiple. With
        units of 256 steps and 128 gradient steps, updates every 10 gradient steps would diverge.
        """
        return (self.target_network_frequency or self.target_update or 1000) if self.target_every is None else None

    @property
    def target_every(self) -> int | None:
        """The number of gradient steps between updates of the target network; None if `target_steps` applies instead."""
        if self.target_net_update_frequency is not None:
            return self.target_net_update_frequency
        if self.target_update_units is not None:
            return self.target_update_units * self.gradient_steps
        return None

    @property
    def priority(self) -> PriorityOptions | None:
        return PriorityOptions(alpha=self.priority_alpha, epsilon=self.priority_epsilon) if self.prioritised else None

    def priority_beta_at(self, steps: int) -> float:
        done = min(1.0, steps / self.total_steps)
        return self.priority_beta + (self.priority_beta_final - self.priority_beta) * done

    def epsilon_at(self, steps: int) -> float:
        """Return the probability of a random action after `steps` observed steps."""
        decay = self.epsilon_decay
        if decay is not None and decay > LARGEST_DIFFERENCE:
            return max(self.epsilon_end, self.epsilon * decay**steps)
        if decay is None:
            over = self.exploration_fraction * self.total_steps
            decay = (self.epsilon - self.epsilon_end) / over if over > 0 else 1.0
        return max(self.epsilon_end, self.epsilon - decay * steps)

    def rl4sys_notes(self) -> list[str]:
        lines = OffPolicyParameters.rl4sys_notes(self)
        if self.traj_per_epoch is not None and self.target_steps is not None:
            lines.append(f"target network: an update before the first unit after each multiple of {self.target_steps} steps")
        if self.epsilon_decay is not None and self.epsilon_decay > LARGEST_DIFFERENCE:
            lines.append(f"epsilon_decay {self.epsilon_decay:g}: a factor of epsilon per step, down to {self.epsilon_end:g}")
        if self.end_e is not None and self.epsilon_end != self.end_e:
            lines.append(f"end_e {self.end_e:g}: ignored, because epsilon_decay ends at epsilon_min {self.epsilon_min:g}")
        return lines

    def learning_rate_at(self, steps: int) -> float:
        if self.learning_rate_final is None:
            return self.learning_rate
        left = max(0.0, 1.0 - steps / self.total_steps)
        return self.learning_rate_final + (self.learning_rate - self.learning_rate_final) * left

    def head(self, name: str, action_space: Space) -> HeadParameters:
        if not isinstance(action_space, DiscreteSpace):
            raise ConfigError(f"{name} needs a Discrete action space, not {action_space!s:.80}; use PPO", key="action_space")
        network = self.chosen_network().entry
        linear = network.linear_output or not network.serves(*self.network_forms)
        if (self.dueling or self.distribution == "quantile") and not linear:
            setting, remedy = (
                ("dueling", "compute it within the module") if self.dueling else ("distribution: quantile", "use categorical")
            )
            raise parameter_error(
                "network",
                f"{setting} needs a network whose last layer is linear, which the kind "
                f"{network.name!r} does not declare; {remedy}",
            )
        ladder = self.epsilon_ladder
        if self.distribution == "categorical":
            atoms = self.atoms
            return HeadParameters(head="q_distribution", epsilon_ladder=ladder, atoms=atoms, v_min=self.v_min, v_max=self.v_max)
        return HeadParameters(head="q_values", epsilon_ladder=ladder)


@with_settings(
    learning_rate=2.5e-4,
    n_step=1,
    buffer_size=10_000,
    learning_starts=10_000,
    train_frequency=10,
    target_network_frequency=500,
    max_grad_norm=None,
    adam_epsilon=0.01 / 128,
    hidden_sizes=Setting(None, "widths of the hidden layers, for the network mlp; null: [120, 84]"),
    double_q=False,
    distribution="categorical",
    atoms=101,
    v_min=-100.0,
    v_max=100.0,
    exploration_fraction=0.5,
)
class C51Parameters(DQNParameters):
    """All parameters of C51: those of DQN, with the defaults of CleanRL's C51 for CartPole-v1."""

    libraries: ClassVar[Libraries] = tables.C51
    default_hidden_sizes: ClassVar[tuple[int, ...]] = (120, 84)


def count_dqn(observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]) -> int:
    """Return the number of parameters of a network that estimates quantiles; 0 if `distribution` is not ``quantile``."""
    p = read_parameters(DQNParameters, parameters, algorithm="DQN")
    if p.distribution != "quantile":
        return 0
    head = HeadParameters(head="q_distribution", atoms=p.quantiles, v_min=0.0, v_max=1.0)
    return p.policy("DQN", observation_space, action_space, head).parameters


CARTPOLE: dict[str, object] = {
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
}


def _cartpole(**parameters: object) -> dict[str, TaskPreset]:
    settings = {**CARTPOLE, **parameters}
    return {"CartPole-v1": TaskPreset(settings, num_envs=4, actors=2, pacing_lag=1, target_return=475.0)}


ENTRY = replay_entry(
    "DQN",
    DQNParameters,
    "dqn:DQN",
    summary="Double Q-learning from a replay of n-step transitions, for discrete actions.",
    count=count_dqn,
    presets=_cartpole(gradient_steps=2),
    spaces="any observations; Discrete actions",
    reference="van Hasselt et al. 2016, Deep reinforcement learning with double Q-learning",
    takes_masks=True,
)
C51_ENTRY = replay_entry(
    "C51",
    C51Parameters,
    "dqn:C51",
    summary="DQN that estimates the distribution of the return by the probabilities of fixed values.",
    presets=_cartpole(atoms=51, v_min=0.0, v_max=100.0, double_q=True),
    spaces="any observations; Discrete actions",
    reference="Bellemare et al. 2017, A distributional perspective on reinforcement learning",
    takes_masks=True,
)
