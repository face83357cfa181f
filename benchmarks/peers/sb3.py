"""Any algorithm of Stable-Baselines3 or sb3-contrib in one process, for a number of steps.

    python benchmarks/peers/sb3.py --algorithm SAC --env Pendulum-v1 --seed 1 --steps 20000 --values '{"learning_rate": 1e-3}'

The values are the algorithm's own keyword arguments, with `n_envs`; `policy_kwargs` can name the activation. A text such as
``lin_0.001`` is a value that falls linearly to 0. It prints the return of each training episode with the step of its end, and the
returns of greedy episodes after the training, each with a seed of its own. One torch thread, which is faster here than two.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule

DETERMINISTIC = ("TD3", "DDPG")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="PPO")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--values", type=json.loads, default={})
    parser.add_argument("--episodes", type=int, default=50, help="greedy episodes after the training")
    parser.add_argument("--first-seed", type=int, default=1000, help="of the first greedy episode; the next have those after it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    values = {key: _value(value) for key, value in options.values.items()}
    envs = make_vec_env(options.env, n_envs=values.pop("n_envs", 1), seed=options.seed)
    if options.algorithm in DETERMINISTIC:
        size = int(np.prod(envs.action_space.shape or ()))
        values["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, values.pop("noise_std", 0.1)))
    module = stable_baselines3 if hasattr(stable_baselines3, options.algorithm) else sb3_contrib
    model = getattr(module, options.algorithm)("MlpPolicy", envs, seed=options.seed, device="cpu", **values)
    ended: list[tuple[int, float]] = []

    def watch(names: dict[str, Any], _: dict[str, Any]) -> bool:
        """Called after each step of all environments: keeps the returns of ended episodes."""
        ended.extend((names["self"].num_timesteps, float(i["episode"]["r"])) for i in names["infos"] if "episode" in i)
        return True

    began, began_cpu = time.perf_counter(), time.process_time()
    model.learn(options.steps, callback=watch)
    times = {"seconds": round(time.perf_counter() - began, 1), "cpu_s": round(time.process_time() - began_cpu, 1)}
    record = {"peer": f"{module.__name__} {options.algorithm}, one process", **times, "episodes": ended}
    returns = greedy(model, options.env, options.episodes, options.first_seed)
    print(json.dumps({**record, "greedy": returns}))


def greedy(model: Any, name: str, episodes: int, first_seed: int) -> list[float]:
    """The returns of greedy episodes."""
    env = gymnasium.make(name)
    totals: list[float] = []
    for number in range(episodes):
        observation, _ = env.reset(seed=first_seed + number)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        totals.append(total)
    env.close()
    return totals


def _value(given: Any) -> Any:
    """A keyword argument of Stable-Baselines3 for a JSON value."""
    if isinstance(given, str) and given.startswith("lin_"):
        return LinearSchedule(float(given[4:]), 0.0, 1.0)
    if isinstance(given, dict) and "activation_fn" in given:
        return {**given, "activation_fn": {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[given["activation_fn"]]}
    return given


if __name__ == "__main__":
    main()
