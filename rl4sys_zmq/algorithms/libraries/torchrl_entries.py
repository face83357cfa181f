"""The registry entries of TorchRL's losses and their parameters. This module imports neither torch nor the library.

A parameter of a loss has the name and the default of the library; those of networks, optimizer and replay are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl4sys_zmq.algorithms.libraries.library import (
    TQC_REFERENCE,
    LibraryParameters,
    check_quantiles,
    library_entry,
)
from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, one_of, option, whole_number
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, gradient_norm, parameter_error

_LOSSES = ("l1", "l2", "smooth_l1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrlParameters(LibraryParameters):
    """The parameters that all algorithms of TorchRL have. *Steps* are environment steps."""

    changeable: ClassVar[frozenset[str]] = frozenset({"learning_rate", "batch_size", "max_grad_norm"})
    ours: ClassVar[frozenset[str]] = LibraryParameters.ours | {
        *("learning_rate", "batch_size", "buffer_size", "learning_starts", "train_frequency", "gradient_steps", "max_grad_norm"),
    }

    learning_rate: float = option(number(0.0, 10.0), 3e-4, names=("lr",), doc="Adam's step size, for all networks")
    batch_size: int = option(whole_number(1, 1 << 20), 256, doc="transitions per gradient step")
    buffer_size: int = option(
        whole_number(1, 1 << 30), 1_000_000, names=("buffer_capacity", "replay_size"), doc="transitions held in the replay"
    )
    learning_starts: int = option(whole_number(0), 1000, doc="steps that are observed before the training starts")
    train_frequency: int = option(whole_number(1), 1, names=("train_freq",), doc="steps from one training to the next")
    gradient_steps: int = option(whole_number(1, 10_000), 1, names=("train_iters",), doc="gradient steps of each training")
    max_grad_norm: float | None = option(gradient_norm, None, doc="largest norm of the gradient; null, 0 or less: no limit")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of TorchRL's loss class by name, without those that have the default of TorchRL."""
        return {name: value for name, value in LibraryParameters.arguments(self).items() if value is not None}

    def unused_losses(self, step: int) -> tuple[str, ...]:
        """Return the names of the losses that gradient step `step` does not reduce. The first step has the number 1."""
        return ()

    def moves_targets(self, step: int) -> bool:
        """Return True if the target networks move after gradient step `step`, counted from 1."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueParameters(TorchrlParameters):
    """The parameters of every algorithm of TorchRL that estimates values and has target networks."""

    ours: ClassVar[frozenset[str]] = TorchrlParameters.ours | {"gamma", "tau"}

    gamma: float = option(number(0.0, 1.0), 0.99, doc="discount per step")
    tau: float = option(number(0.0, 1.0), 0.005, doc="share of the new weights in each update of the target networks")


def _networks(default: int) -> int:
    return option(whole_number(1, 100), default, doc="number of networks that estimate action values")


def _loss(default: str) -> str:
    return option(one_of(*_LOSSES), default, doc="loss of the estimated values")


@dataclass(frozen=True, slots=True, kw_only=True)
class BCParameters(TorchrlParameters):
    """The parameters of ``torchrl:BC``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IQLParameters(ValueParameters):
    """The parameters of ``torchrl:IQL``."""

    num_qvalue_nets: int = _networks(2)
    loss_function: str = _loss("smooth_l1")
    temperature: float = option(
        number(0.0, MAX_NUMBER), 1.0, names=("beta",), doc="factor of the advantage in the policy's weights"
    )
    expectile: float = option(number(0.0, 0.999_999), 0.5, doc="expectile of the action values that the value network estimates")


