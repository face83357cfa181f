"""Parameters that are known to solve a task, for the demo, the benchmarks and the slow tests.

What was measured for PPO, in one process that simulates `actors` × `num_envs` environments, segments of `rollout_length`
and a policy lag of exactly one version; seeds 0 to 9, one thread, two shared cores (Intel Xeon). The score is the mean
return of the last 100 training episodes, read at each update:

======================  =====================  ==================================  =======================
task                    steps to the target    lowest score in as many steps more  CPU seconds of training
======================  =====================  ==================================  =======================
CartPole-v1 to 475      63.5 k to 73.2 k       475.3 (all ten end at 500)          1.5 to 1.9
LunarLander-v3 to 200   258 k to 638 k         200.2 (all ten end at 247 to 266)   6.2 to 16.2
======================  =====================  ==================================  =======================

The lowest score was always that of the crossing itself, or of the update after it: nothing fell back. The schedules go
on at their floor of 5 % after `total_steps`, so that training goes on, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """How to train one task.

    Attributes:
        parameters: ``algorithm_parameters``.
        num_envs: environments per actor process.
        actors: actor processes.
        pacing_lag: how many batches actors may collect ahead of the learner (the k of the pacing rule).
        target_return: the mean return of 100 episodes at which the task counts as solved.
    """

    parameters: Mapping[str, object] = field(repr=False)
    num_envs: int
    actors: int
    pacing_lag: int
    target_return: float


PRESETS: dict[tuple[str, str], Preset] = {
    ("CartPole-v1", "PPO"): Preset(
        parameters={
            "steps_per_epoch": 1024,
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
    ("LunarLander-v3", "PPO"): Preset(
        parameters={
            "steps_per_epoch": 2048,
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
    ("CartPole-v1", "DQN"): Preset(
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
}
