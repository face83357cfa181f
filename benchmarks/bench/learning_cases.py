"""The cases of ``benchmarks/learning.py``: the algorithm, the environment, the number of steps, and the comparison of each.

Values of a case with ``fair=True`` are equal on both sides: ours has ``like: sb3``. They are those of rl-zoo, without its
state-dependent exploration and its normalisation of observations. The other cases have this library's tested settings on our
side and rl-zoo's on the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl4sys_zmq.testing.hidden_velocities import ENV as HIDDEN_VELOCITIES

__all__ = ["CASES", "COURIER", "PIXEL_CATCH", "Case"]

COURIER = "bench.courier:Courier-v0"
"""The id of `bench.courier.Courier`, whose module Gymnasium imports."""

PIXEL_CATCH = "bench.pixel_catch:PixelCatch-v0"
"""The id of `bench.pixel_catch.PixelCatch`, whose module Gymnasium imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training.

    Attributes:
        algorithm: Its name in this library.
        env: The id of the environment.
        steps: Environment steps of both sides.
        values: Our parameters. None: the algorithm's tested settings for the environment.
        num_envs: Environments in our one actor process.
        pacing_lag: The number of batches that our actor can collect ahead of the training. None: that of the tested settings, or
            the algorithm's default. With 0, collecting and training alternate, as in Stable-Baselines3.
        peer: The algorithm's name in Stable-Baselines3 or sb3-contrib, or None.
        peer_values: Its keyword arguments, as `peers/sb3.py` reads them.
        fair: True if both sides have the same values.
        engine: The engine that our side needs.
        reference: A figure from somewhere else, for the table.
    """

    algorithm: str
    env: str
    steps: int
    values: dict[str, Any] | None = None
    num_envs: int = 1
    pacing_lag: int | None = None
    peer: str | None = None
    peer_values: dict[str, Any] = field(default_factory=dict)
    fair: bool = False
    engine: str = "thread"
    reference: str = ""


def _equal(
    algorithm: str, env: str, steps: int, values: Mapping[str, Any], *, own: Mapping[str, Any] | None = None, **other: Any
) -> Case:
    """Return a case with equal values on both sides, by their names in Stable-Baselines3, with `n_envs` and `net_arch`.

    `own` has our parameters without a name there, `other` other attributes; its `peer_values` are other `policy_kwargs`.
    """
    network = {**({"net_arch": values["net_arch"]} if "net_arch" in values else {}), **other.pop("peer_values", {})}
    theirs = {key: value for key, value in values.items() if key != "net_arch"} | ({"policy_kwargs": network} if network else {})
    scheduled = {"total_timesteps": steps} if algorithm in ("A2C", "DQN", "PPO") else {}
    ours = {"like": "sb3", **values, **scheduled, **(own or {})}
    known: dict[str, Any] = {"num_envs": values.get("n_envs", 1), "peer": algorithm, "peer_values": theirs, "fair": True, **other}
    return Case(algorithm=algorithm, env=env, steps=steps, values=ours, **known)


def _dqn(env: str, steps: int, values: Mapping[str, Any], *, quantiles: int | None = None, reference: str = "") -> Case:
    """Return a case of DQN with networks of 256 and 256 units.

    With `quantiles`, it is QR-DQN on both sides, which has no limit on the gradient in sb3-contrib, and another epsilon of Adam.
    As in Stable-Baselines3, the actor has the weights of the last unit of training.
    """
    given = {**values, "net_arch": [256, 256]}
    own: dict[str, Any] = {"rollout_length": min(values["train_freq"], 32), "publish_every_updates": 1}
    both: dict[str, Any] = {"pacing_lag": 0, "reference": reference}
    if quantiles is None:
        return _equal("DQN", env, steps, given, own=own, **both)
    own |= {"distribution": "quantile", "quantiles": quantiles, "max_grad_norm": None}
    own["adam_epsilon"] = 0.01 / values["batch_size"]
    return _equal("DQN", env, steps, given, own=own, peer="QRDQN", peer_values={"n_quantiles": quantiles}, **both)


_LANDER: dict[str, Any] = {
    "n_envs": 16,
    "n_steps": 1024,
    "batch_size": 64,
    "n_epochs": 4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
_DQN_SMALL_STEPS: dict[str, Any] = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 100, "gamma": 0.99,
    "target_update_interval": 250, "train_freq": 4, "gradient_steps": 4, "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
}  # fmt: skip
_DQN_CARTPOLE: dict[str, Any] = {
    "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
    "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}  # fmt: skip
_PENDULUM: dict[str, Any] = {"learning_rate": 1e-3, "net_arch": [64, 64]}
_DETERMINISTIC = {**_PENDULUM, "gamma": 0.98, "learning_starts": 1000, "noise_std": 0.1}
_LARGE = {"learning_rate": 3e-4, "learning_starts": 10_000, "net_arch": [256, 256]}
_SHORT = {"rollout_length": 16}
_A2C_CARTPOLE = {"n_envs": 8}

CASES: dict[str, Case] = {
    "ppo-cartpole": _equal(
        "PPO", "CartPole-v1", 100_000, {
            "n_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
            "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
        },
    ),
    "ppo-acrobot": _equal(
        "PPO", "Acrobot-v1", 200_000,
        {"n_envs": 16, "n_steps": 256, "batch_size": 64, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.94},
    ),
    "ppo-lunarlander": _equal("PPO", "LunarLander-v3", 300_000, _LANDER, reference="SLM-Lab 5: 183 at 300 k"),
    "ppo-pendulum": _equal(
        "PPO", "Pendulum-v1", 100_000, {
            "n_envs": 4, "n_steps": 1024, "batch_size": 64, "n_epochs": 10, "gamma": 0.9, "gae_lambda": 0.95,
            "learning_rate": 1e-3,
        },
    ),
    "ppo-lunarlander-continuous": _equal("PPO", "LunarLanderContinuous-v3", 300_000, _LANDER),
    "ppo-halfcheetah": _equal(
        "PPO", "HalfCheetah-v5", 200_000,
        {"n_envs": 1, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95},
    ),
    "dqn-cartpole": _dqn("CartPole-v1", 50_000, _DQN_CARTPOLE),
    "qr-dqn-cartpole": _dqn("CartPole-v1", 50_000, _DQN_CARTPOLE, quantiles=10, reference="rl-zoo: 500, greedy"),
    "c51-cartpole": Case(
        algorithm="C51", env="CartPole-v1", steps=100_000, num_envs=4, reference="CleanRL: 481 at 500 k"
    ),
    "dqn-acrobot": _dqn("Acrobot-v1", 100_000, _DQN_SMALL_STEPS, reference="rl-zoo: -77, greedy"),
    "dqn-mountaincar": _dqn("MountainCar-v0", 120_000, reference="rl-zoo: -101, greedy", values={
        "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1000, "gamma": 0.98,
        "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8, "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07,
    }),
    "dqn-lunarlander": _dqn("LunarLander-v3", 100_000, _DQN_SMALL_STEPS),
    "sac-pendulum": _equal(
        "SAC", "Pendulum-v1", 20_000, {**_PENDULUM, "learning_starts": 100}, own=_SHORT, reference="rl-zoo: -157, greedy"
    ),
    "td3-pendulum": _equal("TD3", "Pendulum-v1", 20_000, _DETERMINISTIC, own=_SHORT, reference="rl-zoo: -152, greedy"),
    "ddpg-pendulum": _equal("DDPG", "Pendulum-v1", 20_000, _DETERMINISTIC, own=_SHORT, reference="rl-zoo: -152, greedy"),
    "sac-lunarlander-continuous": _equal(
        "SAC", "LunarLanderContinuous-v3", 120_000, _LARGE, own={"publish_every_updates": 1}, pacing_lag=0,
        reference="SLM-Lab 5: 125 at 300 k",
    ),
    "sac-halfcheetah": _equal("SAC", "HalfCheetah-v5", 200_000, _LARGE),
    "tqc-pendulum": Case(
        algorithm="sb3:TQC", env="Pendulum-v1", steps=20_000, values={"learning_rate": 1e-3}, engine="process", peer="TQC",
        peer_values={"learning_rate": 1e-3}, reference="rl-zoo: -151, greedy",
    ),
    "a2c-cartpole": Case(
        algorithm="A2C", env="CartPole-v1", steps=200_000, num_envs=8, peer="A2C", peer_values=_A2C_CARTPOLE,
        reference="rl-zoo: 500 at 500 k, greedy",
    ),
    "a2c-acrobot": _equal("A2C", "Acrobot-v1", 300_000, {"n_envs": 16}, reference="rl-zoo: -83 at 500 k, greedy"),
    "a2c-lunarlander": _equal(
        "A2C", "LunarLander-v3", 200_000, {"n_envs": 8, "gamma": 0.995, "ent_coef": 1e-5, "learning_rate": "lin_0.00083"}
    ),
    "a3c-cartpole": Case(algorithm="A3C", env="CartPole-v1", steps=200_000, num_envs=8),
    "reinforce-cartpole": Case(
        algorithm="REINFORCE", env="CartPole-v1", steps=200_000, num_envs=8, reference="SLM-Lab 5: 483"
    ),
    "impala-cartpole": Case(algorithm="IMPALA", env="CartPole-v1", steps=200_000, num_envs=8),
    "ppo-pixels": Case(
        algorithm="PPO", env=PIXEL_CATCH, steps=100_000, num_envs=8,
        values={
            "network": {"kind": "cnn", "channels": [16, 32], "kernels": [3, 3], "strides": [1, 1]}, "steps_per_update": 1024,
            "minibatch_size": 256, "update_epochs": 6, "gamma": 0.95, "gae_lambda": 0.9, "learning_rate": 1e-3,
            "ent_coef": 0.05, "normalise_rewards": False,
        },
    ),
    "ppo-frozenlake": Case(
        algorithm="PPO", env="FrozenLake-v1", steps=100_000, num_envs=8, reference="solved at 0.7",
        values={
            "steps_per_update": 1024, "rollout_length": 64, "minibatch_size": 256, "update_epochs": 8, "learning_rate": 2e-3,
            "anneal_lr": True, "total_steps": 100_000, "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.01,
            "normalise_rewards": False,
        },
    ),
    "ppo-taxi": Case(
        algorithm="PPO", env="Taxi-v4", steps=120_000, num_envs=8, reference="solved at 8; the best mean is 7.93",
        values={
            "steps_per_update": 2048, "rollout_length": 64, "minibatch_size": 512, "update_epochs": 10, "learning_rate": 2e-3,
            "anneal_lr": True, "total_steps": 120_000, "gamma": 0.98, "gae_lambda": 0.9, "ent_coef": 0.01, "reward_scale": 0.1,
            "normalise_rewards": False,
        },
    ),
    "ppo-dict-mask": Case(
        algorithm="PPO", env=COURIER, steps=40_000, num_envs=8, reference="the best is 6.7",
        values={
            "steps_per_update": 1024, "rollout_length": 64, "minibatch_size": 256, "update_epochs": 8, "learning_rate": 2e-3,
            "anneal_lr": True, "total_steps": 40_000, "gamma": 0.95, "gae_lambda": 0.9, "reward_scale": 0.2,
            "normalise_observations": False, "normalise_rewards": False,
        },
    ),
    "dqn-pixels": Case(
        algorithm="DQN", env=PIXEL_CATCH, steps=15_000, num_envs=2,
        values={
            "network": {"kind": "cnn", "channels": [16, 32], "kernels": [3, 3], "strides": [1, 1]}, "learning_rate": 1e-3,
            "batch_size": 32, "buffer_size": 50_000, "learning_starts": 500, "train_frequency": 1, "gamma": 0.95, "n_step": 1,
            "target_net_update_frequency": 100, "exploration_fraction": 0.2, "total_steps": 15_000, "rollout_length": 16,
        },
    ),
    "rpo-pendulum": Case(algorithm="RPO", env="Pendulum-v1", steps=100_000, num_envs=4),
    "sac-cartpole": Case(
        algorithm="SAC", env="CartPole-v1", steps=50_000, reference="SLM-Lab 5: 406",
        values={
            "learning_rate": 1e-3, "hidden_sizes": [64, 64], "target_entropy_ratio": 0.3, "rollout_length": 16,
            "train_frequency": 2,
        },
    ),
    "gru-cartpole": Case(
        algorithm="PPO", env=HIDDEN_VELOCITIES, steps=100_000, num_envs=8, reference="rl-zoo, PPO-LSTM: 500, greedy",
        values={
            "network": {"kind": "gru", "units": 64}, "steps_per_update": 1024, "rollout_length": 32, "minibatch_size": 512,
            "update_epochs": 10, "learning_rate": 2e-3, "anneal_lr": True, "anneal_clip": True, "total_steps": 100_000,
            "gamma": 0.98, "gae_lambda": 0.8, "ent_coef": 0.0,
        },
    ),
    "dqn-gru-cartpole": Case(
        algorithm="DQN", env=HIDDEN_VELOCITIES, steps=50_000, num_envs=4,
        values={
            "network": {"kind": "gru", "units": 64, "hidden_sizes": [64], "activation": "relu"}, "value_rescaling": True,
            "rollout_length": 32, "learning_rate": 3e-3, "learning_rate_final": 3e-4,
            "total_steps": 50_000, "gamma": 0.99, "n_step": 10, "batch_size": 512, "buffer_size": 50_000, "learning_starts": 1000,
            "train_frequency": 8, "target_net_update_frequency": 1, "tau": 0.01, "exploration_fraction": 0.15,
        },
    ),
    "trpo-cartpole": Case(
        algorithm="sb3:TRPO", env="CartPole-v1", steps=100_000, engine="process", num_envs=2, peer="TRPO",
        values={"n_steps": 1024, "batch_size": 512, "gamma": 0.98, "gae_lambda": 0.8, "cg_max_steps": 25, "n_critic_updates": 20},
        peer_values={
            "n_envs": 2, "n_steps": 512, "batch_size": 512, "gamma": 0.98, "gae_lambda": 0.8, "cg_max_steps": 25,
            "n_critic_updates": 20,
        },
        reference="rl-zoo: 500, greedy",
    ),
}  # fmt: skip
"""By name."""
