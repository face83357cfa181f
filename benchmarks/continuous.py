"""SAC, TD3 and DDPG on continuous actions: this library through a learner and an actor, and Stable-Baselines3, in turn.

    python benchmarks/continuous.py --env Pendulum-v1 --algorithms SAC TD3 DDPG --seeds 1 2 3 --json continuous.json
    python benchmarks/continuous.py --env HalfCheetah-v5 --algorithms SAC TD3 --seeds 1 2 3 --json halfcheetah.json

Both sides get the same values. Ours is a learner and one actor process with one environment, over tcp. The scores are the mean
return of the training episodes that ended in the last tenth of the steps before each of three marks, and the mean return of 20
greedy episodes after the training. The file has a row for each algorithm and seed. A second start with the same file continues
after the rows that it has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.bench.peers import PeerMissing, run_peer
from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.ops.curves import read_curves

CLIENT = "continuous"
PENDULUM = {"learning_rate": 1e-3, "hidden_sizes": [64, 64], "rollout_length": 16}
DETERMINISTIC = {**PENDULUM, "gamma": 0.98, "learning_starts": 1000}
LARGE = {"learning_rate": 3e-4, "learning_starts": 10_000, "hidden_sizes": [256, 256]}
VALUES: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "Pendulum-v1": (20_000, {"SAC": {**PENDULUM, "learning_starts": 100}, "TD3": DETERMINISTIC, "DDPG": DETERMINISTIC}),
    "LunarLanderContinuous-v3": (200_000, {"SAC": LARGE, "TD3": LARGE, "DDPG": LARGE}),
    "HalfCheetah-v5": (200_000, {"SAC": LARGE, "TD3": LARGE, "DDPG": LARGE}),
}
"""The number of steps, and the parameters of each algorithm, by environment."""
EPISODES = 20
LIMIT_S = 600.0
"""Longest time from one policy version to the next."""


def main() -> None:
    """Runs what the file does not have, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(VALUES), default="Pendulum-v1")
    parser.add_argument("--algorithms", nargs="+", default=["SAC", "TD3", "DDPG"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="instead of the environment's number")
    parser.add_argument("--no-peer", action="store_true", help="without Stable-Baselines3")
    parser.add_argument("--json", type=Path, help="read and write the rows here")
    options = parser.parse_args()
    steps = options.steps or VALUES[options.env][0]
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    for seed in options.seeds:
        for name in options.algorithms:
            if any((row["algorithm"], row["seed"]) == (name, seed) for row in rows):
                continue
            row: dict[str, Any] = {"algorithm": name, "seed": seed, "ours": ours(name, options.env, seed, steps)}
            if not options.no_peer:
                row["sb3"] = theirs(name, options.env, seed, steps)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.json is not None:
                record = {"command": " ".join(["python", *sys.argv]), "env": options.env, "steps": steps, **machine_record()}
                options.json.write_text(json.dumps({**record, "rows": rows}, indent=2) + "\n")
    for name in options.algorithms:
        for side in ("ours", "sb3"):
            found = [row[side] for row in rows if row["algorithm"] == name and side in row and row[side]]
            if found:
                middle = {key: np.median([one[key] for one in found], axis=0).round(1).tolist() for key in ("training", "greedy")}
                print(f"{name} {side}: medians of {len(found)} seeds {middle}")


def ours(name: str, env: str, seed: int, steps: int) -> dict[str, Any]:
    """One training of ours: its scores and its time."""
    client = ClientConfig(algorithm_name=name, algorithm_parameters=dict(VALUES[env][1][name]))
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = LearnerConfig(
            bind="tcp://127.0.0.1:0", run_dir=run_dir, clients={CLIENT: client}, seed=seed, torch_threads=1,
            checkpoint_every_s=3600.0,
        )  # fmt: skip
        with Learner(config) as learner:
            began = time.monotonic()
            command = [sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", "--env", env, "--learner", learner.address]
            command += ["--client-id", CLIENT, "--num-envs", "1", "--seed", str(seed), "--exit-with-stdin"]
            actor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            try:
                version = 0
                while True:
                    learner.wait(client_id=CLIENT, version=version, timeout_s=LIMIT_S)
                    status = learner.status()["clients"][CLIENT]
                    if status["steps"] >= steps:
                        break
                    version = status["version"] + 1
            finally:
                actor.terminate()
                actor.wait(10)
            seconds = time.monotonic() - began
            greedy = evaluate(env, learner.address, seed)
        (curve,) = read_curves(run_dir)
    episodes = [(int(at), float(total)) for at, total in zip(curve.steps, curve.returns, strict=True)]
    return {"training": scores(episodes, steps), "greedy": greedy, "seconds": round(seconds, 1)}


def theirs(name: str, env: str, seed: int, steps: int) -> dict[str, Any] | None:
    """One training of Stable-Baselines3, if it is installed."""
    values = json.dumps(VALUES[env][1][name])
    try:
        found = run_peer("sb3_offpolicy", "--algorithm", name, "--env", env, "--seed", seed, "--steps", steps, "--values", values)
    except PeerMissing as exc:
        print(f"without the peer: {exc}", flush=True)
        return None
    return {"training": scores(found["episodes"], steps), "greedy": found["greedy"], "seconds": found["seconds"]}


def scores(episodes: list[tuple[int, float]], steps: int) -> list[float]:
    """The mean return of the episodes before a quarter, a half and all of the steps."""
    at, returns = np.array(episodes, dtype=np.float64).T
    marks = (steps // 4, steps // 2, steps)
    return [round(float(returns[(at > mark - steps // 10) & (at <= mark)].mean()), 1) for mark in marks]


def evaluate(name: str, address: str, seed: int) -> float:
    """The mean return of greedy episodes with the newest policy."""
    env, totals = gymnasium.make(name), []
    config = AgentConfig(client_id=CLIENT, train_server_address=address, explore=False, swap="episode", seed=seed)
    with RL4SysAgent(config=config) as agent:
        for episode in range(EPISODES):
            observation, _ = env.reset(seed=1000 + episode)
            traj: Any = None
            total, over = 0.0, False
            while not over:
                traj, action = agent.request_for_action(traj, observation)
                observation, reward, terminated, truncated, _ = env.step(action.act)
                total += float(reward)
                over = terminated or truncated
            totals.append(total)
    return round(float(np.mean(totals)), 1)


if __name__ == "__main__":
    main()
