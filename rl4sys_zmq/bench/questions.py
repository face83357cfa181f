"""The questions that can be measured, each with its baseline: the body of ``rl4sys-learner bench`` and of ``benchmarks/``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rl4sys_zmq.bench.collect import measure_collect, missing_for
from rl4sys_zmq.bench.counting import CountingLearner
from rl4sys_zmq.bench.fanout import CASES, measure_fanout
from rl4sys_zmq.bench.footprint import measure_footprint, measure_overhead, measure_running
from rl4sys_zmq.bench.machine import machine_record
from rl4sys_zmq.bench.pairs import LEAST_PAIRS, Pairs, spread
from rl4sys_zmq.bench.step import measure_step

__all__ = ["QUESTIONS", "Options", "measure", "script"]

ENVS = ("CartPole-v1", "LunarLander-v3")
PAUSES_S = (0.0, 0.000_1)

Record = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured.

    Attributes:
        pairs: of ours and the baseline.
        seconds: of each measurement of a loop.
        steps: of each measurement of a step.
        versions: of each measurement of the fan-out.
        num_envs: environments of a collecting actor.
        seed: of everything random.
    """

    pairs: int = LEAST_PAIRS
    seconds: float = 5.0
    steps: int = 50_000
    versions: int = 40
    num_envs: int = 32
    seed: int = 1


def measure(names: Sequence[str], options: Options, say: Say, path: Path | None = None) -> Record:
    """Measures, says a line for each figure, and writes all of them as JSON to `path`."""
    record: Record = {**machine_record(), "seed": options.seed, "pairs": options.pairs, "results": {}}
    say(f"{record['machine']['cpu']}, {record['machine']['cores']} cores, load {record['machine']['load']}")
    say(f"versions {record['versions']}, commit {record['commit']}, seed {options.seed}, {options.pairs} pairs\n")
    say(f"{'':46} {'ours':>12} {'baseline':>12}   ratio [least, greatest]")
    for name in names:
        record["results"][name] = QUESTIONS[name](options, say)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n")
    return record


def script(text: str | None, names: Sequence[str], say: Say) -> None:
    """The command line of a script in ``benchmarks/`` that measures some of the questions."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=names, default=names, help="what to measure")
    parser.add_argument("--json", type=Path, help="write the result here")
    for field in fields(Options):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    what, path = given.pop("what"), given.pop("json")
    measure(what, Options(**given), say, path)


def _step(options: Options, say: Say) -> Record:
    record = {}
    with CountingLearner() as learner:
        for pause_s in PAUSES_S:
            steps = options.steps if not pause_s else options.steps // 5
            times = measure_step(learner.address, options.pairs, steps, pause_s)
            label = f"{pause_s * 1e6:.0f} us apart" if pause_s else "tight loop"
            record[label] = {
                "median_us": _line(say, f"step, us, {label}, median", times.medians),
                "p99_us": _line(say, f"step, us, {label}, p99", times.p99),
                "forward_us": times.forward_us,
            }
            say(f"{'  the forward pass alone, plainly':46} {'':12} {times.forward_us:12.2f}")
    return record


def _footprint(options: Options, say: Say) -> Record:
    found = measure_footprint(options.pairs)
    with CountingLearner() as learner:
        running = spread([measure_running(learner.address) / 1024 for _ in range(options.pairs)])
    record = {
        "import_s": _line(say, "import, s", found.import_s, 3),
        "resident_kib": _line(say, "resident after import, KiB", found.resident_kib, 0),
        "running_mib": running.median,
    }
    say(f"{'resident while acting, MiB':46} {running.median:12.1f}")
    return record


def _overhead(options: Options, say: Say) -> Record:
    with CountingLearner() as learner:
        shares = measure_overhead(learner.address, options.pairs, options.seconds)
    record = _line(say, "1 kHz loop, CPU over wall", shares.ours, 4)
    beyond = [a - b for a, b in zip(shares.ours.differences, shares.plain.differences, strict=True)]
    for name, label, differences in (
        ("added_percent", "added, % of wall time", shares.ours.differences),
        ("plain_percent", "added by a plain function that acts", shares.plain.differences),
        ("beyond_plain_percent", "added beyond that", beyond),
    ):
        added = spread([100 * d for d in differences])
        record[name] = added.median
        say(f"{'  ' + label:46} {added.text()}")
    return record


def _collect(options: Options, say: Say) -> Record:
    record = {}
    for env_id in ENVS:
        if missing := missing_for(env_id):
            say(f"{env_id}: left out, it needs {missing}")
            continue
        pairs = measure_collect(env_id, options.pairs, options.seconds, options.num_envs, options.seed)
        record[env_id] = _line(say, f"{env_id} x {options.num_envs}, steps/s", pairs, 0)
    return record


def _fanout(options: Options, say: Say) -> Record:
    record = {}
    for kilobytes, actors in CASES:
        pairs = measure_fanout(kilobytes, actors, options.pairs, options.versions, options.seed)
        label = f"weights of {kilobytes} kB to {actors} actor{'s' * (actors > 1)}, ms"
        record[label] = _line(say, label, pairs, 3)
    return record


def _line(say: Say, label: str, pairs: Pairs, digits: int = 2) -> Record:
    ours, baseline, ratio = spread(pairs.ours).median, spread(pairs.baseline).median, spread(pairs.ratios)
    say(f"{label:46} {ours:12.{digits}f} {baseline:12.{digits}f}   {ratio.text()}")
    return pairs.record()


QUESTIONS: dict[str, Callable[[Options, Say], Record]] = {
    "step": _step,
    "footprint": _footprint,
    "overhead": _overhead,
    "collect": _collect,
    "fanout": _fanout,
}
"""By name; each says its lines and returns them."""
