"""PPO's entry in the registry of algorithms: its parameters, its policy, and tested settings. This module imports no torch.

A parameter can also be given by its name in RL4Sys, CleanRL or Stable-Baselines3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rl4sys_zmq.algorithms import like as tables
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import (
    ActorCriticParameters,
    BatchCompletionRule,
    entropy_weight,
    policy_planner,
)
from rl4sys_zmq.config.options import MAX_NUMBER, flag, number, one_of, option, optional, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, Staleness, TaskPreset, inherited
from rl4sys_zmq.learner.registry.like import Libraries
from rl4sys_zmq.values import Space
from rl4sys_zmq.values.action_layout import action_layout

DEFAULT_MINIBATCH = 128
RL4SYS_ITERS = 80
"""RL4Sys's default of `train_pi_iters` and of `train_v_iters`."""


@dataclass(frozen=True, slots=True)
class PPOSetting(ActorCriticParameters):
    """The parameters of an algorithm that is PPO with certain values of its parameters."""

    def ppo(self) -> PPOParameters:
        """Return the parameters of PPO that these parameters stand for."""
        raise NotImplementedError

    def shared(self) -> dict[str, Any]:
        """Return the parameters that all on-policy algorithms have, by name, with the size of the batch that is in force."""
        found = {f.name: getattr(self, f.name) for f in fields(ActorCriticParameters)}
        return {**found, "steps_per_update": self.batch().steps}


