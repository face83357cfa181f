"""The command ``rl4sys-learner bench``: the published benchmarks, each compared with a reference, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl4sys_zmq.bench.measurements import QUESTIONS, BenchOptions, measure
from rl4sys_zmq.cli.app import print_line

__all__ = ["PARTS", "bench"]

PARTS = {
    "step": ("step", "footprint", "overhead", "collect"),
    "ingress": ("ingress", "durable", "coding"),
    "weights": ("weights",),
    "fanout": ("fanout",),
    "infer": ("infer",),
    "train": ("train",),
}
"""The values of the option ``--what``, and the names of the measurements that each value runs."""


def bench(what: Sequence[str], pairs: int, seconds: float, *, peers: bool, path: Path | None) -> None:
    """Run the measurements of the given parts, or of all parts if `what` is empty, in the order of `PARTS`."""
    names = [name for part in PARTS if part in what or not what for name in PARTS[part]]
    assert set(names) <= set(QUESTIONS)
    measure(names, BenchOptions(pairs=pairs, seconds=seconds, peers=peers), print_line, path)
