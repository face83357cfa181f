"""The registry entries of Stable-Baselines3's algorithms and their parameters. This module imports neither torch nor the library.

A parameter has the name and the default of the library, unless its description says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rl4sys_zmq.algorithms.libraries.library import (
    TQC_REFERENCE,
    LibraryParameters,
    check_quantiles,
    count_values,
    library_entry,
)
from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import DQNParameters as OwnDQNParameters
from rl4sys_zmq.config.options import (
    MAX_NUMBER,
    InvalidValue,
    flag,
    nullable,
    number,
    option,
    whole_number,
)
from rl4sys_zmq.config.options import parameters as finite_parameters
from rl4sys_zmq.learner.registry.algorithm_entry import (
    ANY_AGE,
    LEAST_EPSILON,
    AlgorithmEntry,
    NamedFactory,
    Setting,
    Staleness,
    inherited,
    with_settings,
)


def _number_or(low: float, pattern: str, texts: str) -> Callable[[object], float | str]:
    """Return a function that checks the value of an option: a number of at least `low`, or a text that matches `pattern`.

    `texts` describes the valid texts, for the error message.
    """

    def check(value: object) -> float | str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        try:
            return number(low, MAX_NUMBER)(value)
        except InvalidValue as exc:
            raise InvalidValue(f"{exc}, or {texts}") from exc

    return check


@with_settings(hidden_sizes=(64, 64), activation=Setting("tanh", names=("activation_fn",)), rollout_length=128)
class Sb3Parameters(LibraryParameters):
    """The parameters that all algorithms of Stable-Baselines3 have. *Steps* are environment steps."""

    changeable: ClassVar[frozenset[str]] = frozenset({"learning_rate", "learning_rate_final", "total_steps"})
    ours: ClassVar[frozenset[str]] = LibraryParameters.ours | changeable
    of_network: ClassVar[tuple[str, ...]] = ()
    """The names of further arguments of the library's policy class."""

    learning_rate: float = option(number(0.0, 10.0), 3e-4, names=("lr",), doc="step size of the optimizer")
    learning_rate_final: float | None = inherited(OwnDQNParameters, "learning_rate_final", None)
    total_steps: int = inherited(OwnDQNParameters, "total_steps", 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyParameters(Sb3Parameters):
    """The parameters that all on-policy algorithms of Stable-Baselines3 have."""

    changeable: ClassVar[frozenset[str]] = Sb3Parameters.changeable | {"gamma", "gae_lambda"}

    gamma: float = option(number(0.0, 1.0), 0.99, doc="discount per step")
    gae_lambda: float = option(number(0.0, 1.0), 0.95, names=("lam",), doc="decay of advantage traces")
    n_steps: int = option(whole_number(2, 1 << 30), 2048, names=("steps_per_update",), doc="steps per update, of all actors")


@with_settings(learning_rate=Setting(1e-3, "step size of the value network's Adam", names=("lr", "vf_lr")))
class TRPOParameters(OnPolicyParameters):
    """The parameters of ``sb3:TRPO``."""

    changeable: ClassVar[frozenset[str]] = OnPolicyParameters.changeable | {
        *("batch_size", "cg_max_steps", "cg_damping", "line_search_shrinking_factor", "line_search_max_iter"),
        *("n_critic_updates", "normalize_advantage", "target_kl", "sub_sampling_factor"),
    }

    batch_size: int = option(whole_number(1), 128, doc="steps per minibatch of the value network")
    cg_max_steps: int = option(whole_number(1, 1000), 15, names=("cg_iters",), doc="most steps of the conjugate gradient")
    cg_damping: float = option(number(0.0, 1e3), 0.1, names=("damping_coeff",), doc="damping of the Fisher matrix's product")
    line_search_shrinking_factor: float = option(
        number(0.0, 1.0), 0.8, names=("backtrack_coeff",), doc="factor of the step in each try of the line search"
    )
    line_search_max_iter: int = option(
        whole_number(1, 1000), 10, names=("backtrack_iters",), doc="most tries of the line search; after them, the policy stays"
    )
    n_critic_updates: int = option(
        whole_number(1, 10_000), 10, names=("train_v_iters",), doc="passes over the batch that train the value network"
    )
    normalize_advantage: bool = option(flag, True, names=("norm_adv",), doc="normalise the advantages of a batch")
    target_kl: float = option(
        number(1e-9, 1e3),
        0.01,
        names=("delta",),
        doc="largest mean KL divergence between the policies before and after an update",
    )
    sub_sampling_factor: int = option(whole_number(1, 1000), 1, doc="the policy's step uses every so many-th step of the batch")


@with_settings(learning_rate=7e-4, n_steps=5, gae_lambda=1.0)
class A2CParameters(OnPolicyParameters):
    """The parameters of ``sb3:A2C``."""

    changeable: ClassVar[frozenset[str]] = OnPolicyParameters.changeable | {
        *("ent_coef", "vf_coef", "max_grad_norm", "normalize_advantage"),
    }

    ent_coef: float = option(number(0.0, MAX_NUMBER), 0.0, doc="weight of the entropy bonus")
    vf_coef: float = option(number(0.0, MAX_NUMBER), 0.5, doc="weight of the value loss, the mean squared error")
    max_grad_norm: float = option(number(0.0, MAX_NUMBER), 0.5, doc="largest norm of the gradient")
    rms_prop_eps: float = option(number(LEAST_EPSILON, 1.0), 1e-5, doc="RMSProp's epsilon")
    use_rms_prop: bool = option(flag, True, doc="RMSProp; false: Adam")
    normalize_advantage: bool = option(flag, False, names=("norm_adv",), doc="normalise the advantages of a batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOParameters(OnPolicyParameters):
    """The parameters of ``sb3:PPO`` and ``sb3:MaskablePPO``."""

    changeable: ClassVar[frozenset[str]] = OnPolicyParameters.changeable | {
        *("batch_size", "n_epochs", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "target_kl"),
    }

    batch_size: int = option(whole_number(2), 64, names=("minibatch_size",), doc="steps per minibatch")
    n_epochs: int = option(whole_number(1, 10_000), 10, names=("update_epochs",), doc="passes over the batch")
    clip_range: float = option(
        number(0.0, MAX_NUMBER), 0.2, names=("clip_coef", "clip_ratio"), doc="largest distance of the probability ratio from 1"
    )
    clip_range_vf: float | None = nullable(
        number(1e-9, MAX_NUMBER), doc="largest distance of a value from the old one; null: no limit"
    )
    normalize_advantage: bool = option(flag, True, names=("norm_adv",), doc="normalise the advantages of each minibatch")
    ent_coef: float = option(number(0.0, MAX_NUMBER), 0.0, doc="weight of the entropy bonus")
    vf_coef: float = option(number(0.0, MAX_NUMBER), 0.5, doc="weight of the value loss, the mean squared error")
    max_grad_norm: float = option(number(0.0, MAX_NUMBER), 0.5, doc="largest norm of the gradient")
    target_kl: float | None = nullable(
        number(0.0, MAX_NUMBER), doc="end an update at 1.5 times this mean approximate KL; null: never"
    )


@with_settings(rollout_length=32, activation="relu")
class OffPolicyParameters(Sb3Parameters):
    """The parameters that all off-policy algorithms of Stable-Baselines3 have."""

    changeable: ClassVar[frozenset[str]] = Sb3Parameters.changeable | {"batch_size", "tau"}
    ours: ClassVar[frozenset[str]] = Sb3Parameters.ours | {"n_steps"}

    buffer_size: int = option(
        whole_number(1, 1 << 30), 1_000_000, names=("buffer_capacity", "replay_size"), doc="transitions held in the replay"
    )
    learning_starts: int = option(whole_number(0), 100, doc="steps that are observed before the training starts")
    batch_size: int = option(whole_number(1, 1 << 20), 256, doc="transitions per gradient step")
    tau: float = option(number(0.0, 1.0), 0.005, doc="share of the new weights in each update of the target network")
    gamma: float = option(number(0.0, 1.0), 0.99, doc="discount per step")
    train_freq: int = option(whole_number(1), 1, names=("train_frequency",), doc="steps from one training to the next")
    gradient_steps: int = option(whole_number(1, 10_000), 1, names=("train_iters",), doc="gradient steps of each training")
    n_steps: int = option(whole_number(1, 1000), 1, names=("n_step",), doc="number of rewards summed before the bootstrap")


@with_settings(
    learning_rate=1e-4,
    batch_size=32,
    tau=Setting(1.0, "share of the new weights in each update of the target network; 1 copies them"),
    train_freq=4,
)
class DQNParameters(OffPolicyParameters):
    """The parameters of ``sb3:DQN``."""

    changeable: ClassVar[frozenset[str]] = OffPolicyParameters.changeable | {"target_update_interval", "max_grad_norm"}

    target_update_interval: int = option(
        whole_number(1),
        10_000,
        names=("target_network_frequency",),
        doc="steps from one update of the target network to the next",
    )
    exploration_fraction: float = option(number(0.0, 1.0), 0.1, doc="share of total_steps over which epsilon falls linearly")
    exploration_initial_eps: float = option(
        number(0.0, 1.0), 1.0, names=("epsilon", "start_e"), doc="probability of a uniform action at the start"
    )
    exploration_final_eps: float = option(
        number(0.0, 1.0), 0.05, names=("epsilon_min", "end_e"), doc="probability of a uniform action at the end"
    )
    max_grad_norm: float = option(number(0.0, MAX_NUMBER), 10.0, doc="largest norm of the gradient")


@with_settings(learning_rate=5e-5, exploration_fraction=0.005, exploration_final_eps=0.01)
class QRDQNParameters(DQNParameters):
    """The parameters of ``sb3:QRDQN``."""

    of_network: ClassVar[tuple[str, ...]] = ("n_quantiles",)
    ours: ClassVar[frozenset[str]] = OffPolicyParameters.ours | {*of_network}

    max_grad_norm: float | None = nullable(  # type: ignore[assignment]
        number(0.0, MAX_NUMBER), doc="largest norm of the gradient; null: no limit"
    )
    n_quantiles: int = option(whole_number(1, 10_000), 200, doc="quantiles of the return that are estimated for each action")


@with_settings(hidden_sizes=(256, 256))
class SACParameters(OffPolicyParameters):
    """The parameters of ``sb3:SAC``."""

    ent_coef: float | str = option(
        _number_or(0.0, r"auto(_\d+(\.\d+)?)?", "auto, or auto_X with a number X"),
        "auto",
        names=("alpha",),
        doc="weight of the entropy; auto or auto_X: learnt, from 1 or X",
    )
    target_update_interval: int = option(
        whole_number(1),
        1,
        doc="gradient steps from one update of the target network to the next, in each training, which begins with one",
    )
    target_entropy: float | str = option(
        _number_or(-MAX_NUMBER, "auto", "auto"),
        "auto",
        doc="entropy that a learnt weight holds; auto: minus the number of an action's elements",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TQCParameters(SACParameters):
    """The parameters of ``sb3:TQC``."""

    of_network: ClassVar[tuple[str, ...]] = ("n_quantiles", "n_critics")
    ours: ClassVar[frozenset[str]] = OffPolicyParameters.ours | {*of_network}

    top_quantiles_to_drop_per_net: int = option(whole_number(0, 10_000), 2, doc="quantiles that are left out of the targets")
    n_quantiles: int = option(whole_number(1, 10_000), 25, doc="quantiles of the return that each critic estimates")
    n_critics: int = option(whole_number(1, 100), 2, doc="number of critics")

    def __post_init__(self) -> None:
        check_quantiles(self.top_quantiles_to_drop_per_net, self.n_quantiles)


@with_settings(learning_rate=1e-3, hidden_sizes=(400, 300))
class DDPGParameters(OffPolicyParameters):
    """The parameters of ``sb3:DDPG``."""

    changeable: ClassVar[frozenset[str]] = OffPolicyParameters.changeable | {"exploration_noise"}
    ours: ClassVar[frozenset[str]] = OffPolicyParameters.ours | {"exploration_noise"}

    exploration_noise: float = option(
        number(0.0, 10.0),
        0.1,
        names=("noise_scale",),
        doc="deviation of the noise of actions, as a fraction of half their range; the library's class has none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3Parameters(DDPGParameters):
    """The parameters of ``sb3:TD3``."""

    policy_delay: int = option(whole_number(1), 2, names=("policy_frequency",), doc="critics' gradient steps per policy's step")
    target_policy_noise: float = option(
        number(0.0, 10.0), 0.2, names=("policy_noise",), doc="deviation of the noise of the target's actions"
    )
    target_noise_clip: float = option(number(0.0, 10.0), 0.5, names=("noise_clip",), doc="largest noise of the target's actions")


def _class_arguments(value: object) -> Mapping[str, object]:
    arguments = finite_parameters(value)
    if "policy_kwargs" in arguments:  # its sizes would not be counted
        raise InvalidValue("no policy_kwargs, but the parameters hidden_sizes and activation")
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class UserClassParameters(Sb3Parameters):
    """The parameters of an algorithm whose class the user has written, ``sb3:package.module:Class``."""

    arguments_of_class: Mapping[str, object] = option(
        _class_arguments, {}, names=("arguments",), doc="arguments of the class by name, such as batch_size or gamma"
    )

    def arguments(self) -> dict[str, Any]:
        return dict(self.arguments_of_class)


def _entry(
    name: str, summary: str, reference: str, cls: type[Sb3Parameters], staleness: Staleness = ANY_AGE, **heads: str
) -> AlgorithmEntry:
    described: dict[str, Any] = {"summary": summary, "reference": reference, "staleness": staleness}
    kind = "onpolicy" if issubclass(cls, OnPolicyParameters) else "offpolicy"
    return library_entry("sb3", name, cls, heads, kind=kind, takes_masks=name == "MaskablePPO", **described)


_STOCHASTIC = {"Discrete": "categorical", "Box": "gaussian"}
_V_TRACE = "V-trace with on_lag: correct"
_CLIPPED = Staleness(max_policy_lag=4, correction=f"probability ratios, which are clipped; {_V_TRACE}")

A2C = _entry(
    "A2C",
    "Advantage actor-critic of Stable-Baselines3.",
    "Mnih et al. 2016, Asynchronous methods for deep reinforcement learning",
    A2CParameters,
    Staleness(max_policy_lag=4, correction=f"none; {_V_TRACE}"),
    **_STOCHASTIC,
)
PPO = _entry(
    "PPO",
    "Proximal policy optimisation of Stable-Baselines3.",
    "Schulman et al. 2017, Proximal policy optimization algorithms",
    PPOParameters,
    _CLIPPED,
    **_STOCHASTIC,
)
TRPO = _entry(
    "TRPO",
    "Trust region policy optimisation of sb3-contrib.",
    "Schulman et al. 2015, Trust region policy optimization",
    TRPOParameters,
    Staleness(max_policy_lag=4, correction=f"probability ratios, which are not clipped; {_V_TRACE}"),
    **_STOCHASTIC,
)
MASKABLEPPO = _entry(
    "MaskablePPO",
    "PPO with action masks of sb3-contrib.",
    "Huang and Ontañón 2022, A closer look at invalid action masking in policy gradient algorithms",
    PPOParameters,
    _CLIPPED,
    Discrete="categorical",
)
DQN = _entry(
    "DQN",
    "Deep Q-learning of Stable-Baselines3.",
    "Mnih et al. 2015, Human-level control through deep reinforcement learning",
    DQNParameters,
    Discrete="q_values",
)
QRDQN = _entry(
    "QRDQN",
    "Q-learning of return quantiles of sb3-contrib.",
    "Dabney et al. 2018, Distributional reinforcement learning with quantile regression",
    QRDQNParameters,
    Discrete="q_values",
)
SAC = _entry(
    "SAC",
    "Soft actor-critic of Stable-Baselines3.",
    "Haarnoja et al. 2018, Soft actor-critic algorithms and applications",
    SACParameters,
    Box="squashed_gaussian",
)
TQC = _entry(
    "TQC",
    "SAC with truncated quantile critics of sb3-contrib.",
    TQC_REFERENCE,
    TQCParameters,
    Box="squashed_gaussian",
)
TD3 = _entry(
    "TD3",
    "Twin delayed DDPG of Stable-Baselines3.",
    "Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
    TD3Parameters,
    Box="deterministic",
)
DDPG = _entry(
    "DDPG",
    "Deep deterministic policy gradient of Stable-Baselines3.",
    "Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
    DDPGParameters,
    Box="deterministic",
)


def own_class(name: str) -> AlgorithmEntry:
    """Return the registry entry of a class of the user, ``sb3:package.module:Class``. The class is not imported."""
    return AlgorithmEntry(
        name=name,
        factory=NamedFactory("rl4sys_zmq.algorithms.libraries.sb3:build", name.partition(":")[2]),
        summary="A class of yours that is derived from an algorithm of Stable-Baselines3.",
        parameters=UserClassParameters,
        count=partial(count_values, name, UserClassParameters),
        extra="sb3",
        isolated=True,
    )
