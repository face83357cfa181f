"""REINFORCE's entry in the registry of algorithms, and its parameters. This module imports no torch.

REINFORCE is PPO with a single gradient step of the policy on a batch of whole episodes. Without a baseline, the advantage of an
action is the discounted return after it. With a baseline, which is a value network, it is the generalized advantage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import (
    LONGEST_SEGMENT,
    ActorCriticParameters,
    BatchCompletionRule,
    policy_planner,
)
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters, PPOSetting
from rl4sys_zmq.config.options import flag, option, optional, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, Staleness, TaskPreset, inherited
from rl4sys_zmq.values import DiscreteSpace, Space

WHOLE_EPISODE = 4096
"""The default of `rollout_length` without a baseline, in steps. Then almost every segment is a whole episode."""


@dataclass(frozen=True, slots=True)
class REINFORCEParameters(PPOSetting):
    """All parameters of `REINFORCE`. Names that RL4Sys uses have the same meaning as in RL4Sys.

    Raises:
        ConfigError: If both `steps_per_update` and `episodes_per_update` are given.
    """

    changeable: ClassVar[frozenset[str]] = ActorCriticParameters.changeable | {"value_learning_rate", "train_vf_iters"}
    default_episodes: ClassVar[int] = 12

    gae_lambda: float = inherited(
        ActorCriticParameters, "gae_lambda", 0.97, doc="decay of advantage traces; 1 without a baseline, whatever is given"
    )
    learning_rate: float = inherited(ActorCriticParameters, "learning_rate", 3e-3)
    max_grad_norm: float | None = inherited(ActorCriticParameters, "max_grad_norm", None)
    with_vf_baseline: bool = option(
        flag, False, names=("baseline",), doc="subtract the estimate of a value network from each return"
    )
    value_learning_rate: float | None = inherited(PPOParameters, "value_learning_rate", 1e-3)
    train_vf_iters: int = option(
        whole_number(1, 10_000), 80, doc="gradient steps of the value network on the whole batch, if there is one"
    )
    discrete: bool | None = option(
        optional(flag), None, doc="as in RL4Sys, true for discrete actions; null: not compared with the action space"
    )
    steps_per_update: int | None = inherited(
        ActorCriticParameters, "steps_per_update", None, doc="steps per update, instead of episodes_per_update"
    )
    episodes_per_update: int | None = inherited(
        ActorCriticParameters,
        "episodes_per_update",
        None,
        names=("traj_per_epoch",),
        doc="trajectories per update; null: 12, unless steps_per_update is given",
    )
    rollout_length: int | None = inherited(
        ActorCriticParameters,
        "rollout_length",
        None,
        doc="most steps per segment; null: 128 with a baseline, else 4096, because the return of a cut episode ends at the cut",
    )

    def batch(self) -> BatchCompletionRule:
        """Return the condition under which the data for one update (a batch) are complete."""
        if self.steps_per_update is not None:
            return BatchCompletionRule(steps=self.steps_per_update)
        return BatchCompletionRule(trajectories=self.episodes_per_update or self.default_episodes)

    def segment_length(self) -> int:
        """Return the largest number of steps that an actor should put into one segment."""
        return self.rollout_length or (LONGEST_SEGMENT if self.with_vf_baseline else WHOLE_EPISODE)

    def ppo(self) -> PPOParameters:
        """Return the parameters of PPO with which it trains the policy once and then the value network, if there is one."""
        given = {**self.shared(), "episodes_per_update": self.batch().trajectories}
        if not self.with_vf_baseline:
            given["gae_lambda"] = 1.0
        return PPOParameters(
            **given, critic=self.with_vf_baseline, value_learning_rate=self.value_learning_rate, value_lambda=1.0,
            clip_coef=math.inf, train_pi_iters=1, train_v_iters=self.train_vf_iters,
        )  # fmt: skip

    def check_actions(self, name: str, action_space: Space) -> None:
        """Check that `discrete`, if given, agrees with the action space.

        Args:
            name: The name of the algorithm.
            action_space: The action space.

        Raises:
            ConfigError: If it does not agree.
        """
        if self.discrete is not None and self.discrete is not isinstance(action_space, DiscreteSpace):
            raise ConfigError(
                f"algorithm_parameters.discrete: it is {str(self.discrete).lower()}, but the action space of {name} is "
                f"{action_space}; omit it, or correct the action space",
                key="algorithm_parameters.discrete",
            )

    def readings(self) -> list[str]:
        """Return one line of text for each parameter in use that comes from RL4Sys: its meaning here. The learner logs them."""
        lines = []
        if self.steps_per_update is None and self.episodes_per_update is not None:
            lines.append(f"episodes_per_update {self.episodes_per_update} (traj_per_epoch): ended trajectories per update")
        if self.with_vf_baseline:
            lines.append(
                f"with_vf_baseline: one gradient step of the policy, then {self.train_vf_iters} of the value network, "
                "each on the whole batch"
            )
        return lines


ENTRY = AlgorithmEntry(
    name="REINFORCE",
    factory="rl4sys_zmq.algorithms.onpolicy.ppo:REINFORCE",
    summary="Monte Carlo policy gradients on whole episodes, with or without a baseline, for all actions.",
    kind="onpolicy",
    parameters=REINFORCEParameters,
    plan=policy_planner("REINFORCE", REINFORCEParameters),
    staleness=Staleness(max_policy_lag=4, correction="probability ratios, which are not clipped"),
    presets={
        "CartPole-v1": TaskPreset(
            parameters={
                "episodes_per_update": 12,
                "learning_rate": 5e-3,
                "anneal_lr": True,
                "total_steps": 200_000,
                "gamma": 0.99,
                "normalise_observations": False,
                "normalise_rewards": False,
            },
            num_envs=4,
            actors=2,
            pacing_lag=0,
            target_return=475.0,
        ),
    },
    extra="learner",
    spaces="any observations; any actions",
    reference="Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning",
    takes_masks=True,
)
