"""PPO's parameters: their names in four projects, their ranges, their defaults and what follows from one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.parameters import parameter, read_parameters
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, Space

__all__ = ["PPOParameters", "read_ppo_parameters"]

READ_ELSEWHERE = frozenset(
    {"input_size", "act_dim", "seed", "continuous", "act_limit", "observation_space", "action_space"}
    | {"max_policy_lag", "on_lag", "pacing_lag", "publish_every_updates"}
    | {"buf_size"}  # RL4Sys's PPO takes it and makes no use of it; its configurations are to run unchanged
)

DEFAULT_STEPS = 2048
LONGEST_SEGMENT = 128
"""Longer segments come later and older, and are no better: those of one episode are joined again in a batch."""


@dataclass(frozen=True, slots=True)
class PPOParameters:
    """Every parameter of `PPO`. The first name is CleanRL's where it has one; `parameter_table` lists the synonyms."""

    learning_rate: float = parameter(3e-4, "Adam's step size", low=0.0, high=10.0, names=("pi_lr", "lr"))
    value_learning_rate: float | None = parameter(
        None, "the value network's step size; null: the same", kind="float", low=0.0, high=10.0, names=("vf_lr", "value_lr")
    )
    gamma: float = parameter(0.99, "the discount per step", low=0.0, high=1.0)
    gae_lambda: float = parameter(0.95, "the decay of advantage traces", low=0.0, high=1.0, names=("lam", "lambda"))
    clip_coef: float = parameter(0.2, "how far the probability ratio may leave 1", low=0.0, names=("clip_ratio", "clip_range"))
    clip_vloss: bool = parameter(False, "whether the value loss is clipped as well")
    value_clip: float | None = parameter(
        None, "how far a value may leave the old one; null: clip_coef; a number turns clip_vloss on", kind="float", low=0.0,
        names=("clip_range_vf",),
    )  # fmt: skip
    ent_coef: float | None = parameter(
        None, "weight of the entropy bonus; null: 0.01 for discrete actions, 0 for continuous ones", kind="float", low=0.0
    )
    vf_coef: float = parameter(0.5, "weight of the value loss, which is half the mean square", low=0.0)
    max_grad_norm: float | None = parameter(0.5, "the gradient's greatest norm; null: any", low=0.0, high=1e18, optional=True)
    target_kl: float | None = parameter(
        None, "an update ends after the epoch whose mean approximate KL exceeds this; null: never", kind="float", low=0.0
    )
    update_epochs: int = parameter(
        10, "passes over the batch", low=1, high=10_000, names=("n_epochs", "epochs", "train_pi_iters")
    )
    value_epochs: int | None = parameter(
        None,
        "passes that train the value network; null: update_epochs, ending with them at target_kl; a number: exactly so many, "
        "in passes of its own where the policy's have ended",
        kind="int", low=1, high=10_000, names=("train_v_iters",),
    )  # fmt: skip
    minibatch_size: int = parameter(
        128,
        "steps per gradient step, about: a batch is divided into equal minibatches",
        low=1,
        high=1 << 24,
        names=("batch_size",),
    )
    num_minibatches: int | None = parameter(
        None, "minibatches per pass; a number replaces minibatch_size", kind="int", low=1, high=1 << 24
    )
    norm_adv: bool = parameter(
        True, "whether a batch's advantages are brought to mean 0 and deviation 1",
        names=("normalize_advantage", "normalise_advantage"),
    )  # fmt: skip
    steps_per_epoch: int | None = parameter(
        None, "steps per update; null: 2048, unless traj_per_epoch is given", kind="int", low=1, high=1 << 24
    )
    traj_per_epoch: int | None = parameter(
        None, "trajectories per update, instead of steps_per_epoch", kind="int", low=1, high=1 << 20
    )
    rollout_length: int | None = parameter(
        None,
        "steps per segment at most; null: a 32nd of steps_per_epoch within [16, 128], or 128 with traj_per_epoch",
        kind="int", low=1, high=1 << 20, names=("num_steps", "n_steps"),
    )  # fmt: skip
    anneal_lr: bool = parameter(False, "whether step sizes fall linearly over total_steps, down to anneal_floor of themselves")
    anneal_clip: bool = parameter(False, "whether clip_coef falls likewise")
    anneal_floor: float = parameter(0.05, "the share that is left after total_steps: learning goes on", low=0.0, high=1.0)
    total_steps: int | None = parameter(
        None, "the length of the schedule in steps", kind="int", low=1, names=("total_timesteps",)
    )
    hidden_sizes: tuple[int, ...] = parameter((64, 64), "hidden layers of the policy and of the value network")
    activation: str = parameter("tanh", "after each hidden layer", choices=ACTIVATIONS, names=("activation_fn",))
    normalise_observations: bool = parameter(
        True, "whether observations are standardised by running moments (never one-hot ones)",
        names=("normalize_observations", "norm_obs"),
    )  # fmt: skip
    normalise_rewards: bool = parameter(
        True, "whether rewards are divided by the running deviation of the discounted return, and clipped to ±10",
        names=("normalize_rewards", "norm_reward"),
    )  # fmt: skip
    reward_scale: float = parameter(1.0, "what rewards are multiplied by, first of all")
    squash: str | None = parameter(
        None, "how a continuous action meets its bounds; null: tanh where it has bounds, else clip", kind="str",
        choices=("clip", "tanh"),
    )  # fmt: skip
    log_std_init: float = parameter(0.0, "logarithm of the first standard deviation of continuous actions", low=-20.0, high=2.0)
    adam_eps: float = parameter(1e-5, "Adam's epsilon", low=0.0, high=1.0)

    def steps(self) -> int | None:
        """Steps per update; None when trajectories are counted."""
        return None if self.traj_per_epoch is not None else self.steps_per_epoch or DEFAULT_STEPS

    def segment_length(self) -> int:
        """At most how many steps an actor should put into one segment."""
        steps = self.steps()
        return self.rollout_length or (LONGEST_SEGMENT if steps is None else min(max(steps // 32, 16), LONGEST_SEGMENT))

    def clip_values(self) -> bool:
        """Whether the value loss is clipped."""
        return self.clip_vloss or self.value_clip is not None

    def entropy(self, action_space: Space) -> float:
        """The weight of the entropy bonus."""
        return self.ent_coef if self.ent_coef is not None else 0.0 if isinstance(action_space, BoxSpace) else 0.01

    def squash_for(self, action_space: Space) -> str:
        """``clip`` or ``tanh``."""
        return self.squash or ("tanh" if isinstance(action_space, BoxSpace) and action_space.bounded else "clip")


def read_ppo_parameters(given: Mapping[str, object]) -> PPOParameters:
    """Reads and cross-checks PPO's parameters.

    Raises:
        ConfigError: for what `read_parameters` refuses, for two sizes of one batch, or for a schedule without a length.
    """
    p = read_parameters(PPOParameters, given, algorithm="PPO", extra=READ_ELSEWHERE)
    if p.steps_per_epoch is not None and p.traj_per_epoch is not None:
        raise ConfigError(
            "algorithm_parameters.traj_per_epoch: a batch is counted in trajectories or in steps_per_epoch, not in both",
            key="algorithm_parameters.traj_per_epoch",
        )
    if (p.anneal_lr or p.anneal_clip) and p.total_steps is None:
        name = "anneal_lr" if p.anneal_lr else "anneal_clip"
        raise ConfigError(
            f"algorithm_parameters.{name}: a schedule needs its length: set total_steps", key=f"algorithm_parameters.{name}"
        )
    return p
