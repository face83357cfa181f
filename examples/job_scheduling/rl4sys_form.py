"""Training with a configuration file of RL4Sys's job scheduling, unchanged: flat observations, and a perceptron for all jobs.

Run it in the folder ``examples``::

    python -m job_scheduling.rl4sys_form job_scheduling.json --epochs 4

The file has ``input_size: 1024`` and ``act_dim: 128``, which are 8 features of 128 jobs, and PPO's parameters. An epoch is an
update. `train` is the form that learns faster.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from job_scheduling.environment import Scheduling, SchedulingEnv
from job_scheduling.features import FEATURES, WINDOW
from job_scheduling.lublin import generate
from job_scheduling.train import CLIP, HORIZON
from rl4sys_zmq import AgentConfig, RL4SysAgent, RL4SysError
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner, LearnerConfig

MACHINE, JOBS, LOAD = 256, 10_000, 1.0


def epochs(agent: RL4SysAgent, env: SchedulingEnv, seed: int) -> Iterator[tuple[int, list[float]]]:
    """Yield one epoch after another: the version of the policy, and the parts of F1's objective that its episodes have saved.

    Only episodes count that the version has begun.

    Args:
        agent: An actor with a flat observation.
        env: The environment.
        seed: The seed of the episodes.
    """
    observation, info = env.reset(seed=seed)
    version, saved = agent.version, list[float]()
    traj, begun = None, agent.version
    while True:
        traj, action = agent.request_for_action(traj, observation.reshape(-1), info["action_mask"])
        agent.add_to_trajectory(traj, action)
        observation, reward, ended, _, info = env.step(action.act)
        action.update_reward(reward)
        if ended:
            agent.mark_end_of_trajectory(traj, action)
            if begun == version:
                saved.append(info["saved"])
            if agent.version != version:
                yield version, saved
                version, saved = agent.version, []
            observation, info = env.reset()
            begun = agent.version


def run(path: Path, count: int, length: int) -> list[float]:
    """Train with a configuration, and return the mean part of F1's objective that the episodes of each epoch save.

    Args:
        path: The configuration file.
        count: The number of epochs.
        length: The number of jobs of an episode.

    Raises:
        RL4SysError: If the configuration is invalid or does not fit, or the training fails.
    """
    env = SchedulingEnv([generate(JOBS, MACHINE, 1, LOAD)], Scheduling(length=length, horizon=HORIZON, clip=CLIP))
    means = []
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, torch_threads=1)) as learner:
        config = AgentConfig.load(path, train_server_address=learner.address, overflow="wait", wait_timeout_s=600.0)
        with RL4SysAgent(config=config) as agent:
            if agent.spec.observation_space.size != WINDOW * len(FEATURES) or agent.spec.outputs != WINDOW:  # type: ignore[union-attr]
                raise ConfigError(f"{path}: expected input_size {WINDOW * len(FEATURES)} and act_dim {WINDOW}", key="input_size")
            for version, saved in epochs(agent, env, seed=1):
                means.append(float(np.mean(saved)))
                print(f"epoch {version}: {len(saved)} episodes, below F1 by {100 * means[-1]:.1f} % on average", flush=True)
                if len(means) == count:
                    break
    return means


def main() -> int:
    parser = argparse.ArgumentParser(description="Train with a configuration file of RL4Sys.")
    parser.add_argument("config", type=Path, help="the configuration file")
    parser.add_argument("--epochs", type=int, default=4, help="number of epochs (default: 4)")
    parser.add_argument("--length", type=int, default=256, help="number of jobs of an episode (default: 256)")
    args = parser.parse_args()
    try:
        means = run(args.config, args.epochs, args.length)
    except KeyboardInterrupt:
        return 130
    except RL4SysError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"from {100 * means[0]:.1f} % in the first epoch to {100 * means[-1]:.1f} % in the last one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
