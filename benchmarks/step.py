"""What acting costs: one step, import and memory, a control loop, collected environment steps; each beside its baseline.

    python benchmarks/step.py
    python benchmarks/step.py --only step footprint --pairs 9 --json benchmarks/results/step.json

- step: request, add and reward for an MLP 8-64-64-4 in a tight loop that sends all the time, and again with pauses in which the
  host computes; beside it a plain function that does the forward pass, sampling, log-probability and storing.
- footprint: import seconds and resident memory of fresh processes; beside it ``import numpy, zmq, msgpack``. One more figure is
  the memory of an actor that has joined and acts.
- overhead: processor time over wall time of a 1 kHz loop with and without the actor.
- collect: environment steps per second of ``rl4sys-actor run`` into a learner that only counts; beside it bare ``env.step`` with
  random actions.

Ours and the baseline run in turn. A ratio is the median of the pairs' ratios, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl4sys_zmq.bench.collect import measure_collect, missing_for
from rl4sys_zmq.bench.counting import CountingLearner
from rl4sys_zmq.bench.footprint import measure_footprint, measure_overhead, measure_running
from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.bench.pairs import Pairs, spread
from rl4sys_zmq.bench.step import measure_step

ENVS = ("CartPole-v1", "LunarLander-v3")
PAUSES_S = (0.0, 0.000_1)
SEED = 1


def main() -> None:
    """Measures what was asked for, prints the table, and writes it."""
    options = parse()
    record: dict[str, Any] = {**machine_record(), "seed": SEED, "pairs": options.pairs, "results": {}}
    print(f"{record['machine']['cpu']}, {record['machine']['cores']} cores, load {record['machine']['load']}")
    print(f"versions {record['versions']}, commit {record['commit']}, seed {SEED}, {options.pairs} pairs\n")
    print(f"{'':34} {'ours':>12} {'baseline':>12}   ratio [least, greatest]")
    for name in options.only:
        record["results"][name] = MODES[name](options)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MODES), default=list(MODES), help="what to measure")
    parser.add_argument("--pairs", type=int, default=5, help="how many pairs of each")
    parser.add_argument("--steps", type=int, default=50_000, help="steps of each measurement of a step")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement of a loop")
    parser.add_argument("--num-envs", type=int, default=32, help="environments of the collecting actor")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def step(options: argparse.Namespace) -> dict[str, Any]:
    record = {}
    with CountingLearner() as learner:
        for pause_s in PAUSES_S:
            steps = options.steps if not pause_s else options.steps // 5
            times = measure_step(learner.address, options.pairs, steps, pause_s)
            label = f"{pause_s * 1e6:.0f} us apart" if pause_s else "tight loop"
            record[label] = {
                "median_us": line(f"step, us, {label}, median", times.medians),
                "p99_us": line(f"step, us, {label}, p99", times.p99),
                "forward_us": times.forward_us,
            }
            print(f"{'  the forward pass alone, plainly':34} {'':12} {times.forward_us:12.2f}")
    return record


def footprint(options: argparse.Namespace) -> dict[str, Any]:
    found = measure_footprint(options.pairs)
    with CountingLearner() as learner:
        running = spread([measure_running(learner.address) / 1024 for _ in range(options.pairs)])
    record = {
        "import_s": line("import, s", found.import_s, 3),
        "resident_kib": line("resident after import, KiB", found.resident_kib, 0),
        "running_mib": running.median,
    }
    print(f"{'resident while acting, MiB':34} {running.median:12.1f}")
    return record


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    with CountingLearner() as learner:
        shares = measure_overhead(learner.address, options.pairs, options.seconds)
    added = spread([100 * d for d in shares.differences])
    record = {**line("1 kHz loop, CPU over wall", shares, 4), "added_percent": added.median}
    print(f"{'  added, % of wall time':34} {added.text()}")
    return record


def collect(options: argparse.Namespace) -> dict[str, Any]:
    record = {}
    for env_id in ENVS:
        if missing := missing_for(env_id):
            print(f"{env_id}: left out, it needs {missing}")
            continue
        pairs = measure_collect(env_id, options.pairs, options.seconds, options.num_envs, SEED)
        record[env_id] = line(f"{env_id} x {options.num_envs}, steps/s", pairs, 0)
    return record


def line(label: str, pairs: Pairs, digits: int = 2) -> dict[str, Any]:
    ours, baseline, ratio = spread(pairs.ours).median, spread(pairs.baseline).median, spread(pairs.ratios)
    print(f"{label:34} {ours:12.{digits}f} {baseline:12.{digits}f}   {ratio.text()}", flush=True)
    return pairs.record()


MODES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "step": step,
    "footprint": footprint,
    "overhead": overhead,
    "collect": collect,
}

if __name__ == "__main__":
    main()
