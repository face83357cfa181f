"""How fast trajectories reach a learner's algorithm, in environment steps per second, beside a bare ROUTER loop or a bare file.

    python benchmarks/ingress.py
    python benchmarks/ingress.py --only P1 durable --pairs 9 --json benchmarks/results/ingress.json

- P1, P2, P3: our learner with a ledger in memory and an algorithm that only counts; beside it a thread that reads the same
  bytes, in as many frames, from a ROUTER and looks at none of them. The senders are other processes, have their messages ready,
  and are as many on both sides.
- durable: P1 with ``ledger: sqlite, fsync: always``; beside it a loop that appends the same bytes to a file, with an
  ``fdatasync`` after as many trajectories as a commit of ours had.

A batch is how many trajectories share a message. Ours and the baseline run in turn; a ratio is the median of the pairs' ratios,
with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl4sys_zmq.bench.ingress import append_rate, ours, raw
from rl4sys_zmq.bench.ingress_load import PAYLOADS, SEED, bytes_per_item
from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.bench.pairs import Pairs, measure_pairs, spread

P1_CASES = ((64, 1), (64, 4), (16, 1), (1, 1))
"""Trajectories in a message, and senders."""


def main() -> None:
    """Measures what was asked for, prints the table, and writes it."""
    options = parse()
    record: dict[str, Any] = {**machine_record(), "seed": SEED, "pairs": options.pairs, "results": {}}
    print(f"{record['machine']['cpu']}, {record['machine']['cores']} cores, load {record['machine']['load']}")
    print(f"versions {record['versions']}, commit {record['commit']}, seed {SEED}, {options.pairs} pairs\n")
    print(f"{'million steps/s':44} {'ours':>9} {'baseline':>9}   ratio [least, greatest]")
    for name in options.only:
        record["results"][name] = MODES[name](options)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MODES), default=list(MODES), help="what to measure")
    parser.add_argument("--pairs", type=int, default=5, help="how many pairs of each")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--folder", type=Path, help="where the journal and the file lie (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def small(options: argparse.Namespace) -> dict[str, Any]:
    return {f"batch {batch}, {actors} senders": in_memory(options, "P1", batch, actors) for batch, actors in P1_CASES}


def in_memory(options: argparse.Namespace, name: str, batch: int = 1, actors: int = 1) -> dict[str, Any]:
    payload = PAYLOADS[name]
    pairs = measure_pairs(
        lambda: ours(payload, batch=batch, actors=actors, seconds=options.seconds).steps_per_s,
        lambda: raw(payload, batch=batch, actors=actors, seconds=options.seconds).steps_per_s,
        options.pairs,
    )
    return line(f"{name} in memory, {batch} a message, {actors} senders", pairs, bytes_per_item(payload, batch))


def durable(options: argparse.Namespace) -> dict[str, Any]:
    payload = PAYLOADS["P1"]
    record = {}
    for batch in (64, 16):
        commits: list[float] = []

        def written(batch: int = batch, commits: list[float] = commits) -> float:
            rate = ours(payload, batch=batch, actors=1, seconds=options.seconds, fsync="always", folder=options.folder)
            commits.append(rate.items_per_commit)
            return rate.steps_per_s

        def appended(batch: int = batch, commits: list[float] = commits) -> float:
            return append_rate(
                payload, batch=batch, items_per_commit=commits[-1], seconds=options.seconds, folder=options.folder
            ).steps_per_s

        pairs = measure_pairs(written, appended, options.pairs)
        figures = line(
            f"P1 durable, {batch} a message, {spread(commits).median:.0f} a commit", pairs, bytes_per_item(payload, batch)
        )
        record[f"batch {batch}"] = {**figures, "items_per_commit": spread(commits).median}
    return record


def line(label: str, pairs: Pairs, item_bytes: float) -> dict[str, Any]:
    ours_, baseline, ratio = spread(pairs.ours).median / 1e6, spread(pairs.baseline).median / 1e6, spread(pairs.ratios)
    print(f"{label:44} {ours_:9.3f} {baseline:9.3f}   {ratio.text()}   {item_bytes:,.0f} bytes each", flush=True)
    return {**pairs.record(), "bytes_per_trajectory": item_bytes}


MODES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "P1": small,
    "P2": lambda options: {"batch 1": in_memory(options, "P2")},
    "P3": lambda options: {"batch 1": in_memory(options, "P3")},
    "durable": durable,
}

if __name__ == "__main__":
    main()
