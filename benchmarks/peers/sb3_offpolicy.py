"""SAC, TD3 or DDPG of Stable-Baselines3 in one process, with values that have the names of rl4sys_zmq.

    python benchmarks/peers/sb3_offpolicy.py --algorithm SAC --env Pendulum-v1 --seed 1 --steps 20000 --values '{}'

It prints the return of each training episode, and the mean return of 20 greedy episodes after the training. One torch thread.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DDPG, SAC, TD3
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

ALGORITHMS = {"SAC": SAC, "TD3": TD3, "DDPG": DDPG}
EPISODES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="SAC")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--values", type=json.loads, default={})
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = dict(options.values)
    given.pop("rollout_length", None)
    values: dict[str, Any] = {"policy_kwargs": {"net_arch": given.pop("hidden_sizes", [256, 256])}, **given}
    values = {"batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_starts": 1000, "learning_rate": 3e-4, **values}
    env = Monitor(gymnasium.make(options.env))
    if options.algorithm != "SAC":
        size = int(np.prod(env.action_space.shape or ()))
        values["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    ended: list[tuple[int, float]] = []

    def watch(names: dict[str, Any], _: dict[str, Any]) -> bool:
        """Called after each step: keeps the returns of ended episodes."""
        ended.extend((names["self"].num_timesteps, float(i["episode"]["r"])) for i in names["infos"] if "episode" in i)
        return True

    model = ALGORITHMS[options.algorithm]("MlpPolicy", env, seed=options.seed, device="cpu", **values)
    began = time.perf_counter()
    model.learn(options.steps, callback=watch)
    seconds = time.perf_counter() - began
    totals = []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1000 + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        totals.append(total)
    record = {"peer": f"Stable-Baselines3 {options.algorithm}, one process", "seconds": round(seconds, 1)}
    print(json.dumps({**record, "episodes": ended, "greedy": round(float(np.mean(totals)), 1)}))


if __name__ == "__main__":
    main()
