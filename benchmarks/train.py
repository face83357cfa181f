"""Time to solve a task: this library over tcp with two actor processes, and Stable-Baselines3 in one process, in turn.

    python benchmarks/train.py --env CartPole-v1 --seeds 1 2 3
    python benchmarks/train.py --env LunarLander-v3 --seeds 1 2 3 4 5 --ours-only --hold

Both sides count from their first environment step (ours from the moment the first actor joins, which is earlier) until the
mean return of the last 100 training episodes reaches the target. Process start, imports and building are left out on both
sides. Stable-Baselines3 runs with rl-zoo's values and one torch thread, which is faster here than two, and is stopped after
``--limit-s``: a ratio against a run that did not finish is an upper bound.

``--hold`` goes on to twice the steps at which the target was reached, and says what the mean return is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
WINDOW = 100


def main() -> None:
    """Runs the pairs and prints the table."""
    options = parse()
    if options.child is not None:
        print(json.dumps(stable_baselines3(options.env, options.child, options.limit_s)))
        return
    rows = []
    for seed in options.seeds:
        row: dict[str, Any] = {"seed": seed, "ours": ours(options, seed)}
        if not options.ours_only:
            row["sb3"] = peer(options, seed)
        rows.append(row)
        print(line(row), flush=True)
    result = {"command": " ".join(["python", *sys.argv]), "env": options.env, **machine(), "rows": rows, **summary(rows)}
    print(json.dumps({k: v for k, v in result.items() if k not in ("rows", "machine")}, indent=2))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(TARGETS), default="CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--limit-s", type=float, default=95.0, help="after how long a run is stopped")
    parser.add_argument("--ours-only", action="store_true", help="leave the other side out")
    parser.add_argument("--hold", action="store_true", help="go on to twice the steps")
    parser.add_argument("--run-dir", type=Path, help="keep our runs below this folder")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--curve", type=Path, help="draw our runs here (needs --run-dir)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def ours(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run of the demo; the figures are read from its log."""
    from rl4sys_zmq.ops.curves import read_curves

    with tempfile.TemporaryDirectory() as scratch:
        run_dir = (options.run_dir or Path(scratch)) / f"{options.env}-{seed}"
        command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "demo", "--env", options.env, "--seed", str(seed)]
        command += ["--run-dir", str(run_dir), "--max-seconds", str(options.limit_s)]
        if options.hold:
            command += ["--hold"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"the demo failed:\n{done.stdout}\n{done.stderr}")
        (curve,) = read_curves(run_dir)
        reached = curve.reached(TARGETS[options.env])
        out: dict[str, Any] = {"seconds": None, "steps": None, "episodes": len(curve.returns)}
        if reached is not None:
            out.update(seconds=round(reached[0], 2), steps=reached[1])
        if options.hold:
            out.update(held_steps=int(curve.steps[-1]), held_return=round(float(np.mean(curve.returns[-WINDOW:])), 1))
        return out


def peer(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run of the other side, in a process of its own."""
    command = [sys.executable, __file__, "--env", options.env, "--child", str(seed), "--limit-s", str(options.limit_s)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def stable_baselines3(env_id: str, seed: int, limit_s: float) -> dict[str, Any]:
    """PPO of Stable-Baselines3 with rl-zoo's values for this task."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.utils import LinearSchedule

    torch.set_num_threads(1)

    began = seconds = 0.0
    steps: int | None = None

    def watch(names: dict[str, Any], _: dict[str, Any]) -> bool:
        """Called after each step of all environments: stops at the target or at the limit; the clock starts at the first."""
        nonlocal began, seconds, steps
        began = began or time.perf_counter()
        seconds = time.perf_counter() - began
        episodes = names["self"].ep_info_buffer or ()
        if len(episodes) >= WINDOW and np.mean([e["r"] for e in episodes]) >= TARGETS[env_id]:
            steps = names["self"].num_timesteps
            return False
        return seconds < limit_s

    per_task: dict[str, dict[str, Any]] = {
        "CartPole-v1": {
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": LinearSchedule(0.001, 0.0, 1.0),
            "clip_range": LinearSchedule(0.2, 0.0, 1.0),
            "total": 100_000,
        },
        "LunarLander-v3": {
            "n_envs": 16,
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
            "total": 1_000_000,
        },
    }
    values = per_task[env_id]
    envs = make_vec_env(env_id, n_envs=values.pop("n_envs"), seed=seed)
    total = values.pop("total")
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **values)
    model.learn(total, callback=watch)
    return {"seconds": round(seconds, 2), "steps": steps, "reached": steps is not None}


def line(row: dict[str, Any]) -> str:
    """One seed for the eye."""
    mine = row["ours"]
    text = f"seed {row['seed']}: ours {mine['seconds']} s, {mine['steps']} steps"
    if "held_return" in mine:
        text += f"; mean {mine['held_return']} at {mine['held_steps']} steps"
    if "sb3" in row:
        other = row["sb3"]
        text += f"; Stable-Baselines3 {other['seconds']} s, {other['steps'] or 'target not reached'}"
    return text


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the ratio pair by pair."""
    solved = [r for r in rows if r["ours"]["seconds"] is not None]
    out: dict[str, Any] = {"solved": f"{len(solved)} of {len(rows)}"}
    if solved:
        seconds = [r["ours"]["seconds"] for r in solved]
        out["seconds"] = {"min": min(seconds), "median": statistics.median(seconds), "max": max(seconds)}
    pairs = [r["ours"]["seconds"] / r["sb3"]["seconds"] for r in solved if "sb3" in r]
    if pairs:
        out["ratio_to_sb3"] = {"min": min(pairs), "median": statistics.median(pairs), "max": max(pairs)}
        out["sb3_solved"] = f"{sum(bool(r['sb3']['reached']) for r in rows if 'sb3' in r)} of {len(rows)}"
    return out


def machine() -> dict[str, Any]:
    """What this was measured on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    packages = {p: version(p) for p in ("numpy", "torch", "pyzmq", "gymnasium")}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version(), **packages},
    }


if __name__ == "__main__":
    main()
