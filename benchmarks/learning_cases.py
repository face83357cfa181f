"""The cases of `learning.py`: what is trained on which environment for how many steps, and what stands beside it.

Values of a case with ``fair=True`` are equal on both sides, as far as both libraries have them. They are those of rl-zoo, without
its state-dependent exploration and its normalisation of observations. The other cases have this library's tested settings on our
side and rl-zoo's on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "Case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training.

    Attributes:
        algorithm: Its name in this library.
        env: The id of the environment.
        steps: Environment steps of both sides.
        values: Our parameters. None: the algorithm's tested settings for the environment.
        num_envs: Environments in our one actor process.
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
    peer: str | None = None
    peer_values: dict[str, Any] = field(default_factory=dict)
    fair: bool = False
    engine: str = "thread"
    reference: str = ""


def _ppo(
    env: str, steps: int, *, n_envs: int, n_steps: int, batch: int, epochs: int, gamma: float, gae: float,
    ent: float = 0.0, rate: float = 3e-4, falling: bool = False, reference: str = "",
) -> Case:  # fmt: skip
    ours: dict[str, Any] = {
        "steps_per_update": n_envs * n_steps, "minibatch_size": batch, "update_epochs": epochs, "gamma": gamma, "gae_lambda": gae,
        "ent_coef": ent, "learning_rate": rate, "anneal_lr": falling, "anneal_clip": falling, "total_steps": steps,
        "normalise_observations": False, "normalise_rewards": False,
    }  # fmt: skip
    theirs: dict[str, Any] = {
        "n_envs": n_envs, "n_steps": n_steps, "batch_size": batch, "n_epochs": epochs, "gamma": gamma, "gae_lambda": gae,
        "ent_coef": ent, "learning_rate": f"lin_{rate}" if falling else rate, "clip_range": "lin_0.2" if falling else 0.2,
    }  # fmt: skip
    return Case(
        algorithm="PPO", env=env, steps=steps, values=ours, num_envs=n_envs, peer="PPO", peer_values=theirs, fair=True,
        reference=reference,
    )  # fmt: skip


def _dqn(
    env: str, steps: int, *, rate: float, batch: int, buffer: int, starts: int, gamma: float, target: int, every: int,
    gradients: int, fraction: float, final: float, reference: str = "",
) -> Case:  # fmt: skip
    ours: dict[str, Any] = {
        "learning_rate": rate, "batch_size": batch, "buffer_size": buffer, "learning_starts": starts, "gamma": gamma,
        "target_network_frequency": target, "train_frequency": every, "gradient_steps": gradients,
        "exploration_fraction": fraction, "epsilon_min": final, "total_steps": steps,
        "hidden_sizes": [256, 256], "n_step": 1, "double_q": False,
        "huber_delta": 1.0, "adam_epsilon": 1e-8, "rollout_length": min(every, 32),
    }  # fmt: skip
    theirs: dict[str, Any] = {
        "learning_rate": rate, "batch_size": batch, "buffer_size": buffer, "learning_starts": starts, "gamma": gamma,
        "target_update_interval": target, "train_freq": every, "gradient_steps": gradients, "exploration_fraction": fraction,
        "exploration_final_eps": final, "policy_kwargs": {"net_arch": [256, 256]},
    }  # fmt: skip
    return Case(
        algorithm="DQN", env=env, steps=steps, values=ours, peer="DQN", peer_values=theirs, fair=True, reference=reference
    )


def _off_policy(algorithm: str, env: str, steps: int, values: dict[str, Any], reference: str = "") -> Case:
    """A case of SAC, TD3 or DDPG: the names of the values are those of both libraries, but for two."""
    theirs = {key: value for key, value in values.items() if key not in ("hidden_sizes", "rollout_length")}
    theirs = {"batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_starts": 1000, "learning_rate": 3e-4, **theirs}
    theirs["policy_kwargs"] = {"net_arch": values.get("hidden_sizes", [256, 256])}
    both = {"algorithm": algorithm, "peer": algorithm, "values": values, "peer_values": theirs}
    return Case(env=env, steps=steps, fair=True, reference=reference, **both)


_PENDULUM: dict[str, Any] = {"learning_rate": 1e-3, "hidden_sizes": [64, 64], "rollout_length": 16}
_DETERMINISTIC = {**_PENDULUM, "gamma": 0.98, "learning_starts": 1000}
_LARGE = {"learning_rate": 3e-4, "learning_starts": 10_000, "hidden_sizes": [256, 256]}
_A2C_CARTPOLE = {"n_envs": 8}

CASES: dict[str, Case] = {
    "ppo-cartpole": _ppo(
        "CartPole-v1", 100_000, n_envs=8, n_steps=32, batch=256, epochs=20, gamma=0.98, gae=0.8, rate=1e-3, falling=True
    ),
    "ppo-acrobot": _ppo("Acrobot-v1", 200_000, n_envs=16, n_steps=256, batch=64, epochs=4, gamma=0.99, gae=0.94),
    "ppo-lunarlander": _ppo(
        "LunarLander-v3", 300_000, n_envs=16, n_steps=1024, batch=64, epochs=4, gamma=0.999, gae=0.98, ent=0.01,
        reference="SLM-Lab 5: 183 at 300 k",
    ),
    "ppo-pendulum": _ppo("Pendulum-v1", 100_000, n_envs=4, n_steps=1024, batch=64, epochs=10, gamma=0.9, gae=0.95, rate=1e-3),
    "ppo-lunarlander-continuous": _ppo(
        "LunarLanderContinuous-v3", 300_000, n_envs=16, n_steps=1024, batch=64, epochs=4, gamma=0.999, gae=0.98, ent=0.01
    ),
    "ppo-halfcheetah": _ppo("HalfCheetah-v5", 200_000, n_envs=1, n_steps=2048, batch=64, epochs=10, gamma=0.99, gae=0.95),
    "dqn-cartpole": _dqn(
        "CartPole-v1", 50_000, rate=2.3e-3, batch=64, buffer=100_000, starts=1000, gamma=0.99, target=10, every=256,
        gradients=128, fraction=0.16, final=0.04,
    ),
    "dqn-acrobot": _dqn(
        "Acrobot-v1", 100_000, rate=6.3e-4, batch=128, buffer=50_000, starts=100, gamma=0.99, target=250, every=4, gradients=4,
        fraction=0.12, final=0.1, reference="rl-zoo: -77, greedy",
    ),
    "dqn-mountaincar": _dqn(
        "MountainCar-v0", 120_000, rate=4e-3, batch=128, buffer=10_000, starts=1000, gamma=0.98, target=600, every=16,
        gradients=8, fraction=0.2, final=0.07, reference="rl-zoo: -101, greedy",
    ),
    "dqn-lunarlander": _dqn(
        "LunarLander-v3", 100_000, rate=6.3e-4, batch=128, buffer=50_000, starts=100, gamma=0.99, target=250, every=4,
        gradients=4, fraction=0.12, final=0.1,
    ),
    "sac-pendulum": _off_policy("SAC", "Pendulum-v1", 20_000, {**_PENDULUM, "learning_starts": 100}, "rl-zoo: -157, greedy"),
    "td3-pendulum": _off_policy("TD3", "Pendulum-v1", 20_000, _DETERMINISTIC, "rl-zoo: -152, greedy"),
    "ddpg-pendulum": _off_policy("DDPG", "Pendulum-v1", 20_000, _DETERMINISTIC, "rl-zoo: -152, greedy"),
    "sac-lunarlander-continuous": _off_policy(
        "SAC", "LunarLanderContinuous-v3", 200_000, _LARGE, "SLM-Lab 5: 125 at 300 k"
    ),
    "sac-halfcheetah": _off_policy("SAC", "HalfCheetah-v5", 200_000, _LARGE),
    "tqc-pendulum": Case(
        algorithm="sb3:TQC", env="Pendulum-v1", steps=20_000, values={"learning_rate": 1e-3}, engine="process", peer="TQC",
        peer_values={"learning_rate": 1e-3}, reference="rl-zoo: -151, greedy",
    ),
    "a2c-cartpole": Case(
        algorithm="A2C", env="CartPole-v1", steps=200_000, num_envs=8, peer="A2C", peer_values=_A2C_CARTPOLE,
        reference="rl-zoo: 500 at 500 k, greedy",
    ),
    "a3c-cartpole": Case(algorithm="A3C", env="CartPole-v1", steps=200_000, num_envs=8),
    "reinforce-cartpole": Case(
        algorithm="REINFORCE", env="CartPole-v1", steps=200_000, num_envs=8, reference="SLM-Lab 5: 483"
    ),
    "impala-cartpole": Case(algorithm="IMPALA", env="CartPole-v1", steps=200_000, num_envs=8),
    "rpo-pendulum": Case(algorithm="RPO", env="Pendulum-v1", steps=100_000, num_envs=4),
    "sac-cartpole": Case(
        algorithm="SAC", env="CartPole-v1", steps=50_000, reference="SLM-Lab 5: 406",
        values={
            "learning_rate": 1e-3, "hidden_sizes": [64, 64], "target_entropy_ratio": 0.3, "rollout_length": 16,
            "train_frequency": 2,
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
