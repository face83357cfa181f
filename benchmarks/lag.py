"""Steps until a task is solved, when the acting policy is a given number of versions old.

    python benchmarks/lag.py --cases impala impala-uncorrected --lags 0 8 --seeds 1 2 3 4 5 --json benchmarks/results/lag.json
    python benchmarks/lag.py --cases ppo-lunarlander --lags 1 --seeds {10..19} --max-steps 3000000 --json lunarlander.json

Each run is a training in one process with the algorithm's tested settings for the task: CartPole-v1, but Pendulum-v1 in the
case of RPO, and the task that a case names. The acting policy is always exactly the given number of versions older than the
newest one, and no data are dropped for their age. Solved: the mean return of the last 100 training episodes reaches the target
of the settings, as 475 for CartPole-v1. A run ends there, or after the largest number of steps. With --json, a run that is
already in the file is not repeated, so the script can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.forced_lag import LagRun, train_with_lag
from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.capacity.machine import machine_record

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "impala": ("IMPALA", {}),
    "impala-uncorrected": ("IMPALA", {"vtrace": False}),
    "ppo": ("PPO", {}),
    "ppo-lunarlander": ("PPO", {}),
    "a2c": ("A2C", {}),
    "a3c": ("A3C", {}),
    "reinforce": ("REINFORCE", {}),
    "reinforce-baseline": ("REINFORCE", {"with_vf_baseline": True}),
    "rpo": ("RPO", {}),
}
"""The algorithm of each case, and the parameters that differ from its tested settings for the task."""
TASKS = {"ppo-lunarlander": "LunarLander-v3", "rpo": "Pendulum-v1"}
"""The task of a case, if it is not CartPole-v1."""


def main() -> None:
    """Does the runs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["impala", "impala-uncorrected"])
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-steps", type=int, default=300_000)
    parser.add_argument("--json", type=Path, help="read the earlier runs from here, and write all runs here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    for case in options.cases:
        for lag in options.lags:
            for seed in options.seeds:
                key = {"case": case, "lag": lag, "seed": seed, "max_steps": options.max_steps}
                if any(key.items() <= row.items() for row in rows):
                    continue
                rows.append({**key, "commit": machine_record()["commit"], **run(case, lag, seed, options.max_steps)})
                print(rows[-1], flush=True)
                if options.json is not None:
                    record = {"command": " ".join(["python", *sys.argv]), **machine_record(), "rows": rows}
                    options.json.write_text(json.dumps(record, indent=2) + "\n")
    print_table(rows)


def run(case: str, lag: int, seed: int, max_steps: int) -> dict[str, Any]:
    """Does one training."""
    name, changed = CASES[case]
    presets = ALGORITHMS.get(name).presets
    env_id = TASKS.get(case, "CartPole-v1")
    preset = presets[env_id]
    found = train_with_lag(
        LagRun(
            env_id=env_id, algorithm=name, parameters={**preset.parameters, **changed}, lag=lag, seed=seed,
            num_envs=preset.num_envs * preset.actors, max_steps=max_steps, target_return=preset.target_return,
        )
    )  # fmt: skip
    kept = {key: value for key, value in asdict(found).items() if key != "episodes"}
    return {**kept, "score": round(found.score, 1), "best": round(found.best, 1)}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints a line for each case and lag: solved runs, and the median and the most steps, infinite for an unsolved run."""
    print(f"{'case':<20} {'lag':>3}  {'solved':>7}  {'median steps':>12}  {'most steps':>10}  {'lowest best return':>18}")
    for case, lag in dict.fromkeys((row["case"], row["lag"]) for row in rows):
        of = [row for row in rows if (row["case"], row["lag"]) == (case, lag)]
        steps = [row["solved_steps"] or float("inf") for row in of]
        solved, median, lowest = sum(map(math.isfinite, steps)), statistics.median(steps), min(row["best"] for row in of)
        print(f"{case:<20} {lag:>3}  {solved:>2} of {len(of):<2}  {median:>12,.0f}  {max(steps):>10,.0f}  {lowest:>18.1f}")


if __name__ == "__main__":
    main()