@dataclass(frozen=True, slots=True, kw_only=True)
class CQLParameters(ValueParameters):
    """The parameters of ``torchrl:CQL``. For discrete actions, only `loss_function` and `epsilon` have an effect."""

    ours: ClassVar[frozenset[str]] = ValueParameters.ours | {"policy_eval_start", "epsilon"}

    loss_function: str | None = nullable(
        one_of(*_LOSSES), doc="loss of the estimated values; null: l2 for discrete actions, else smooth_l1"
    )
    alpha_init: float = option(number(1e-9, MAX_NUMBER), 1.0, doc="first weight of the entropy, which is learnt")
    temperature: float = option(number(1e-9, MAX_NUMBER), 1.0, doc="temperature of the penalty")
    min_q_weight: float = option(number(0.0, MAX_NUMBER), 1.0, doc="weight of the penalty of actions that are not in the data")
    max_q_backup: bool = option(flag, False, doc="bootstrap from the best of several actions")
    deterministic_backup: bool = option(flag, True, doc="bootstrap without the entropy")
    num_random: int = option(whole_number(1, 1000), 10, doc="actions per transition from which the penalty is estimated")
    with_lagrange: bool = option(flag, False, doc="learn the weight of the penalty, as a factor of it; metrics have the product")
    lagrange_thresh: float = option(number(0.0, MAX_NUMBER), 0.0, doc="penalty that a learnt weight holds")
    policy_eval_start: int = option(
        whole_number(0), 0, doc="first gradient steps, in which the policy only imitates the data's actions"
    )
    epsilon: float = option(number(0.0, 1.0), 0.05, doc="probability of a uniform action after learning_starts, if discrete")

    def unused_losses(self, step: int) -> tuple[str, ...]:
        """Return the name of the policy loss, one of two, that this gradient step does not reduce."""
        return ("loss_actor" if step <= self.policy_eval_start else "loss_actor_bc",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3BCParameters(ValueParameters):
    """The parameters of ``torchrl:TD3BC``."""

    changeable: ClassVar[frozenset[str]] = TorchrlParameters.changeable | {"exploration_noise"}
    ours: ClassVar[frozenset[str]] = ValueParameters.ours | {"policy_delay", "exploration_noise"}

    num_qvalue_nets: int = _networks(2)
    loss_function: str = _loss("smooth_l1")
    policy_noise: float = option(number(0.0, 10.0), 0.2, doc="deviation of the noise of the target's actions")
    noise_clip: float = option(number(0.0, 10.0), 0.5, doc="largest noise of the target's actions")
    alpha: float = option(number(0.0, MAX_NUMBER), 2.5, doc="weight of the values against the cloning of the data's actions")
    policy_delay: int = option(
        whole_number(1, 10_000), 2, doc="gradient steps of the critics for each one of the policy and of the target networks"
    )
    exploration_noise: float = option(
        number(0.0, 10.0), 0.1, doc="deviation of the noise of actions, as a fraction of half their range"
    )

    def unused_losses(self, step: int) -> tuple[str, ...]:
        return () if self.moves_targets(step) else ("loss_actor",)

    def moves_targets(self, step: int) -> bool:
        return not step % self.policy_delay


@dataclass(frozen=True, slots=True, kw_only=True)
class REDQParameters(ValueParameters):
    """The parameters of ``torchrl:REDQ``."""

    num_qvalue_nets: int = _networks(10)
    sub_sample_len: int = option(whole_number(1, 100), 2, doc="networks whose least value is a target; fewer than all")
    loss_function: str = _loss("smooth_l1")
    alpha_init: float = option(number(1e-9, MAX_NUMBER), 1.0, doc="first weight of the entropy, which is learnt")
    min_alpha: float = option(number(1e-9, MAX_NUMBER), 0.1, doc="least weight of the entropy")
    max_alpha: float = option(number(1e-9, MAX_NUMBER), 10.0, doc="largest weight of the entropy")

    def __post_init__(self) -> None:
        if self.sub_sample_len > max(1, self.num_qvalue_nets - 1):  # TorchRL would use this limit without a word
            raise parameter_error(
                "sub_sample_len",
                f"{self.sub_sample_len} of {self.num_qvalue_nets} networks leave none out, "
                "which TorchRL cannot; give fewer, or more num_qvalue_nets",
            )
        if self.min_alpha > self.max_alpha:
            raise parameter_error("min_alpha", f"{self.min_alpha:g} is above max_alpha {self.max_alpha:g}; exchange them")


@dataclass(frozen=True, slots=True, kw_only=True)
class TQCParameters(ValueParameters):
    """The parameters of ``torchrl:TQC``."""

    ours: ClassVar[frozenset[str]] = ValueParameters.ours | {"n_quantiles"}

    num_qvalue_nets: int = _networks(5)
    top_quantiles_to_drop_per_net: int = option(whole_number(0, 10_000), 2, doc="quantiles that are left out of the targets")
    n_quantiles: int = option(whole_number(1, 10_000), 25, doc="quantiles of the return that each network estimates")
    alpha_init: float = option(number(1e-9, MAX_NUMBER), 1.0, doc="first weight of the entropy, which is learnt")

    def __post_init__(self) -> None:
        check_quantiles(self.top_quantiles_to_drop_per_net, self.n_quantiles)


def _entry(name: str, summary: str, reference: str, cls: type[TorchrlParameters], **heads: str) -> AlgorithmEntry:
    summary = f"{summary} with TorchRL's loss."
    return library_entry("torchrl", name, cls, heads, kind="offpolicy", summary=summary, reference=reference)


_SQUASHED = {"Box": "squashed_gaussian"}

BC = _entry(
    "BC",
    "Behaviour cloning of the data's actions,",
    "Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation",
    BCParameters,
    Discrete="categorical",
    **_SQUASHED,
)
IQL = _entry(
    "IQL",
    "Implicit Q-learning",
    "Kostrikov et al. 2022, Offline reinforcement learning with implicit Q-learning",
    IQLParameters,
    Discrete="categorical",
    **_SQUASHED,
)
CQL = _entry(
    "CQL",
    "Conservative Q-learning",
    "Kumar et al. 2020, Conservative Q-learning for offline reinforcement learning",
    CQLParameters,
    Discrete="q_values",
    **_SQUASHED,
)
TD3BC = _entry(
    "TD3BC",
    "TD3 with behaviour cloning",
    "Fujimoto and Gu 2021, A minimalist approach to offline reinforcement learning",
    TD3BCParameters,
    Box="deterministic",
)
REDQ = _entry(
    "REDQ",
    "Randomised ensembled double Q-learning",
    "Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model",
    REDQParameters,
    **_SQUASHED,
)
TQC = _entry("TQC", "SAC with truncated quantile critics", TQC_REFERENCE, TQCParameters, **_SQUASHED)
