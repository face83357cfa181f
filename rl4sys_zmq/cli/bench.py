"""The command ``rl4sys-learner bench``: the published benchmarks, each compared with a reference, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl4sys_zmq.bench.measurements import QUESTIONS, BenchOptions, measure
from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.errors import ConfigError

PARTS = {
    "step": ("step", "recurrent", "footprint", "overhead", "collect"),
    "ingress": ("ingress", "durable", "coding"),
    "weights": ("weights",),
    "fanout": ("fanout",),
    "infer": ("infer",),
    "train": ("train",),
}
"""The values of the option ``--what``, and the names of the measurements that each value runs."""


def bench(what: Sequence[str], pairs: int, seconds: float, *, peers: bool, path: Path | None) -> None:
    """Run the benchmarks of the given parts (keys of `PARTS`), or of all parts if `what` is empty, and print the results."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as exc:
            raise ConfigError(f"--json: {path} cannot be written: {exc.strerror}; choose another file", key="json") from exc
    names = [name for part in PARTS if part in what or not what for name in PARTS[part]]
    assert set(names) <= set(QUESTIONS)
    measure(names, BenchOptions(pairs=pairs, seconds=seconds, peers=peers), print_line, path)
