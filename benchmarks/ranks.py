"""Gradient steps per second of one rank and of several, for networks of different sizes: from which size several ranks pay.

    python benchmarks/ranks.py --seconds 10 --json benchmarks/results/ranks.json

A rank is a process that computes the gradient of a part of each minibatch (the option ``learners``). PPO trains on random
segments, without a network. The ways of computing take turns, so that a change in the machine's speed affects all of them:

- one rank with one thread of torch;
- one rank with as many threads as there are ranks in the other case;
- several ranks with one thread each;
- one rank on a GPU, if torch finds one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.pairs import MedianRange, spread
from bench.updates import hidden_width, layer_parameters, placed_algorithm, random_segment, updates_per_s
from rl4sys_zmq.capacity.machine import machine_record

MINIBATCHES, EPOCHS = 2, 4


def main() -> None:
    """Measures each size and prints the table."""
    options = parse()
    rows = []
    for wanted in options.sizes:
        row = measure(wanted, options)
        rows.append(row)
        print(line(row, options.ranks), flush=True)
    pays = [row["parameters"] for row in rows if row["gain"]["median"] > 1.0]
    print(f"{options.ranks} ranks pay from {min(pays):,} parameters on" if pays else f"{options.ranks} ranks never pay here")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        given = {"ranks": options.ranks, "minibatch_rows": options.rows, "seconds": options.seconds, "rounds": options.rounds}
        options.json.write_text(json.dumps({**machine_record(), **given, "rows": rows}, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[5_000, 1_000_000, 20_000_000], help="parameters that are trained"
    )
    parser.add_argument("--rows", type=int, default=256, help="steps in a minibatch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each measurement; at least one update is made")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way of computing")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def measure(wanted: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one size of the networks."""
    parameters = {
        "hidden_sizes": [hidden_width(wanted, 2)] * 2,
        "steps_per_update": MINIBATCHES * options.rows,
        "minibatch_size": options.rows,
        "update_epochs": EPOCHS,
        "normalise_observations": False,
    }
    ways = {"one rank": (1, 1, "cpu"), "one rank, more threads": (1, options.ranks, "cpu"), "ranks": (options.ranks, 1, "cpu")}
    if torch.cuda.is_available():
        ways["one rank, GPU"] = (1, 1, "cuda")
    with ExitStack() as stack:
        updates = {name: (prepare(stack, parameters, ranks, where), threads) for name, (ranks, threads, where) in ways.items()}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for round_number in range(-1, options.rounds):
            for name, (update, threads) in updates.items():
                torch.set_num_threads(threads)
                rate = MINIBATCHES * EPOCHS * updates_per_s(update, options.seconds if round_number >= 0 else 0.0)
                if round_number >= 0:  # the first round is a warm-up
                    rates[name].append(rate)
    best = [max(pair) for pair in zip(rates["one rank"], rates["one rank, more threads"], strict=True)]
    gain = spread([ours / other for ours, other in zip(rates["ranks"], best, strict=True)])
    figures = {name: asdict(spread(values)) for name, values in rates.items()}
    return {"parameters": 2 * layer_parameters(parameters["hidden_sizes"][0]), "steps_per_s": figures, "gain": asdict(gain)}


def prepare(stack: ExitStack, parameters: dict[str, Any], ranks: int, device: str) -> Callable[[], None]:
    """A function that makes one update of a new algorithm with running ranks."""
    algorithm = placed_algorithm(stack, "PPO", parameters, ranks=ranks, device=device)
    data = random_segment(parameters["steps_per_update"])

    def update() -> None:
        algorithm.observe(data)
        assert algorithm.update() is not None

    return update


def line(row: dict[str, Any], ranks: int) -> str:
    """One size for the eye."""
    text = f"{row['parameters']:>12,} parameters:"
    for name, figures in row["steps_per_s"].items():
        text += f" {f'{ranks} {name}' if name == 'ranks' else name} {MedianRange(**figures).text(1)}/s,"
    return f"{text} gain over the better of one {MedianRange(**row['gain']).text(2)}"


if __name__ == "__main__":
    main()
