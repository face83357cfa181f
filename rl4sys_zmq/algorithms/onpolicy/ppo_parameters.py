"""PPO's entry in the registry of algorithms, and its parameters. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import (
    ActorCriticParameters,
    BatchCompletionRule,
    actor_critic_entry,
    cartpole_preset,
)
from rl4sys_zmq.config.options import MAX_NUMBER, flag, nullable, number, one_of, option, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import Staleness, TaskPreset, inherited
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.values import Space
from rl4sys_zmq.values.action_layout import action_layout

DEFAULT_MINIBATCH = 128
RL4SYS_ITERS = 80
"""RL4Sys's default of `train_pi_iters` and of `train_v_iters`."""


@dataclass(frozen=True, slots=True)
class PPOVariantParameters(ActorCriticParameters):
    """The parameters of an algorithm that is PPO with fixed values of some parameters."""

    fixed: ClassVar[Mapping[str, Any]] = {}
    """The values of those parameters of PPO that the algorithm does not have."""

    def ppo(self) -> PPOParameters:
        """Return the equivalent parameters of PPO."""
        known = {f.name for f in fields(PPOParameters)}
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name in known}
        return PPOParameters(**{**own, "steps_per_update": self.batch().steps, **self.fixed})


@dataclass(frozen=True, slots=True)
class PPOParameters(PPOVariantParameters):
    """All parameters of `PPO`, by CleanRL's names. Names that only RL4Sys uses mean what they mean there."""

    ignored: ClassVar[frozenset[str]] = frozenset({"buf_size"})
    """Accepted without effect, so that configurations for RL4Sys run unchanged."""

    changeable: ClassVar[frozenset[str]] = (
        ActorCriticParameters.changeable
        | {"value_learning_rate", "value_lambda", "anneal_clip", "clip_coef", "clip_vloss", "value_clip", "target_kl"}
        | {"ent_coef", "vf_coef", "update_epochs", "value_epochs", "train_pi_iters", "train_v_iters", "norm_adv_over"}
        | {"minibatch_size", "batch_size", "num_minibatches", "value_clip_loss", "target_kl_over"}
    )
    libraries: ClassVar[Libraries] = tables.PPO
    default_minibatches: ClassVar[int | None] = None
    """None: `DEFAULT_MINIBATCH` gives their size."""

    value_learning_rate: float | None = nullable(
        number(0.0, 10.0), names=("vf_lr", "value_lr"), doc="step size of the value network; null: the same"
    )
    norm_adv_over: str = option(one_of("batch", "minibatch"), "batch", doc="the steps over which norm_adv normalises")
    value_lambda: float | None = nullable(
        number(0.0, 1.0), doc="decay of the traces in the value network's targets; null: gae_lambda"
    )
    clip_coef: float = option(
        number(0.0, MAX_NUMBER), 0.2, names=("clip_ratio", "clip_range"), doc="largest distance of the probability ratio from 1"
    )
    clip_vloss: bool = option(flag, False, doc="clip the value loss as well")
    value_clip: float | None = nullable(
        number(0.0, MAX_NUMBER),
        names=("clip_range_vf",),
        doc="largest distance of a value from the old one; null: clip_coef; a number turns clip_vloss on",
    )
    value_clip_loss: str = option(
        one_of("larger", "clipped"), "larger", doc="clipped value loss: the larger error, or that of the clipped value"
    )
    ent_coef: float | None = nullable(
        number(0.0, MAX_NUMBER), doc="weight of the entropy bonus; null: 0.01 for discrete actions, 0 for continuous ones"
    )
    vf_coef: float = option(number(0.0, MAX_NUMBER), 0.5, doc="weight of the value loss, half the mean squared error")
    critic: bool = option(flag, True, doc="train a value network; false: all values are 0, and nothing is expected after a cut")
    rpo_alpha: float = option(
        number(0.0, MAX_NUMBER),
        0.0,
        doc="as in RPO, the mean of continuous actions is moved in training by a uniform number up to this; 0: not moved",
    )
    target_kl: float | None = nullable(
        number(0.0, MAX_NUMBER),
        doc="end an update after the epoch whose mean approximate KL exceeds this; with train_pi_iters, end the policy's steps "
        "when the mean of old minus new log-probability exceeds 1.5 times this; null: never",
    )
    target_kl_over: str = option(
        one_of("pass", "last_minibatch", "minibatch"),
        "pass",
        doc="the KL that target_kl limits: of a pass or its last minibatch, after the pass; of each minibatch, before its step",
    )
    update_epochs: int = option(whole_number(1, 10_000), 10, names=("n_epochs", "epochs"), doc="passes over the batch")
    value_epochs: int | None = nullable(
        whole_number(1, 10_000),
        doc="passes that train the value network; null: update_epochs, ended early by target_kl; a number: exactly as many, "
        "in additional passes after the policy's have ended",
    )
    train_pi_iters: int | None = nullable(
        whole_number(1, 10_000),
        doc="as in RL4Sys: gradient steps on the policy with the whole batch; null: 80 if train_v_iters is given",
    )
    train_v_iters: int | None = nullable(
        whole_number(1, 10_000),
        doc="as in RL4Sys: gradient steps on the value network with the whole batch, after those on the policy; null: 80 if "
        "train_pi_iters is given",
    )
    minibatch_size: int | None = nullable(
        whole_number(1, 1 << 24),
        doc="approximate steps per gradient step: a batch is divided into equal minibatches; null: batch_size or 128, "
        "and the whole batch with train_pi_iters",
    )
    batch_size: int | None = nullable(
        whole_number(1, 1 << 24),
        doc="as in Stable-Baselines3, minibatch_size if that is not given; ignored with train_pi_iters, as in RL4Sys",
    )
    num_minibatches: int | None = nullable(whole_number(1, 1 << 24), doc="minibatches per pass; a number replaces minibatch_size")
    steps_per_update: int | None = inherited(
        ActorCriticParameters,
        "steps_per_update",
        None,
        doc="steps per update; null: 2048, unless episodes_per_update or traj_per_epoch is given",
    )
    traj_per_epoch: int | None = nullable(
        whole_number(1, 1 << 24),
        doc="as in RL4Sys, a number of steps: an update begins at the end of the trajectory with which there are more; ignored "
        "if steps_per_update or episodes_per_update is given",
    )
    anneal_clip: bool = option(flag, False, doc="decrease clip_coef in the same way as anneal_lr the step sizes")

    def __post_init__(self) -> None:
        ActorCriticParameters.__post_init__(self)
        self.check_schedule("anneal_clip", self.anneal_clip)

    def ppo(self) -> PPOParameters:
        return self

    @property
    def in_turn(self) -> bool:
        """True if the networks train one after the other, as in RL4Sys: first the policy."""
        return self.train_pi_iters is not None or self.train_v_iters is not None

    def batch(self) -> BatchCompletionRule:
        if self.steps_per_update is None and self.episodes_per_update is None and self.traj_per_epoch is not None:
            return BatchCompletionRule(steps=self.traj_per_epoch + 1, ends_trajectory=True)
        return ActorCriticParameters.batch(self)

    def iterations(self) -> tuple[int, int]:
        """Return the numbers of passes of the policy and of the value network, if they train one after the other."""
        return self.train_pi_iters or RL4SYS_ITERS, self.train_v_iters or RL4SYS_ITERS

    def minibatches(self, steps: int) -> int:
        """Return the number of minibatches of a batch of `steps` steps."""
        size = self.minibatch_size or (None if self.in_turn else self.batch_size)
        count = self.num_minibatches or (None if size else self.default_minibatches)
        return count or max(1, round(steps / (size or (steps if self.in_turn else DEFAULT_MINIBATCH))))

    def minibatch_steps(self) -> int | None:
        steps = self.batch().steps
        return None if steps is None else max(1, steps // self.minibatches(steps))

    def rl4sys_notes(self) -> list[str]:
        """Return a log line for each parameter in use that comes from RL4Sys, with its meaning in this library."""
        lines = []
        rule = self.batch()
        if rule.ends_trajectory:
            lines.append(
                f"traj_per_epoch {self.traj_per_epoch}: an update at the end of the trajectory that holds step {rule.steps}"
            )
        elif self.traj_per_epoch is not None:
            lines.append(f"traj_per_epoch {self.traj_per_epoch}: ignored, because the batch has a size of its own")
        if self.in_turn:
            policy, value = self.iterations()
            sizes = self.minibatch_size, self.num_minibatches, self.default_minibatches
            batch = "minibatches" if any(sizes) else "the whole batch"
            lines.append(
                f"train_pi_iters {policy}, train_v_iters {value}: passes over {batch}, the policy's first, "
                "each network with its own Adam"
            )
            if self.batch_size is not None:
                lines.append(f"batch_size {self.batch_size}: ignored, as by RL4Sys's PPO; minibatch_size is ours")
            unused = [
                name
                for name in ("ent_coef", "vf_coef", "clip_vloss", "value_clip", "value_clip_loss", "target_kl_over")
                if getattr(self, name) != getattr(type(self)(), name)
            ]
            if unused:
                lines.append(f"{' and '.join(unused)}: ignored, as by RL4Sys's PPO")
        return lines

    def clip_values(self) -> bool:
        return not self.in_turn and (self.clip_vloss or self.value_clip is not None)

    def check_actions(self, name: str, action_space: Space) -> None:
        if self.rpo_alpha and not action_layout(action_space).numbers:
            raise ConfigError(
                f"{name}: rpo_alpha {self.rpo_alpha:g} moves the mean of continuous actions, but the action space is "
                f"{action_space}; use PPO without rpo_alpha",
                key="algorithm_parameters.rpo_alpha",
            )


PRESETS = {
    **cartpole_preset(
        1,
        steps_per_update=1024,
        rollout_length=32,
        minibatch_size=512,
        update_epochs=10,
        learning_rate=2e-3,
        anneal_lr=True,
        anneal_clip=True,
        total_steps=100_000,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
    ),
    "LunarLander-v3": TaskPreset(
        parameters={
            "steps_per_update": 2048,
            "rollout_length": 64,
            "minibatch_size": 256,
            "update_epochs": 6,
            "learning_rate": 1e-3,
            "anneal_lr": True,
            "total_steps": 800_000,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "ent_coef": 0.01,
            "reward_scale": 0.1,
            "normalise_observations": False,
            "normalise_rewards": False,
        },
        num_envs=8,
        actors=2,
        pacing_lag=1,
        target_return=200.0,
    ),
}
"""Settings that solve a task, by its Gymnasium id. docs/howto/tuning.md has the results and the way they were measured."""

ENTRY = actor_critic_entry(
    "PPO",
    PPOParameters,
    "ppo:PPO",
    summary="Proximal policy optimisation, for discrete and continuous actions.",
    staleness=Staleness(max_policy_lag=4, correction="probability ratios, which are clipped; V-trace with on_lag: correct"),
    presets=PRESETS,
    reference="Schulman et al. 2017, Proximal policy optimization algorithms",
)
