"""Training with a configuration file of RL4Sys's job scheduling, unchanged: flat observations, and a perceptron for all jobs.

Run it in the folder ``examples``::

    python -m job_scheduling.rl4sys_form job_scheduling.json --epochs 4

The file has ``input_size: 1024`` and ``act_dim: 128``, which are 8 features of 128 jobs, and PPO's parameters. An epoch is an
update. All epochs have the same episodes, so that they can be compared. `train` is the form that learns faster.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from job_scheduling.environment import Scheduling, SchedulingEnv
from job_scheduling.features import FEATURES, WINDOW
from job_scheduling.lublin import generate
from job_scheduling.train import CLIP, HORIZON
from rl4sys_zmq import AgentConfig, RL4SysAgent, RL4SysError
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner, LearnerConfig

MACHINE, JOBS, LOAD = 256, 10_000, 1.0


def in_order(observation: NDArray[np.float32], jobs: int) -> NDArray[np.int64]:
    """Return the rows with a job, by the score of F1.

    A perceptron over all rows has weights for each of them, so a row needs a meaning.
    """
    return observation[:jobs, FEATURES.index("score of F1")].argsort(kind="stable")


def epochs(agent: RL4SysAgent, env: SchedulingEnv, seed: int) -> Iterator[tuple[int, list[float]]]:
    """Yield one epoch after another: the version of the policy, and the objectives of the episodes that it has begun.

    All epochs have the same episodes in the same order, as far as they come.

    Args:
        agent: An actor with a flat observation.
        env: The environment.
        seed: The seed of the episodes.
    """
    observation, info = env.reset(seed=seed)
    version, found = agent.version, list[float]()
    traj, begun = None, agent.version
    while True:
        rows = in_order(observation, int(info["action_mask"].sum()))
        seen = np.zeros_like(observation)
        seen[: len(rows)] = observation[rows]
        traj, action = agent.request_for_action(traj, seen.reshape(-1), info["action_mask"])
        agent.add_to_trajectory(traj, action)
        observation, reward, ended, _, info = env.step(rows[action.act])
        action.update_reward(reward)
        if ended:
            agent.mark_end_of_trajectory(traj, action)
            if begun == version:
                found.append(info["schedule"].objective(env.rules.objective))
            same = agent.version == version
            if not same:
                yield version, found
                version, found = agent.version, []
            observation, info = env.reset(seed=None if same else seed)
            begun = agent.version


def run(path: Path, count: int, length: int) -> list[list[float]]:
    """Train with a configuration, and return the mean bounded slowdown of each episode of each epoch.

    Args:
        path: The configuration file.
        count: The number of epochs.
        length: The number of jobs of an episode.

    Raises:
        RL4SysError: If the configuration is invalid or does not fit, or the training fails.
    """
    rules = Scheduling(length=length, horizon=HORIZON, clip=CLIP * Scheduling().length / length)
    env = SchedulingEnv([generate(JOBS, MACHINE, 1, LOAD)], rules)
    results = list[list[float]]()
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, torch_threads=1)) as learner:
        config = AgentConfig.load(
            path, train_server_address=learner.address, overflow="wait", connect_timeout_s=60.0, wait_timeout_s=3600.0
        )
        with RL4SysAgent(config=config) as agent:
            if agent.spec.observation_space.size != WINDOW * len(FEATURES) or agent.spec.outputs != WINDOW:  # type: ignore[union-attr]
                raise ConfigError(f"{path}: expected input_size {WINDOW * len(FEATURES)} and act_dim {WINDOW}", key="input_size")
            for version, found in epochs(agent, env, seed=1):
                results.append(found)
                print(f"epoch {version}: {line(results[0], found)}", flush=True)
                if len(results) == count:
                    break
    return results


def line(first: list[float], found: list[float]) -> str:
    """Return the mean of an epoch, and how far it is below the first epoch on the same episodes, with the standard error."""
    count = min(len(first), len(found))
    below = np.array(first[:count]) - np.array(found[:count])
    error = below.std() / max(count, 1) ** 0.5
    return (
        f"{len(found)} episodes, mean bounded slowdown {np.mean(found):.0f}; "
        f"on the same {count} episodes {below.mean():.0f} ± {error:.0f} below the first epoch"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Train with a configuration file of RL4Sys.")
    parser.add_argument("config", type=Path, help="the configuration file")
    parser.add_argument("--epochs", type=int, default=4, help="number of epochs (default: 4)")
    parser.add_argument("--length", type=int, default=256, help="number of jobs of an episode (default: 256)")
    args = parser.parse_args()
    try:
        results = run(args.config, args.epochs, args.length)
    except KeyboardInterrupt:
        return 130
    except RL4SysError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"from {np.mean(results[0]):.0f} in the first epoch to {np.mean(results[-1]):.0f} in the last one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
