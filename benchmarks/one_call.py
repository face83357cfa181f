"""`train` in one call, beside `learn` of Stable-Baselines3: lines, seconds and return after equally many steps.

    python benchmarks/one_call.py --seeds 1 2 3 4 5

Both sides are what a user types: our `train` with its tested settings, and Stable-Baselines3's algorithm with its defaults, or,
with ``--tuned``, with rl-zoo's values for the task. The two sides of a seed run one after the other, and take turns to be the
first. Seconds and processor time are those of the call, without the import of torch. A return is the mean of greedy episodes with
the last policy. With ``--processes``, the processor time is that of this process alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.learning_cases import CASES
from bench.pairs import PairedFigures, spread
from bench.peers import run_peer
from rl4sys_zmq import train
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.capacity.machine import machine_record

OURS = """\
from rl4sys_zmq import train
result = train("{env}", "{algorithm}", steps={steps}, seed={seed})
result.evaluate({episodes})
"""
THEIRS = """\
from stable_baselines3 import {algorithm}
from stable_baselines3.common.evaluation import evaluate_policy
model = {algorithm}("MlpPolicy", "{env}", seed={seed})
model.learn({steps})
evaluate_policy(model, model.get_env(), {episodes})
"""


@dataclass(frozen=True)
class Task:
    """One task of both sides."""

    env: str
    algorithm: str
    steps: int
    case: str
    """The case of ``benchmarks/learning.py`` with rl-zoo's values."""


TASKS = {
    "cartpole": Task("CartPole-v1", "PPO", 50_000, "ppo-cartpole"),
    "pendulum": Task("Pendulum-v1", "SAC", 5_000, "sac-pendulum"),
}


def ours(task: Task, steps: int, seed: int, episodes: int, *, processes: int) -> dict[str, float]:
    """Train in this process, or with actors in processes of their own."""
    where: dict[str, Any] = {"actors": processes, "processes": True, "run_dir": f"runs/one_call-{seed}"} if processes else {}
    ALGORITHMS.get(task.algorithm).load()
    began, began_cpu = time.perf_counter(), time.process_time()
    result = train(task.env, task.algorithm, steps=steps, seed=seed, progress=False, **where)
    times = {"seconds": round(time.perf_counter() - began, 2), "cpu_s": round(time.process_time() - began_cpu, 2)}
    assert result.status["steps"] == steps, result.status
    return {**times, "return": round(result.evaluate(episodes).mean, 1)}


def theirs(task: Task, steps: int, seed: int, episodes: int, *, tuned: bool) -> dict[str, float]:
    """Train with Stable-Baselines3, in a process of its own."""
    values = json.dumps(CASES[task.case].peer_values if tuned else {})
    arguments = "--algorithm", task.algorithm, "--env", task.env, "--seed", seed, "--steps", steps, "--episodes", episodes
    found = run_peer("sb3", *arguments, "--values", values, limit_s=3600.0)
    return {"seconds": found["seconds"], "cpu_s": found["cpu_s"], "return": round(sum(found["greedy"]) / episodes, 1)}


def lines(code: str) -> int:
    return len(code.strip().splitlines())


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run all seeds of a task, and print a row for each and one for all."""
    task, rows = TASKS[name], []
    steps = options.steps or task.steps
    sides = {
        "ours": lambda seed: ours(task, steps, seed, options.episodes, processes=options.processes),
        "theirs": lambda seed: theirs(task, steps, seed, options.episodes, tuned=options.tuned),
    }
    for number, seed in enumerate(options.seeds):
        found = {side: sides[side](seed) for side in (sorted(sides) if number % 2 == 0 else sorted(sides, reverse=True))}
        rows.append({"seed": seed, **found})
        print(json.dumps({"task": name, **rows[-1]}), flush=True)
    pairs = {
        key: PairedFigures(tuple(row["ours"][key] for row in rows), tuple(row["theirs"][key] for row in rows))
        for key in ("seconds", "cpu_s", "return")
    }
    print(f"{name}, {steps:,} steps: {lines(OURS)} and {lines(THEIRS)} lines")
    for key, pair in pairs.items():
        ratio = f", ratio {spread(pair.ratios).text()}" if key != "return" else ""
        print(f"  {key}: {spread(pair.ours).text(1)} and {spread(pair.baseline).text(1)}{ratio}", flush=True)
    records = {key: pair.record() for key, pair in pairs.items() if key != "return"}
    return {"task": name, "steps": steps, "lines": [lines(OURS), lines(THEIRS)], "rows": rows, **records}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), default=sorted(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, help="steps of a training, in place of the task's")
    parser.add_argument("--episodes", type=int, default=50, help="greedy episodes after a training")
    parser.add_argument("--tuned", action="store_true", help="rl-zoo's values for Stable-Baselines3, in place of its defaults")
    parser.add_argument("--processes", type=int, default=0, help="run this number of actors as processes, in ./runs")
    parser.add_argument("--json", type=Path, help="write the record here")
    options = parser.parse_args()
    record = {"command": " ".join(["python", *sys.argv]), **machine_record(), "tasks": []}
    record["tasks"] = [compare(name, options) for name in options.tasks]
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
