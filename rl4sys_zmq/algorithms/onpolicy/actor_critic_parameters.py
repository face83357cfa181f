"""The parameters that the on-policy algorithms have in common, and the policy that they train. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl4sys_zmq.algorithms.networks import (
    NetworkChoice,
    PolicyRequirements,
    choose_network,
    network_option,
    plan_policy,
)
from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, one_of, option, sizes, whole_number
from rl4sys_zmq.learner.registry.algorithm_entry import (
    LEAST_EPSILON,
    AlgorithmEntry,
    TaskPreset,
    gradient_norm,
    own_entry,
    parameter_error,
)
from rl4sys_zmq.policies.head_parameters import HeadParameters, stochastic_head
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, ObservationSpace, PolicySpec, Space
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of

# The learner joins the segments of an episode, so longer ones have no advantage; they arrive later, with older first steps.
LONGEST_SEGMENT = 128
"""The largest default of `rollout_length`, in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCompletionRule:
    """The rule that makes a batch complete: a number of steps, or of ended trajectories.

    With `ends_trajectory`, the last step of the batch must also end a trajectory.
    """

    steps: int | None = None
    trajectories: int | None = None
    ends_trajectory: bool = False


@dataclass(frozen=True, slots=True)
class ActorCriticParameters:
    """The parameters of every on-policy algorithm of this package."""

    changeable: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "anneal_lr", "anneal_floor", "anneal_ahead", "total_steps", "gamma", "gae_lambda", "reward_scale"}
        | {"max_grad_norm", "norm_adv"}
    )
    """The others determine the networks, the statistics or the batches."""
    network_forms: ClassVar[tuple[str, ...]] = ("onpolicy",)
    default_steps: ClassVar[int] = 2048

    learning_rate: float = option(number(0.0, 10.0), 3e-4, names=("pi_lr", "lr"), doc="Adam's step size")
    gamma: float = option(number(0.0, 1.0), 0.99, doc="discount per step")
    gae_lambda: float = option(number(0.0, 1.0), 0.95, names=("lam", "lambda"), doc="decay of advantage traces")
    max_grad_norm: float | None = option(gradient_norm, 0.5, doc="largest norm of the gradient; null, 0 or less: no limit")
    norm_adv: bool = option(
        flag,
        True,
        names=("normalize_advantage", "normalise_advantage"),
        doc="normalise the advantages of a batch to mean 0 and standard deviation 1",
    )
    steps_per_update: int | None = nullable(
        whole_number(1, 1 << 24),
        names=("steps_per_epoch",),
        doc="steps per update; null: 2048, unless episodes_per_update is given",
    )
    episodes_per_update: int | None = nullable(
        whole_number(1, 1 << 20), doc="trajectories per update, instead of steps_per_update"
    )
    rollout_length: int | None = nullable(
        whole_number(1, 1 << 20),
        names=("num_steps", "n_steps"),
        doc="most steps per segment; null: a 32nd of steps_per_update within [16, 128], or 128 where trajectories must end",
    )
    anneal_lr: bool = option(
        flag, False, doc="decrease the step sizes linearly over total_steps, to anneal_floor of their values"
    )
    anneal_floor: float = option(number(0.0, 1.0), 0.05, doc="share that remains after total_steps, so that learning continues")
    anneal_ahead: bool = option(flag, False, doc="a batch is trained at the schedule's value at its end; false: at its start")
    total_steps: int | None = nullable(whole_number(1), names=("total_timesteps",), doc="length of the schedule in steps")
    network: dict[str, object] | None = nullable(
        network_option,
        doc="kind of network with its options, such as {kind: mlp, hidden_sizes: [64, 64]}; null: mlp with hidden_sizes and "
        "activation",
    )
    hidden_sizes: tuple[int, ...] | None = nullable(
        sizes,
        names=("net_arch",),
        doc="hidden layers of the policy and of the value network, for the network mlp; null: [64, 64]",
    )
    activation: str | None = nullable(
        one_of(*ACTIVATIONS), names=("activation_fn",), doc="after each hidden layer, for the network mlp; null: tanh"
    )
    normalise_observations: bool = option(
        flag,
        True,
        names=("normalize_observations", "norm_obs"),
        doc="standardise observations by running moments (never one-hot ones)",
    )
    normalise_rewards: bool = option(
        flag,
        True,
        names=("normalize_rewards", "norm_reward"),
        doc="divide rewards by the running standard deviation of the discounted return, and clip them to ±10",
    )
    reward_scale: float = option(number(-MAX_NUMBER, MAX_NUMBER), 1.0, doc="factor of all rewards, applied first")
    squash: str | None = nullable(
        one_of("clip", "tanh"), doc="maps a continuous action into its bounds; null: tanh if it has bounds, else clip"
    )
    log_std_init: float = option(number(-20.0, 2.0), 0.0, doc="initial logarithm of the standard deviation of continuous actions")
    rms_prop: bool = option(flag, False, names=("use_rms_prop",), doc="RMSProp with a decay of 0.99, as in torch; false: Adam")
    adam_eps: float = option(number(LEAST_EPSILON, 1.0), 1e-5, names=("rms_prop_eps",), doc="epsilon of Adam or RMSProp")

    def __post_init__(self) -> None:
        if self.steps_per_update is not None and self.episodes_per_update is not None:
            raise parameter_error("episodes_per_update", "set episodes_per_update or steps_per_update, not both")
        self.check_schedule("anneal_lr", self.anneal_lr)
        self.chosen_network()

    def chosen_network(self) -> NetworkChoice:
        return choose_network(self.network, {"hidden_sizes": self.hidden_sizes, "activation": self.activation})

    def check_schedule(self, name: str, anneals: bool) -> None:
        if anneals and self.total_steps is None:
            raise parameter_error(name, "a schedule needs a length; set total_steps (total_timesteps), also for lin_")

    def batch(self) -> BatchCompletionRule:
        if self.episodes_per_update is not None:
            return BatchCompletionRule(trajectories=self.episodes_per_update)
        return BatchCompletionRule(steps=self.steps_per_update or self.default_steps)

    def segment_length(self) -> int:
        batch = self.batch()
        whole = batch.steps is None or batch.ends_trajectory
        return self.rollout_length or (LONGEST_SEGMENT if whole else min(max((batch.steps or 0) // 32, 16), LONGEST_SEGMENT))

    def minibatch_steps(self) -> int | None:
        """Return the size of the smallest minibatch in steps; None if the size of a batch is unknown."""
        return self.batch().steps

    def share_left(self, steps: int, batch: int) -> float:
        """Return the factor, at most 1, of a parameter that decreases over `total_steps`, for a batch after `steps` steps."""
        done = steps + batch * self.anneal_ahead
        return 1.0 if self.total_steps is None else max(self.anneal_floor, 1.0 - done / self.total_steps)

    def squash_for(self, action_space: Space) -> str:
        """Return ``clip`` or ``tanh``: the function that maps raw actions into the bounds of this action space."""
        boxes = [leaf for leaf in leaves_of(action_space).spaces if isinstance(leaf, BoxSpace)]
        bounded = all(box.bounded for box in boxes)
        if self.squash == "tanh" and not bounded:
            raise parameter_error(
                "squash",
                f"tanh maps actions into finite bounds, which {action_space!s:.80} does not have; "
                "use clip, or give the action space finite bounds",
            )
        return (self.squash or ("tanh" if bounded else "clip")) if boxes else "clip"

    def check_actions(self, name: str, action_space: Space) -> None:
        """Raise `ConfigError` if the parameters do not fit the action space of the algorithm `name`."""

    def policy(self, name: str, observation_space: ObservationSpace, action_space: Space) -> PolicySpec:
        """Return the specification of the policy of the algorithm `name`, whose head samples actions of the space."""
        self.check_actions(name, action_space)
        requirements = PolicyRequirements(
            algorithm=name,
            observation_space=observation_space,
            action_space=action_space,
            head=HeadParameters(head=stochastic_head(action_space), squash=self.squash_for(action_space)),
            normalise_observations=self.normalise_observations and feature_layout(observation_space).has_continuous,
        )
        return plan_policy(self.chosen_network(), requirements, *self.network_forms)


def entropy_weight(ent_coef: float | None, action_space: Space) -> float:
    """Return the weight of the entropy bonus. The default of `ent_coef` is 0 for action spaces with a Box, and else 0.01."""
    return ent_coef if ent_coef is not None else 0.0 if action_layout(action_space).numbers else 0.01


def actor_critic_entry(name: str, parameters: type[ActorCriticParameters], factory: str, **described: Any) -> AlgorithmEntry:
    """Return the registry entry of an on-policy algorithm. It supports all action spaces, unless `described` restricts them."""
    spaces = {"spaces": "any observations; any actions", **described}
    return own_entry(name, parameters, f"onpolicy.{factory}", kind="onpolicy", takes_masks=True, **spaces)


def cartpole_preset(pacing_lag: int, **parameters: object) -> dict[str, TaskPreset]:
    """Return settings that solve CartPole-v1 without normalisation."""
    settings = {**parameters, "normalise_observations": False, "normalise_rewards": False}
    return {"CartPole-v1": TaskPreset(settings, num_envs=4, actors=2, pacing_lag=pacing_lag, target_return=475.0)}
