"""Learning curves of PPO: this library with its default pacing, and Stable-Baselines3, with the same values, in turn.

    python benchmarks/learning.py --seeds 1 2 3 4 5 --json benchmarks/results/learning.json

Both sides get the values of rl-zoo for Pendulum-v1, without its state-dependent exploration, which this library does not have.
Ours is a learner and one actor process with as many environments, over tcp. A seed's score at N steps is the mean return of the
training episodes that ended in the 10,000 steps before. The figure is (ours - random) / (theirs - random) of the interquartile
means over the seeds, with a 95 % interval from a bootstrap over the seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.bench.peers import run_peer
from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.curves import read_curves

ENV, CLIENT = "Pendulum-v1", "learning"
NUM_ENVS = 4
VALUES = {
    "steps_per_update": 4096, "minibatch_size": 64, "update_epochs": 10, "gamma": 0.9, "gae_lambda": 0.95, "clip_coef": 0.2,
    "ent_coef": 0.0, "learning_rate": 1e-3,
}  # fmt: skip
MARKS = (50_000, 75_000, 100_000)
WINDOW_STEPS = 10_000
RANDOM_EPISODES = 100
RESAMPLES = 10_000
LIMIT_S = 300.0


def main() -> None:
    """Runs the seeds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pacing-lag", type=int, help="instead of the default")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        ours = scores(train(seed, options.pacing_lag))
        theirs = scores(run_peer("sb3_ppo", "--env", ENV, "--seed", seed, "--steps", MARKS[-1], "--limit-s", 800)["episodes"])
        rows.append({"seed": seed, "ours": ours, "sb3": theirs})
        print(f"seed {seed}: at {MARKS} steps ours {ours}, Stable-Baselines3 {theirs}", flush=True)
    floor = random_return()
    figures = {"random": floor, "at_steps": compare(rows, floor)}
    print(json.dumps(figures, indent=2))
    if options.json is not None:
        record = {"command": " ".join(["python", *sys.argv]), "env": ENV, **machine_record(), "rows": rows, **figures}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


def train(seed: int, pacing_lag: int | None) -> list[tuple[int, float]]:
    """One training of ours: the pairs (steps, return) of its episodes."""
    client = ClientConfig(algorithm_name="PPO", algorithm_parameters=dict(VALUES), pacing_lag=pacing_lag)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = LearnerConfig(
            bind="tcp://127.0.0.1:0", run_dir=run_dir, clients={CLIENT: client}, seed=seed, torch_threads=1,
            checkpoint_every_s=600.0,
        )  # fmt: skip
        with Learner(config) as learner:
            command = [sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", "--env", ENV, "--learner", learner.address]
            command += ["--client-id", CLIENT, "--num-envs", str(NUM_ENVS), "--seed", str(seed), "--exit-with-stdin"]
            actor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            try:
                version = 0
                while True:
                    learner.wait(client_id=CLIENT, version=version, timeout_s=LIMIT_S)
                    client = learner.status()["clients"][CLIENT]
                    if client["steps"] >= MARKS[-1]:
                        break
                    version = client["version"] + 1
            finally:
                actor.terminate()
                actor.wait(10)
        (curve,) = read_curves(run_dir)
    return [(int(at), float(total)) for at, total in zip(curve.steps, curve.returns, strict=True)]


def scores(episodes: list[tuple[int, float]]) -> list[float]:
    """The mean return before each mark."""
    steps, returns = np.array(episodes, dtype=np.float64).T
    return [round(float(returns[(steps > mark - WINDOW_STEPS) & (steps <= mark)].mean()), 1) for mark in MARKS]


def random_return() -> float:
    """The mean return of uniformly random actions."""
    env = gymnasium.make(ENV)
    env.action_space.seed(0)
    total = 0.0
    for number in range(RANDOM_EPISODES):
        env.reset(seed=number)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            over = terminated or truncated
    return round(total / RANDOM_EPISODES, 1)


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half of the last axis."""
    cut = values.shape[-1] // 4
    return np.asarray(np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1))


def compare(rows: list[dict[str, Any]], floor: float) -> dict[str, dict[str, float]]:
    """For each mark: both interquartile means, the ratio above random, and its interval."""
    rng = np.random.default_rng(0)
    figures = {}
    for k, mark in enumerate(MARKS):
        ours, theirs = (np.array([row[side][k] for row in rows]) for side in ("ours", "sb3"))
        draws = rng.integers(len(rows), size=(2, RESAMPLES, len(rows)))
        ratios = (interquartile_mean(ours[draws[0]]) - floor) / (interquartile_mean(theirs[draws[1]]) - floor)
        a, b = float(interquartile_mean(ours)), float(interquartile_mean(theirs))
        low, high = np.quantile(ratios, [0.025, 0.975])
        figures[str(mark)] = {
            "ours": round(a, 1), "sb3": round(b, 1), "ratio": round((a - floor) / (b - floor), 3),
            "low": round(float(low), 3), "high": round(float(high), 3),
        }  # fmt: skip
    return figures


if __name__ == "__main__":
    main()
