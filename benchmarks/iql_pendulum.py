"""Offline training: IQL and behaviour cloning of TorchRL on recorded episodes of Pendulum-v1, which no policy of ours played.

    python benchmarks/iql_pendulum.py
    python benchmarks/iql_pendulum.py --seeds 1 2 3
    python benchmarks/iql_pendulum.py --data pendulum.npz        # from rl4sys-actor record

The data are episodes of a scripted controller that swings the pendulum up by its energy, and then balances it. In each episode
another share of its actions, from none to all, is replaced by random ones, so most of the data are bad. A recorded actor
(`send_recorded`) sends them to a learner with ``engine: process``. After the last segment, the learner takes gradient steps on
the data, without any environment. A row has the mean return of the data, of their best quarter, and of greedy episodes of the
trained policy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bench.greedy import greedy_returns
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.recorded_actor import send_recorded
from rl4sys_zmq.replay.demonstrations import read_demonstrations
from rl4sys_zmq.values import BoxSpace, Segment

ENV = "Pendulum-v1"
OBSERVATIONS = BoxSpace((3,), low=(-1.0, -1.0, -8.0), high=(1.0, 1.0, 8.0))
ACTIONS = BoxSpace((1,), low=-2.0, high=2.0)
FILE = Path(__file__).parent / "results" / "iql_pendulum.json"
EPISODES = 20
FIRST_SEED = 1_000_000
"""The seed of the first greedy episode."""
REWARD_SCALE = 0.1
"""Factor of the recorded rewards, so that values are about 10 and not 100; small networks learn large values slowly."""
UNITS = 50
"""Units of training after the last recorded step; each is a published version."""
LIMIT_S = 600.0

VALUES: dict[str, Any] = {"learning_rate": 1e-3, "hidden_sizes": [64, 64], "batch_size": 256}
CASES: dict[str, dict[str, Any]] = {
    "torchrl:IQL": {**VALUES, "gamma": 0.98, "expectile": 0.7, "temperature": 3.0, "tau": 0.01},
    "torchrl:BC": VALUES,
}


def scripted(observation: NDArray[np.float32]) -> float:
    """Return the torque of a controller that pumps energy into the pendulum, and balances it near the top."""
    cosine, sine, speed = map(float, observation)
    angle = float(np.arctan2(sine, cosine))
    if abs(angle) < 0.6:
        return float(np.clip(-10.0 * angle - 2.0 * speed, -2.0, 2.0))
    energy = speed**2 / 6 + 5.0 * (cosine - 1.0)  # 0 for a pendulum that just reaches the top: m = l = 1, g = 10, I = 1/3
    return 2.0 * float(np.sign(speed) or 1.0) * float(np.clip(-energy, -1.0, 1.0))


def record(episodes: int, seed: int) -> list[Segment]:
    """Record episodes of the controller, in each of which another share of the actions is random."""
    env, rng, found = gymnasium.make(ENV), np.random.default_rng(seed), []
    for number in range(episodes):
        share = rng.random()
        observation, _ = env.reset(seed=seed * 10_000 + number)
        seen, acts, rewards, over = [observation], [], [], False
        while not over:
            torque = rng.uniform(-2.0, 2.0) if rng.random() < share else scripted(observation)
            # A squashed Gaussian has no density at the bounds, so the data stay within them.
            act = np.clip(np.array([torque], np.float32), -1.9, 1.9)
            observation, reward, _, over, _ = env.step(act)
            seen.append(observation)
            acts.append(act)
            rewards.append(float(reward))
        found.append(
            Segment(
                observations=np.array(seen, np.float32),
                actions=np.array(acts, np.float32),
                rewards=np.array(rewards, np.float32),
                log_probs=np.zeros(len(acts), np.float32),
                versions=np.zeros(len(acts), np.uint64),
                masks=None,
                generation=0,
                episode_id=number + 1,
                segment_index=0,
                terminated=False,
                truncated=True,
                episode_return=sum(rewards),
                episode_length=len(acts),
            )
        )
    env.close()
    return found


def recorded(path: Path) -> list[Segment]:
    """Read the recorded episodes of a file, whose spaces must be those of the environment."""
    found = read_demonstrations(path)
    found.check_spaces(OBSERVATIONS, ACTIONS)
    return list(found.segments)


def train(algorithm: str, values: dict[str, Any], segments: list[Segment], gradient_steps: int, seed: int) -> dict[str, Any]:
    """Train on recorded segments in a worker process, and return the greedy return and the time."""
    segments = [replace(segment, rewards=segment.rewards * np.float32(REWARD_SCALE)) for segment in segments]
    steps = sum(segment.steps for segment in segments)
    pace = {"learning_starts": steps - UNITS, "gradient_steps": gradient_steps // UNITS, "train_frequency": 1}
    parameters = {**values, **pace, "rollout_length": 200, "publish_every_updates": 1, "seed": seed}
    client = ClientConfig(algorithm_name=algorithm, algorithm_parameters=parameters, engine="process")
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=run_dir, clients={"offline": client}, torch_threads=1)
        with Learner(config) as learner:
            began = time.monotonic()
            accepted = send_recorded(learner.address, "offline", OBSERVATIONS, ACTIONS, segments, timeout_s=LIMIT_S)
            learner.wait(client_id="offline", version=UNITS, timeout_s=LIMIT_S)
            seconds = time.monotonic() - began
        returns = greedy_returns(ENV, run_dir, "offline", episodes=EPISODES, first_seed=FIRST_SEED)
    found = {"greedy": round(float(np.mean(returns)), 1), "worst": round(min(returns), 1)}
    return {"accepted": accepted, "gradient_steps": gradient_steps, "seconds": round(seconds, 1), **found}


def main() -> None:
    """Train each case with each seed, write the rows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--data", type=Path, help="a file of recorded episodes, instead of those of the controller")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of the controller, of 200 steps each")
    parser.add_argument("--gradient-steps", type=int, default=5000)
    parser.add_argument("--json", type=Path, default=FILE, help="the file with the rows")
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        segments = record(options.episodes, seed) if options.data is None else recorded(options.data)
        returns = sorted(float(segment.episode_return or 0.0) for segment in segments)
        data = {
            "mean": round(float(np.mean(returns)), 1),
            "best_quarter": round(float(np.mean(returns[-len(returns) // 4 :])), 1),
        }
        for algorithm, values in CASES.items():
            rows.append(
                {
                    "algorithm": algorithm,
                    "seed": seed,
                    "data": data,
                    **train(algorithm, values, segments, options.gradient_steps, seed),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    options.json.write_text(json.dumps({"rows": rows, **machine_record()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
