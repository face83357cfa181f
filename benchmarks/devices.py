"""Gradient steps per second of PPO and DQN on the CPU and on a GPU, for networks of different sizes.

    python benchmarks/devices.py --seconds 5 --json benchmarks/results/devices.json

The algorithms train on random segments, without a network. The ways of computing take turns, so that a change in the machine's
speed affects all of them: the CPU with one thread of torch, the CPU with several threads, and, if torch finds a GPU, the GPU with
float32 and with TensorFloat-32.
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

ALGORITHMS = {"PPO": 2, "DQN": 1}
"""The algorithms, and the number of networks that each of them trains."""
PPO_STEPS = 8
"""The gradient steps of an update of PPO: two minibatches, four epochs."""
DQN_STEPS = 16
"""The gradient steps of an update of DQN."""


def main() -> None:
    """Measures each algorithm and size, and prints the table."""
    options = parse()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    print(f"GPU: {gpu or 'none'}; minibatches of {options.rows} rows", flush=True)
    rows = []
    for name, networks in ALGORITHMS.items():
        for hidden in (64, *(hidden_width(size, networks) for size in options.sizes)):
            row = measure(name, hidden, options)
            rows.append(row)
            print(line(row), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        given = {"gpu": gpu, "minibatch_rows": options.rows, "seconds": options.seconds, "rounds": options.rounds}
        options.json.write_text(json.dumps({**machine_record(), **given, "rows": rows}, indent=2) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[1_000_000, 20_000_000], help="trained parameters, in addition to 64-64"
    )
    parser.add_argument("--rows", type=int, default=256, help="steps in a minibatch")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads in the second way of computing")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each measurement; at least one update is made")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way of computing")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args()


def measure(name: str, hidden: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one algorithm with two hidden layers of one width."""
    ways = {"CPU, 1 thread": (1, "cpu", False), f"CPU, {options.threads} threads": (options.threads, "cpu", False)}
    if torch.cuda.is_available():
        ways |= {"GPU": (1, "cuda", False), "GPU, TF32": (1, "cuda", True)}
    with ExitStack() as stack:
        updates = {way: prepare(stack, name, hidden, options.rows, device) for way, (_, device, _) in ways.items()}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for round_number in range(-1, options.rounds):
            for way, (threads, _, tf32) in ways.items():
                torch.set_num_threads(threads)
                torch.backends.cuda.matmul.allow_tf32 = tf32
                update, steps = updates[way]
                rate = steps * updates_per_s(update, options.seconds if round_number >= 0 else 0.0)
                if round_number >= 0:  # the first round is a warm-up
                    rates[way].append(rate)
    best = [max(pair) for pair in zip(*list(rates.values())[:2], strict=True)]
    gains = {way: asdict(spread([a / b for a, b in zip(values, best, strict=True)])) for way, values in rates.items()}
    figures = {way: asdict(spread(values)) for way, values in rates.items()}
    parameters = ALGORITHMS[name] * layer_parameters(hidden)
    return {"algorithm": name, "hidden": hidden, "parameters": parameters, "steps_per_s": figures, "gain": gains}


def prepare(stack: ExitStack, name: str, hidden: int, rows: int, device: str) -> tuple[Callable[[], None], int]:
    """A function that makes one update of a new algorithm, and the number of gradient steps in an update."""
    if name == "PPO":
        parameters = {
            "steps_per_update": 2 * rows, "minibatch_size": rows, "update_epochs": 4, "normalise_observations": False,
        }  # fmt: skip
        data, steps = random_segment(2 * rows), PPO_STEPS
    else:
        parameters = {
            "batch_size": rows, "learning_starts": 2048, "train_frequency": 64, "gradient_steps": DQN_STEPS,
        }  # fmt: skip
        data, steps = random_segment(64), DQN_STEPS
    algorithm = placed_algorithm(stack, name, {**parameters, "hidden_sizes": [hidden, hidden]}, device=device)
    if name == "DQN":
        algorithm.observe(random_segment(2048))

    def update() -> None:
        algorithm.observe(data)
        assert algorithm.update() is not None

    return update, steps


def line(row: dict[str, Any]) -> str:
    """One algorithm and size for the eye."""
    text = f"{row['algorithm']} {row['hidden']}-{row['hidden']}, {row['parameters']:,} parameters, gradient steps/s:"
    for way, figures in row["steps_per_s"].items():
        text += f" {way} {MedianRange(**figures).text(1)} (x {MedianRange(**row['gain'][way]).text(2)});"
    return text


if __name__ == "__main__":
    main()
