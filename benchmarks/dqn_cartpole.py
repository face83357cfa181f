"""DQN on CartPole-v1, asynchronously: does it solve the task, and does it stay solved?

    python benchmarks/dqn_cartpole.py --seeds 1 2 3

A learner, two actor processes over tcp, and an evaluating actor in this process that plays 20 greedy episodes every 5,000
environment steps with one fixed version. Solved: one evaluation of at least 475. Stable: the evaluations of the next 100,000
steps average at least 450. Seconds count from the moment the first actor joined, evaluations included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.learner.algorithms import ALGORITHMS

ENV, CLIENT = "CartPole-v1", "cartpole"
EVERY, EPISODES = 5_000, 20
SOLVED, STABLE, STABLE_STEPS = 475.0, 450.0, 100_000


def main() -> None:
    """Runs the seeds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--limit-s", type=float, default=240.0, help="after how long a run is stopped")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        row = run(seed, options.limit_s)
        rows.append(row)
        print(
            f"seed {seed}: solved after {row['solved_steps']} steps, {row['solved_s']} s; "
            f"then mean {row['mean_after']}, least {row['least_after']} over {row['evaluations_after']} evaluations "
            f"(to {row['steps']} steps, {row['seconds']} s)",
            flush=True,
        )
    passed = sum(r["solved_steps"] is not None and (r["mean_after"] or 0) >= STABLE for r in rows)
    print(f"solved and stable: {passed} of {len(rows)}")
    if options.json is not None:
        result = {"command": " ".join(["python", *sys.argv]), "env": ENV, **machine_record(), "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def run(seed: int, limit_s: float) -> dict[str, Any]:
    """One seed: trains until 100,000 steps after the first solved evaluation."""
    preset = ALGORITHMS.get("DQN").presets[ENV]
    client = ClientConfig(algorithm_name="DQN", algorithm_parameters=dict(preset.parameters), pacing_lag=preset.pacing_lag)
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, clients={CLIENT: client}, seed=seed, torch_threads=1)
    with Learner(config) as learner:
        processes = [start_actor(learner.address, preset.num_envs, 1000 * seed + i) for i in range(preset.actors)]
        try:
            return watch(learner, seed, limit_s)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(10)


def start_actor(address: str, num_envs: int, seed: int) -> subprocess.Popen[bytes]:
    """One actor process."""
    command = [sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", "--env", ENV, "--learner", address]
    command += ["--client-id", CLIENT, "--num-envs", str(num_envs), "--seed", str(seed), "--exit-with-stdin"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def watch(learner: Learner, seed: int, limit_s: float) -> dict[str, Any]:
    """Evaluates every 5,000 steps; the returns by step, and what follows from them."""
    learner.wait(client_id=CLIENT, version=0, timeout_s=60.0)
    began = time.monotonic()
    envs = [gymnasium.make(ENV) for _ in range(EPISODES)]
    evaluator = AgentConfig(client_id=CLIENT, train_server_address=learner.address, explore=False, swap="episode", seed=seed)
    evaluations: list[tuple[int, float]] = []
    solved: tuple[int, float] | None = None
    steps = 0
    with RL4SysAgent(config=evaluator) as agent:
        while time.monotonic() - began < limit_s:
            steps = learner.status()["clients"][CLIENT]["steps"]
            if steps < EVERY * (len(evaluations) + 1):
                time.sleep(0.01)
                continue
            mean = evaluate(agent, envs, 10_000 * seed + len(evaluations))
            evaluations.append((steps, mean))
            if solved is None and mean >= SOLVED:
                solved = steps, time.monotonic() - began
            if solved is not None and steps >= solved[0] + STABLE_STEPS:
                break
    after = [mean for at, mean in evaluations if solved is not None and at > solved[0]]
    return {
        "seed": seed,
        "solved_steps": solved[0] if solved else None,
        "solved_s": round(solved[1], 1) if solved else None,
        "mean_after": round(float(np.mean(after)), 1) if after else None,
        "least_after": round(min(after), 1) if after else None,
        "evaluations_after": len(after),
        "steps": steps,
        "seconds": round(time.monotonic() - began, 1),
        "evaluations": [(at, round(mean, 1)) for at, mean in evaluations],
    }


def evaluate(agent: RL4SysAgent, envs: list[Any], seed: int) -> float:
    """The mean return of one greedy episode in each environment, all with the version held at the start."""
    obs = np.stack([env.reset(seed=seed * 100 + i)[0] for i, env in enumerate(envs)])
    totals, alive = np.zeros(len(envs)), np.ones(len(envs), dtype=bool)
    trajs: Any = None
    while alive.any():
        trajs, actions = agent.request_for_actions(trajs, obs)
        for i in np.flatnonzero(alive):
            obs[i], reward, terminated, truncated, _ = envs[i].step(actions[i].act)
            totals[i] += reward
            alive[i] = not (terminated or truncated)
    return float(totals.mean())


if __name__ == "__main__":
    main()
