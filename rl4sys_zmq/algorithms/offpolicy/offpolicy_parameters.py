"""The parameters that off-policy algorithms share, such as DQN, SAC and TD3. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rl4sys_zmq.algorithms.networks import NetworkChoice, PolicyRequirements, choose_network, network_option, plan_policy
from rl4sys_zmq.config.options import MAX_NUMBER, nullable, number, one_of, option, sizes, whole_number
from rl4sys_zmq.errors import config_error
from rl4sys_zmq.learner.registry.algorithm_entry import (
    ANY_AGE,
    LEAST_EPSILON,
    AlgorithmEntry,
    gradient_norm,
    own_entry,
    parameter_error,
)
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.replay.pace import PaceRule, SamplesPerInsert
from rl4sys_zmq.replay.priorities import PriorityOptions
from rl4sys_zmq.replay.sequences import SequenceOptions
from rl4sys_zmq.values import ACTIVATIONS, ObservationSpace, PolicySpec, Space

PACE = ("learning_starts", "samples_per_insert", "samples_per_insert_tolerance", "train_frequency", "traj_per_epoch")


@dataclass(frozen=True, slots=True)
class OffPolicyParameters:
    """The parameters of every off-policy algorithm of this package. *Steps* without *gradient* are environment steps."""

    changeable: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "batch_size", "gradient_steps", "tau", "polyak", "max_grad_norm"}
    )
    """The others determine the networks, the replay (which has n-step returns, discounted) or the number of due updates."""
    steps_per_version: ClassVar[int] = 64
    network_forms: ClassVar[tuple[str, ...]] = ("offpolicy",)
    default_hidden_sizes: ClassVar[tuple[int, ...]] = (256, 256)

    learning_rate: float = option(number(0.0, 10.0), 3e-4, names=("lr", "pi_lr", "policy_lr"), doc="Adam's step size")
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
    train_frequency: int = option(
        whole_number(1),
        1,
        names=("train_freq", "train_update_freq"),
        doc="steps per unit of training; the first unit follows its first multiple above learning_starts",
    )
    gradient_steps: int = option(whole_number(1, 10_000), 1, names=("train_iters",), doc="gradient steps in a unit of training")
    samples_per_insert: float | None = nullable(
        number(1e-6, MAX_NUMBER),
        doc="transitions drawn per step, instead of train_frequency; actors wait while training lags; null: count steps",
    )
    samples_per_insert_tolerance: float | None = nullable(
        number(0.0, MAX_NUMBER),
        names=("error_buffer",),
        doc="transitions by which samples_per_insert can be missed; null: as few as possible",
    )
    traj_per_epoch: int | None = nullable(
        whole_number(1), doc="ended episodes per unit of training, instead of train_frequency steps; null: count steps"
    )
    tau: float = option(number(0.0, 1.0), 0.005, doc="share of the networks in each update of the target networks")
    polyak: float | None = nullable(number(0.0, 1.0), doc="another way to give tau: 1 - tau")
    max_grad_norm: float | None = option(
        gradient_norm,
        None,
        names=("grad_norm_clip", "clip_grad_norm"),
        doc="largest norm of the gradient of a network; null, 0 or less: no limit",
    )
    adam_epsilon: float = option(number(LEAST_EPSILON, 1.0), 1e-8, doc="Adam's epsilon")
    network: dict[str, object] | None = nullable(
        network_option,
        doc="kind of network with its options, such as {kind: cnn, hidden_sizes: [256]}; null: mlp with hidden_sizes and "
        "activation",
    )
    hidden_sizes: tuple[int, ...] | None = nullable(
        sizes, names=("net_arch",), doc="widths of the hidden layers of each network, for the network mlp; null: [256, 256]"
    )
    activation: str | None = nullable(one_of(*ACTIVATIONS), doc="after each hidden layer, for the network mlp; null: relu")
    rollout_length: int = option(whole_number(1, 1 << 20), 32, names=("num_steps",), doc="most steps per segment")

    def __post_init__(self) -> None:
        (default,) = (f.default for f in fields(self) if f.name == "tau")
        if self.polyak is not None and self.tau not in (default, 1.0 - self.polyak):
            raise parameter_error("polyak", f"{self.polyak} contradicts tau {self.tau}; set only one of them")
        if self.samples_per_insert is not None and self.traj_per_epoch is not None:
            raise parameter_error(
                "samples_per_insert",
                f"{self.samples_per_insert:g} contradicts traj_per_epoch {self.traj_per_epoch}; set only one of them",
            )
        rate = self.insert_rate
        if rate is not None and rate.tolerance < self._least_tolerance:
            raise parameter_error(
                "samples_per_insert_tolerance",
                f"{rate.tolerance:g} is too small; expected at least "
                f"{self._least_tolerance:g}, the larger of one unit of training and the samples of one segment",
            )
        self.chosen_network()

    def chosen_network(self) -> NetworkChoice:
        return choose_network(
            self.network,
            {"hidden_sizes": self.hidden_sizes, "activation": self.activation},
            {"hidden_sizes": self.default_hidden_sizes, "activation": "relu"},
        )

    def head(self, name: str, action_space: Space) -> HeadParameters:
        """Return the head of the policy: the meaning of the outputs of its network.

        Raises:
            ConfigError: If the algorithm `name` does not support the actions.
        """
        raise NotImplementedError

    def policy(
        self, name: str, observation_space: ObservationSpace, action_space: Space, head: HeadParameters | None = None
    ) -> PolicySpec:
        """Return the specification of the policy of the algorithm `name`, with the algorithm's usual head if `head` is None."""
        requirements = PolicyRequirements(
            algorithm=name,
            observation_space=observation_space,
            action_space=action_space,
            head=head or self.head(name, action_space),
        )
        return plan_policy(self.chosen_network(), requirements, *self.network_forms)

    @property
    def target_share(self) -> float:
        return self.tau if self.polyak is None else 1.0 - self.polyak

    @property
    def unit_samples(self) -> int:
        return self.batch_size * self.gradient_steps

    def check_fraction(self, fraction: float) -> None:
        """Raise `ConfigError` if this fraction of a batch cannot come from demonstrations."""
        if self.sequences is not None:
            raise config_error(
                "demonstrations.fraction",
                "a recurrent network trains on sequences with recurrent states, which demonstrations do "
                "not have; use another kind of network",
            )
        count = round(self.batch_size * fraction)
        if not 0 < count < self.batch_size:
            problem = f"expected 1 to {self.batch_size - 1}; set another batch_size or fraction"
            if self.batch_size == 1:
                problem = "one transition cannot be divided; set a larger batch_size"
            raise config_error(
                "demonstrations.fraction", f"{fraction:g} of a batch of {self.batch_size} is {count} transitions; {problem}"
            )

    @property
    def unit_steps(self) -> float:
        """The mean number of steps per unit of training. It has no meaning with `traj_per_epoch`."""
        return self.train_frequency if self.samples_per_insert is None else self.unit_samples / self.samples_per_insert

    @property
    def insert_rate(self) -> SamplesPerInsert | None:
        """The ratio between drawn samples and inserted steps that the training keeps; None without `samples_per_insert`."""
        if self.samples_per_insert is None:
            return None
        tolerance = self.samples_per_insert_tolerance
        tolerance = self._least_tolerance if tolerance is None else tolerance
        return SamplesPerInsert(ratio=self.samples_per_insert, tolerance=tolerance, least=self.learning_starts)

    @property
    def pace_rule(self) -> PaceRule:
        return PaceRule.of(self)

    @property
    def pace(self) -> dict[str, float | None]:
        """The parameters, by name, on which the number of due units of training depends."""
        return {name: getattr(self, name) for name in PACE}

    @property
    def stored_returns(self) -> dict[str, float]:
        """The parameters, by name, on which the returns stored in the replay depend; empty for a replay of sequences."""
        return {"gamma": self.gamma, "n_step": self.n_step} if self.sequences is None else {}

    @property
    def _least_tolerance(self) -> float:
        """The smallest tolerance with which neither the actors nor the training can wait for the other forever."""
        return max(self.unit_samples, (self.samples_per_insert or 0.0) * self.rollout_length)

    @property
    def priority(self) -> PriorityOptions | None:
        """The options of prioritized sampling; None if transitions are drawn uniformly."""
        return None

    @property
    def sequences(self) -> SequenceOptions | None:
        """The options of a replay for a recurrent network; None for a replay of transitions."""
        return None

    def priority_beta_at(self, steps: int) -> float:
        """Return the exponent of the importance weights after `steps` observed steps."""
        return 1.0

    def learning_rate_at(self, steps: int) -> float:
        return self.learning_rate

    def updates_per_version(self) -> int:
        """Return the number of units of training per published version."""
        return max(1, round(self.steps_per_version / self.unit_steps)) if self.traj_per_epoch is None else 1

    def rl4sys_notes(self) -> list[str]:
        """Return a log line for each of RL4Sys's parameters in use, with its meaning."""
        if self.traj_per_epoch is None:
            return []
        return [f"traj_per_epoch {self.traj_per_epoch}: a unit of training after so many ended episodes"]


@dataclass(frozen=True, slots=True)
class CriticParameters(OffPolicyParameters):
    """The parameters of every off-policy algorithm with a policy and critics (networks that estimate action values)."""

    changeable: ClassVar[frozenset[str]] = OffPolicyParameters.changeable | {"critic_learning_rate"}

    critic_learning_rate: float | None = nullable(
        number(0.0, 10.0), names=("q_lr", "vf_lr"), doc="Adam's step size of the critics; null: learning_rate"
    )

    @property
    def critic_rate(self) -> float:
        return self.learning_rate if self.critic_learning_rate is None else self.critic_learning_rate


def replay_entry(name: str, parameters: type[OffPolicyParameters], factory: str, **described: Any) -> AlgorithmEntry:
    """Return the registry entry of an off-policy algorithm. Such an algorithm learns from data of any age."""
    return own_entry(name, parameters, f"offpolicy.{factory}", kind="offpolicy", staleness=ANY_AGE, **described)
