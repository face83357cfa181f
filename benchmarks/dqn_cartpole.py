"""DQN on CartPole-v1: does it solve the task and stay solved, and what do its initial weights change?

    python benchmarks/dqn_cartpole.py --after-solving --seeds 1 2 3 4 5
    python benchmarks/dqn_cartpole.py --initialisations --seeds 1 2 3

``--after-solving`` (the default) uses the tested settings: a learner, two actor processes over tcp, and an evaluating actor in
this process that plays 20 greedy episodes every 5,000 environment steps with one fixed version. Solved: one evaluation of at
least 475. Stays solved: each evaluation of the next 100,000 steps is at least 450. Seconds count from the moment the first actor
joined, evaluations included.

``--initialisations`` compares the initial weights, and Stable-Baselines3, with rl-zoo's values on all sides (the case
``dqn-cartpole`` of ``benchmarks/learning.py``). Our side trains in one process without messages, each version acts at once, and
the runs are exactly repeatable. The score at a mark is the mean return of the training episodes that ended in the 5,000 steps
before it.
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
import torch

from bench.forced_lag import LagRun, train_with_lag
from bench.learning_cases import CASES
from bench.peers import PeerMissing, run_peer
from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.learner import Learner, LearnerConfig

ENV, CLIENT = "CartPole-v1", "cartpole"
EVERY, EPISODES = 5_000, 20
SOLVED, STABLE, STABLE_STEPS = 475.0, 450.0, 100_000
CASE = CASES["dqn-cartpole"]
MARKS, WINDOW = (30_000, 40_000, 50_000), 5_000


def main() -> None:
    """Runs the seeds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--after-solving", action="store_true", help="the tested settings, to 100,000 steps after solving")
    form.add_argument("--initialisations", action="store_true", help="the initial weights, beside Stable-Baselines3")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--limit-s", type=float, default=240.0, help="after how long a run of --after-solving is stopped")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rows = compare(options.seeds) if options.initialisations else solve(options.seeds, options.limit_s)
    if options.json is not None:
        result = {"command": " ".join(["python", *sys.argv]), "env": ENV, **machine_record(), "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def compare(seeds: list[int]) -> list[dict[str, Any]]:
    """Trains with both kinds of initial weights and with Stable-Baselines3, in turn."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for side in ("orthogonal", "uniform", "Stable-Baselines3"):
            try:
                episodes = theirs(seed) if side == "Stable-Baselines3" else ours(side, seed)
            except PeerMissing as exc:
                print(f"without the peer: {exc}", flush=True)
                continue
            rows.append({"seed": seed, "side": side, "scores": [score(episodes, mark) for mark in MARKS]})
            print(json.dumps(rows[-1]), flush=True)
    marks = " | ".join(f"{mark:,} steps" for mark in MARKS)
    print(f"\nmedians of the seeds {seeds}\n| | {marks} |\n|---|{'---|' * len(MARKS)}")
    for side in dict.fromkeys(row["side"] for row in rows):
        medians = np.median([row["scores"] for row in rows if row["side"] == side], axis=0)
        print(f"| {side} | " + " | ".join(f"{value:.0f}" for value in medians) + " |")
    return rows


def ours(initialisation: str, seed: int) -> list[tuple[int, float]]:
    """One training in this process: the steps and the return at the end of each episode."""
    parameters = {**(CASE.values or {}), "initialisation": initialisation}
    found = train_with_lag(
        LagRun(
            env_id=ENV, algorithm="DQN", parameters=parameters, lag=0, seed=seed, num_envs=CASE.num_envs,
            max_steps=MARKS[-1], target_return=float("inf"),
        )
    )  # fmt: skip
    return list(found.episodes)


def theirs(seed: int) -> list[tuple[int, float]]:
    """One training of Stable-Baselines3: the steps and the return at the end of each episode."""
    values = json.dumps(CASE.peer_values)
    found = run_peer("sb3", "--algorithm", "DQN", "--env", ENV, "--seed", seed, "--steps", MARKS[-1], "--values", values)
    return [(int(at), float(total)) for at, total in found["episodes"]]


def score(episodes: list[tuple[int, float]], mark: int) -> float:
    """The mean return of the episodes that ended in the window before a mark."""
    return round(float(np.mean([total for at, total in episodes if mark - WINDOW < at <= mark])), 1)


def solve(seeds: list[int], limit_s: float) -> list[dict[str, Any]]:
    """Trains with the tested settings until 100,000 steps after the first solved evaluation."""
    rows = []
    for seed in seeds:
        row = run(seed, limit_s)
        rows.append(row)
        print(
            f"seed {seed}: solved after {row['solved_steps']} steps, {row['solved_s']} s; "
            f"then mean {row['mean_after']}, least {row['least_after']} over {row['evaluations_after']} evaluations "
            f"(to {row['steps']} steps, {row['seconds']} s)",
            flush=True,
        )
    passed = sum(r["solved_steps"] is not None and (r["least_after"] or 0) >= STABLE for r in rows)
    print(f"solved, and each later evaluation at least {STABLE:.0f}: {passed} of {len(rows)}")
    return rows


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