@dataclass(frozen=True, slots=True)
class PPOParameters(PPOSetting):
    """All parameters of `PPO`, with checks and defaults.

    A parameter has the name that CleanRL uses, if CleanRL has this parameter. Names of other projects are accepted as synonyms;
    `parameter_table` lists them.

    Names that only RL4Sys uses have the same meaning as in RL4Sys. `traj_per_epoch` counts steps. `train_pi_iters` and
    `train_v_iters` select RL4Sys's form of an update: first all gradient steps of the policy on the whole batch, then all those
    of the value network.

    Raises:
        ConfigError: If both `steps_per_update` and `episodes_per_update` are given, or if `anneal_lr` or `anneal_clip` is True
            without `total_steps`.
    """

    ignored: ClassVar[frozenset[str]] = frozenset({"buf_size"})
    """Keys that are accepted without effect, as in RL4Sys's PPO, so that configurations for RL4Sys run unchanged."""

    changeable: ClassVar[frozenset[str]] = (
        ActorCriticParameters.changeable
        | {"value_learning_rate", "value_lambda", "anneal_clip", "clip_coef", "clip_vloss", "value_clip", "target_kl"}
        | {"ent_coef", "vf_coef", "update_epochs", "value_epochs", "train_pi_iters", "train_v_iters", "norm_adv_over"}
        | {"minibatch_size", "batch_size", "num_minibatches", "value_clip_loss", "target_kl_over"}
    )
    """The parameters that can change in a running client. The others determine the networks, the statistics or the batches."""

    libraries: ClassVar[Libraries] = tables.PPO
    """The tables of other libraries' parameters, by the value of ``like``."""

    default_minibatches: ClassVar[int | None] = None
    """The number of minibatches if no parameter gives their number or size; None: `DEFAULT_MINIBATCH` gives their size."""

    value_learning_rate: float | None = option(
        optional(number(0.0, 10.0)), None, names=("vf_lr", "value_lr"), doc="step size of the value network; null: the same"
    )
    norm_adv_over: str = option(one_of("batch", "minibatch"), "batch", doc="the steps over which norm_adv normalises")
    value_lambda: float | None = option(
        optional(number(0.0, 1.0)), None, doc="decay of the traces in the value network's targets; null: gae_lambda"
    )
    clip_coef: float = option(
        number(0.0, MAX_NUMBER), 0.2, names=("clip_ratio", "clip_range"), doc="largest distance of the probability ratio from 1"
    )
    clip_vloss: bool = option(flag, False, doc="clip the value loss as well")
    value_clip: float | None = option(
        optional(number(0.0, MAX_NUMBER)),
        None,
        names=("clip_range_vf",),
        doc="largest distance of a value from the old one; null: clip_coef; a number turns clip_vloss on",
    )
    value_clip_loss: str = option(
        one_of("larger", "clipped"), "larger", doc="clipped value loss: the larger error, or that of the clipped value"
    )
    ent_coef: float | None = option(
        optional(number(0.0, MAX_NUMBER)),
        None,
        doc="weight of the entropy bonus; null: 0.01 for discrete actions, 0 for continuous ones",
    )
    vf_coef: float = option(number(0.0, MAX_NUMBER), 0.5, doc="weight of the value loss, half the mean squared error")
    critic: bool = option(flag, True, doc="train a value network; false: all values are 0, and nothing is expected after a cut")
    rpo_alpha: float = option(
        number(0.0, MAX_NUMBER),
        0.0,
        doc="as in RPO, the mean of continuous actions is moved in training by a uniform number up to this; 0: not moved",
    )
    target_kl: float | None = option(
        optional(number(0.0, MAX_NUMBER)),
        None,
        doc="end an update after the epoch whose mean approximate KL exceeds this; with train_pi_iters, end the policy's steps "
        "when the mean of old minus new log-probability exceeds 1.5 times this; null: never",
    )
    target_kl_over: str = option(
        one_of("pass", "last_minibatch", "minibatch"),
        "pass",
        doc="the KL that target_kl limits: of a pass or its last minibatch, after the pass; of each minibatch, before its step",
    )
    update_epochs: int = option(whole_number(1, 10_000), 10, names=("n_epochs", "epochs"), doc="passes over the batch")
    value_epochs: int | None = option(
        optional(whole_number(1, 10_000)),
        None,
        doc="passes that train the value network; null: update_epochs, ended early by target_kl; a number: exactly as many, "
        "in additional passes after the policy's have ended",
    )
    train_pi_iters: int | None = option(
        optional(whole_number(1, 10_000)),
        None,
        doc="as in RL4Sys: gradient steps on the policy with the whole batch; null: 80 if train_v_iters is given",
    )
    train_v_iters: int | None = option(
        optional(whole_number(1, 10_000)),
        None,
        doc="as in RL4Sys: gradient steps on the value network with the whole batch, after those on the policy; null: 80 if "
        "train_pi_iters is given",
    )
    minibatch_size: int | None = option(
        optional(whole_number(1, 1 << 24)),
        None,
        doc="approximate steps per gradient step: a batch is divided into equal minibatches; null: batch_size or 128, "
        "and the whole batch with train_pi_iters",
    )
    batch_size: int | None = option(
        optional(whole_number(1, 1 << 24)),
        None,
        doc="as in Stable-Baselines3, minibatch_size if that is not given; ignored with train_pi_iters, as in RL4Sys",
    )
    num_minibatches: int | None = option(
        optional(whole_number(1, 1 << 24)), None, doc="minibatches per pass; a number replaces minibatch_size"
    )
    steps_per_update: int | None = inherited(
        ActorCriticParameters,
        "steps_per_update",
        None,
        doc="steps per update; null: 2048, unless episodes_per_update or traj_per_epoch is given",
    )
    traj_per_epoch: int | None = option(
        optional(whole_number(1, 1 << 24)),
        None,
        doc="as in RL4Sys, a number of steps: an update begins at the end of the trajectory with which there are more; ignored "
        "if steps_per_update or episodes_per_update is given",
    )
    anneal_clip: bool = option(flag, False, doc="decrease clip_coef in the same way as anneal_lr the step sizes")

    def __post_init__(self) -> None:
        ActorCriticParameters.__post_init__(self)
        self.check_schedule("anneal_clip", self.anneal_clip)

    def ppo(self) -> PPOParameters:
        """Return these parameters."""
        return self

    @property
    def in_turn(self) -> bool:
        """True if the networks are trained in turn, as in RL4Sys: first the policy, then the value network."""
        return self.train_pi_iters is not None or self.train_v_iters is not None

    def batch(self) -> BatchCompletionRule:
        """Return the condition under which the data for one update (a batch) are complete."""
        if self.steps_per_update is None and self.episodes_per_update is None and self.traj_per_epoch is not None:
            return BatchCompletionRule(steps=self.traj_per_epoch + 1, ends_trajectory=True)
        return ActorCriticParameters.batch(self)

    def passes(self) -> list[tuple[bool, bool]]:
        """Return a list with one pair for each pass over the batch: (it trains the policy, it trains the value network)."""
        if self.in_turn:
            policy, value = self.iterations()
            return [(True, False)] * policy + [(False, True)] * value * self.critic
        values = (self.update_epochs if self.value_epochs is None else self.value_epochs) * self.critic
        return [(number < self.update_epochs, number < values) for number in range(max(self.update_epochs, values))]

    def iterations(self) -> tuple[int, int]:
        """Return the numbers of passes over the batch for the policy and for the value network, if they train in turn."""
        return self.train_pi_iters or RL4SYS_ITERS, self.train_v_iters or RL4SYS_ITERS

    def minibatches(self, steps: int) -> int:
        """Return the number of minibatches into which each pass divides a batch of `steps` steps."""
        size = self.minibatch_size or (None if self.in_turn else self.batch_size)
        count = self.num_minibatches or (None if size else self.default_minibatches)
        return count or max(1, round(steps / (size or (steps if self.in_turn else DEFAULT_MINIBATCH))))

    def minibatch_steps(self) -> int | None:
        """Return the number of steps of the smallest minibatch of a batch, or None if the size of a batch is unknown."""
        steps = self.batch().steps
        return None if steps is None else max(1, steps // self.minibatches(steps))

    def readings(self) -> list[str]:
        """Return one line of text for each parameter in use that comes from RL4Sys: its meaning here. The learner logs them."""
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
        """Return True if the value loss is clipped."""
        return not self.in_turn and (self.clip_vloss or self.value_clip is not None)

    def entropy(self, action_space: Space) -> float:
        """Return the weight of the entropy bonus: `ent_coef`, or its default for this kind of action space."""
        return entropy_weight(self.ent_coef, action_space)

    def check_actions(self, name: str, action_space: Space) -> None:
        """Check that `rpo_alpha` is given for continuous actions only.

        Args:
            name: The name of the algorithm.
            action_space: The action space.

        Raises:
            ConfigError: If `rpo_alpha` is above 0 and the actions are not continuous.
        """
        if self.rpo_alpha and not action_layout(action_space).numbers:
            raise ConfigError(
                f"{name}: rpo_alpha {self.rpo_alpha:g} moves the mean of continuous actions, but the action space is "
                f"{action_space}; use PPO without rpo_alpha",
                key="algorithm_parameters.rpo_alpha",
            )


PRESETS = {
    "CartPole-v1": TaskPreset(
        parameters={
            "steps_per_update": 1024,
            "rollout_length": 32,
            "minibatch_size": 512,
            "update_epochs": 10,
            "learning_rate": 2e-3,
            "anneal_lr": True,
            "anneal_clip": True,
            "total_steps": 100_000,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "ent_coef": 0.0,
            "normalise_observations": False,
            "normalise_rewards": False,
        },
        num_envs=4,
        actors=2,
        pacing_lag=1,
        target_return=475.0,
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
"""Settings that solve a task, by the Gymnasium id of the task.

The results below were measured with seeds 0 to 9, in one process that simulates `actors` × `num_envs` environments, segments of
`rollout_length` steps, and data that are exactly one policy version old. The process used one thread on two shared cores (Intel
Xeon). The score is the mean return of the last 100 training episodes, read at each update. The third column is the lowest score
after the target was reached, within as many further steps as were needed to reach the target:

======================  =====================  ==================================  =======================
task                    steps to the target    lowest score in as many steps more  CPU seconds of training
======================  =====================  ==================================  =======================
CartPole-v1 to 475      63.5 k to 73.2 k       475.3 (all ten end at 500)          1.5 to 1.9
LunarLander-v3 to 200   258 k to 638 k         200.2 (all ten end at 247 to 266)   6.2 to 16.2
======================  =====================  ==================================  =======================

The lowest score always occurred when the target was reached, or at the next update. No run fell below its target later. Other
seeds of LunarLander-v3 can take longer (docs/howto/tuning.md). After `total_steps`, each annealed parameter stays at 5 % of its
initial value, so that training continues.
"""

ENTRY = AlgorithmEntry(
    name="PPO",
    factory="rl4sys_zmq.algorithms.onpolicy.ppo:PPO",
    summary="Proximal policy optimisation, for discrete and continuous actions.",
    kind="onpolicy",
    parameters=PPOParameters,
    plan=policy_planner("PPO", PPOParameters),
    staleness=Staleness(max_policy_lag=4, correction="probability ratios, which are clipped; V-trace with on_lag: correct"),
    presets=PRESETS,
    extra="learner",
    spaces="any observations; any actions",
    reference="Schulman et al. 2017, Proximal policy optimization algorithms",
    takes_masks=True,
)
