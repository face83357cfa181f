"""Time to solve a task: this library over tcp with two actor processes, and other trainers, in turn.

    python benchmarks/train.py --env CartPole-v1 --seeds 1 2 3 4 5 --peers sb3 rllib
    python benchmarks/train.py --env LunarLander-v3 --seeds 1 2 3 4 5 --peers --hold

Ours counts from the moment the first actor joins, the peers from their first environment step or later, until the mean return
of the last 100 training episodes reaches the target. Process start, imports and building are left out on all sides. A run is
stopped after ``--limit-s``: a ratio against a run that did not finish is an upper bound.

``--hold`` goes on to twice the steps at which the target was reached, and says what the mean return is there.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.pairs import spread
from bench.peers import run_peer
from bench.training import LIMIT_S, TARGETS, train_ours
from rl4sys_zmq.capacity.machine import machine_record

PEERS = {"sb3": "sb3_ppo", "rllib": "rllib_ppo"}


def main() -> None:
    """Runs the seeds and prints the table."""
    options = parse()
    rows = []
    for seed in options.seeds:
        row: dict[str, Any] = {"seed": seed}
        row["ours"] = asdict(train_ours(options.env, seed, options.limit_s, hold=options.hold, folder=options.run_dir))
        for peer in options.peers:
            row[peer] = run_peer(PEERS[peer], "--env", options.env, "--seed", seed, "--limit-s", options.limit_s)
        rows.append(row)
        print(line(row), flush=True)
    figures = summary(rows, options.peers)
    print(json.dumps(figures, indent=2))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        record = {**machine_record(), "env": options.env, "rows": rows, **figures}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(TARGETS), default="CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="after how long a run is stopped")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=["sb3"], help="the other sides; none: ours alone")
    parser.add_argument("--hold", action="store_true", help="go on to twice the steps")
    parser.add_argument("--run-dir", type=Path, help="keep our runs below this folder")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def line(row: dict[str, Any]) -> str:
    """One seed for the eye."""
    mine = row["ours"]
    text = f"seed {row['seed']}: ours {mine['seconds']} s, {mine['steps']} steps, {mine['steps_per_s']:,.0f} steps/s"
    if mine["held_return"] is not None:
        text += f"; mean {mine['held_return']} at {mine['held_steps']} steps"
    for peer in [row[name] for name in PEERS if name in row]:
        end = f"{peer['seconds']} s" if peer["reached"] else f"not within {peer['seconds']} s"
        text += f"; {peer['peer']} {end}, {peer['steps_per_s']:,} steps/s"
    return text


def summary(rows: list[dict[str, Any]], peers: list[str]) -> dict[str, Any]:
    """Medians, and the ratios pair by pair."""
    solved = [r for r in rows if r["ours"]["seconds"] is not None]
    out: dict[str, Any] = {"solved": f"{len(solved)} of {len(rows)}"}
    if solved:
        out["seconds"] = asdict(spread([r["ours"]["seconds"] for r in solved]))
    for peer in peers if solved else ():
        out[f"time_ratio_{peer}"] = asdict(spread([r["ours"]["seconds"] / r[peer]["seconds"] for r in solved]))
        out[f"rate_ratio_{peer}"] = asdict(spread([r["ours"]["steps_per_s"] / r[peer]["steps_per_s"] for r in rows]))
        out[f"solved_{peer}"] = f"{sum(r[peer]['reached'] for r in rows)} of {len(rows)}"
    return out


if __name__ == "__main__":
    main()
