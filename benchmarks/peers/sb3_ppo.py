"""PPO of Stable-Baselines3 in one process, with rl-zoo's values for the task, until the mean return of 100 episodes is reached.

    python benchmarks/peers/sb3_ppo.py --env CartPole-v1 --seed 1

The clock starts at the first step of the environments. One torch thread, which is faster here than two.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
WINDOW = 100
VALUES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": LinearSchedule(0.001, 0.0, 1.0),
        "clip_range": LinearSchedule(0.2, 0.0, 1.0),
        "total": 100_000,
    },
    "LunarLander-v3": {
        "n_envs": 16,
        "n_steps": 1024,
        "batch_size": 64,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "n_epochs": 4,
        "ent_coef": 0.01,
        "total": 1_000_000,
    },
    "Pendulum-v1": {  # without use_sde, which ours does not have
        "n_envs": 4,
        "n_steps": 1024,
        "batch_size": 64,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 0.001,
        "total": 100_000,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(VALUES), default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=95.0)
    parser.add_argument("--steps", type=int, help="train for this number of steps, and print the return of each episode")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = seconds = 0.0
    taken = 0
    reached = False
    ended: list[tuple[int, float]] = []

    def watch(names: dict[str, Any], _: dict[str, Any]) -> bool:
        """Called after each step of all environments: stops at the target or at the limit."""
        nonlocal began, seconds, taken, reached
        ended.extend((names["self"].num_timesteps, float(i["episode"]["r"])) for i in names["infos"] if "episode" in i)
        began = began or time.perf_counter()
        seconds, taken = time.perf_counter() - began, names["self"].num_timesteps
        episodes = names["self"].ep_info_buffer or ()
        reached = len(episodes) >= WINDOW and bool(np.mean([e["r"] for e in episodes]) >= TARGETS.get(options.env, np.inf))
        return not reached and seconds < options.limit_s

    values = dict(VALUES[options.env])
    envs = make_vec_env(options.env, n_envs=values.pop("n_envs"), seed=options.seed)
    total = values.pop("total")
    if options.steps is not None:
        total = options.steps
    PPO("MlpPolicy", envs, seed=options.seed, device="cpu", **values).learn(total, callback=watch)
    print(
        json.dumps(
            {
                "peer": "Stable-Baselines3 PPO, one process",
                "seconds": round(seconds, 2),
                "steps": taken,
                "reached": reached,
                "steps_per_s": round(taken / seconds),
                **({"episodes": ended} if options.steps is not None else {}),
            }
        )
    )


if __name__ == "__main__":
    main()
