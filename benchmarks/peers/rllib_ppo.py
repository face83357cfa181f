"""PPO of Ray RLlib on CPUs, until the mean return of the task is reached or the time is over. Needs ``ray[rllib]`` and torch.

    python benchmarks/peers/rllib_ppo.py --env CartPole-v1 --seed 1 --runners 2

The clock starts when the algorithm is built. The values for CartPole are those of RLlib's own tuned example: learning rate
3e-4, 6 epochs, value clip off; for LunarLander its defaults. What it calls its mean return is over its last 100 episodes.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from typing import Any

import gymnasium  # noqa: F401 - registers the tasks
import ray
from ray.rllib.algorithms.ppo import PPOConfig

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
VALUES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"lr": 0.0003, "num_epochs": 6, "vf_loss_coeff": 0.01},
    "LunarLander-v3": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(TARGETS), default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runners", type=int, default=2, help="processes that step environments")
    parser.add_argument("--limit-s", type=float, default=95.0)
    options = parser.parse_args()
    ray.init(num_cpus=options.runners + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = (
        PPOConfig()
        .environment(options.env)
        .env_runners(num_env_runners=options.runners)
        .training(**VALUES[options.env])
        .debugging(seed=options.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    began, seconds, steps, best = time.perf_counter(), 0.0, 0, float("-inf")
    while seconds < options.limit_s and best < TARGETS[options.env]:
        runners = algorithm.train()["env_runners"]
        seconds, steps = time.perf_counter() - began, int(runners["num_env_steps_sampled_lifetime"])
        best = float(runners.get("episode_return_mean", best))
    algorithm.stop()
    ray.shutdown()
    print(
        json.dumps(
            {
                "peer": f"Ray RLlib {ray.__version__} PPO, {options.runners} runners",
                "seconds": round(seconds, 2),
                "steps": steps,
                "reached": best >= TARGETS[options.env],
                "steps_per_s": round(steps / seconds),
            }
        )
    )


if __name__ == "__main__":
    main()
