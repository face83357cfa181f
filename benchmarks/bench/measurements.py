"""The benchmarks that scripts in ``benchmarks/`` run and the guard repeats, by name."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from bench.coding import CODECS, SCENES, CodingResult, measure_coding, measure_images
from bench.collect import measure_collect, missing_for
from bench.counting import CountingLearner
from bench.diffs import measure_diffs
from bench.fanout import CASES, LEVELS, compare_fanout
from bench.footprint import measure_footprint, measure_overhead, measure_running
from bench.infer import CALLERS, DEVICES, PERCEPTRONS, measure_calls, measure_round_trip
from bench.ingress import PAYLOADS, bytes_per_item, raw
from bench.pairs import LEAST_PAIRS, PairedFigures, measure_pairs, spread
from bench.peers import PeerMissing, run_peer
from bench.ppo_versions import own_pairs
from bench.step import UNITS, measure_recurrent_step, measure_step
from rl4sys_zmq import native
from rl4sys_zmq.capacity.machine import machine_record
from rl4sys_zmq.capacity.measure_paths import append_rate, measure_ingress
from rl4sys_zmq.images import NEEDS_PILLOW, has_pillow

__all__ = ["QUESTIONS", "BenchOptions", "measure", "script"]

ENVS = ("CartPole-v1", "LunarLander-v3")
PAUSES_S = (0.0, 0.000_1)
P1_CASES = ((64, 1), (64, 4), (16, 1), (1, 1))
"""Pairs of the number of trajectories in a message and the number of senders."""
LARGE = ("P2", "P3")
DURABLE_BATCHES = (64, 16)
INFER_PAUSES_S = (0.0, 0.001)
INGRESS_PEERS = ("grpc_per_step", "reqrep_pickle")
REPEAT = 9
LOWER, HIGHER = "lower", "higher"
"""The values of the key ``better`` in a benchmark record: the direction in which a ratio is better."""

Record = dict[str, Any]
PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the benchmarks.

    Attributes:
        pairs: Number of pairs of measurements, each of this library and of a reference implementation (the baseline).
        seconds: Duration of each measurement of a loop, in seconds.
        steps: Number of steps in each measurement of ``step``.
        versions: Number of published versions in each measurement of ``fanout``.
        num_envs: Number of environments of the actor in ``collect``.
        seed: Seed of all random choices.
        peers: True to measure other libraries too.
        folder: Folder for journals and for the file of the baseline. None: the temporary folder.
    """

    pairs: int = LEAST_PAIRS
    seconds: float = 5.0
    steps: int = 50_000
    versions: int = 40
    num_envs: int = 32
    seed: int = 1
    peers: bool = False
    folder: Path | None = None


def measure(names: Sequence[str], options: BenchOptions, say: PrintLine, path: Path | None = None) -> Record:
    """Run benchmarks, print a line for each figure, and return all figures. With `path`, also write them as JSON.

    Args:
        names: Names of benchmarks, from `QUESTIONS`.
        options: Options of the benchmarks.
        say: Function that prints a line.
        path: File for the figures.
    """
    form = native.form().partition(":")[0]
    record: Record = {**machine_record(), "form": form, "seed": options.seed, "pairs": options.pairs, "results": {}}
    say(f"{record['machine']['cpu']}, {record['machine']['cores']} cores, load {record['machine']['load']}; {form} form")
    say(f"versions {record['versions']}, commit {record['commit']}, seed {options.seed}, {options.pairs} pairs\n")
    say(f"{'':46} {'ours':>12} {'baseline':>12}   ratio [lowest, highest]")
    for name in names:
        record["results"][name] = QUESTIONS[name](options, say)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n")
    return record


def script(text: str | None, names: Sequence[str], say: PrintLine) -> None:
    """Parse the command line of a script in ``benchmarks/``, and run its benchmarks.

    Args:
        text: Description of the script, for its help.
        names: Names of the script's benchmarks, from `QUESTIONS`.
        say: Function that prints a line.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=names, default=names, help="what to measure")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--peers", action="store_true", help="measure other libraries too (make peers)")
    parser.add_argument("--folder", type=Path, help="folder of journals (default: the temporary folder)")
    for field in fields(BenchOptions):
        if field.name not in ("peers", "folder"):
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    what, path = given.pop("what"), given.pop("json")
    measure(what, BenchOptions(**given), say, path)


def _step(options: BenchOptions, say: PrintLine) -> Record:
    record = {}
    with CountingLearner() as learner:
        for pause_s in PAUSES_S:
            steps = options.steps if not pause_s else options.steps // 5
            times = measure_step(learner.address, options.pairs, steps, pause_s)
            label = f"{pause_s * 1e6:.0f} us apart" if pause_s else "tight loop"
            record[label] = {
                "median_us": _line(say, f"step, us, {label}, median", times.medians),
                "p99_us": _line(say, f"step, us, {label}, p99", times.p99),
                "p99.9_us": _line(say, f"step, us, {label}, p99.9", times.p999),
                "forward_us": times.forward_us,
            }
            say(f"{'  forward pass alone, plain numpy':46} {'':12} {times.forward_us:12.2f}")
    return record


def _recurrent(options: BenchOptions, say: PrintLine) -> Record:
    with CountingLearner() as learner:
        times = measure_recurrent_step(learner.address, options.pairs, options.steps)
    return {"median_us": _line(say, f"step, us, GRU of {UNITS} units, beside the MLP", times)}


def _footprint(options: BenchOptions, say: PrintLine) -> Record:
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


def _overhead(options: BenchOptions, say: PrintLine) -> Record:
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


def _collect(options: BenchOptions, say: PrintLine) -> Record:
    record = {}
    for env_id in ENVS:
        if missing := missing_for(env_id):
            say(f"{env_id}: skipped; it needs {missing}")
            continue
        pairs = measure_collect(env_id, options.pairs, options.seconds, options.num_envs, options.seed)
        record[env_id] = _line(say, f"{env_id} x {options.num_envs}, steps/s", pairs, 0, HIGHER)
    return record


def _fanout(options: BenchOptions, say: PrintLine) -> Record:
    record = {}
    for (kilobytes, actors), level in product(CASES, LEVELS):
        pairs = compare_fanout(kilobytes, actors, level, options.pairs, options.versions, options.seed)
        label = f"{kilobytes} kB to {actors} actor{'s' * (actors > 1)}, level {level}, ms"
        record[label] = _line(say, label, pairs, 3)
    return record


def _ingress(options: BenchOptions, say: PrintLine) -> Record:
    record = {
        f"P1, {batch} a message, {actors} senders": _in_memory(options, say, "P1", batch, actors) for batch, actors in P1_CASES
    }
    record |= {name: _in_memory(options, say, name, 1, 1) for name in LARGE}
    for name in INGRESS_PEERS if options.peers else ():
        for actors in (1, 4):
            if (peer := _peer(say, name, "--seconds", options.seconds, "--senders", actors)) is not None:
                rate, label = peer["steps_per_s"] / 1e6, f"P1, {actors} senders: {peer['peer']}, M steps/s"
                say(f"{label:46} {'':12} {rate:12.3f}")
                record[label] = peer
    return record


def _in_memory(options: BenchOptions, say: PrintLine, name: str, batch: int, actors: int) -> Record:
    payload = PAYLOADS[name]
    load: Record = {"batch": batch, "processes": actors, "seconds": options.seconds}
    pairs = measure_pairs(
        lambda: measure_ingress(payload, **load).steps_per_s / 1e6, lambda: raw(payload, **load).steps_per_s / 1e6, options.pairs
    )
    figures = _line(say, f"{name}, {batch} a message, {actors} sender{'s' * (actors > 1)}, M steps/s", pairs, 3, HIGHER)
    return {**figures, "bytes_per_trajectory": bytes_per_item(payload, batch)}


def _infer(options: BenchOptions, say: PrintLine) -> Record:
    record = {}
    for policy, pause_s in product(PERCEPTRONS, INFER_PAUSES_S):
        label = f"round trip, {policy}, {f'{pause_s * 1e3:g} ms apart' if pause_s else 'tight loop'}, us"
        record[label] = _line(say, label, measure_round_trip(policy, options.pairs, options.seconds, pause_s), 0)
    for policy in (*PERCEPTRONS, *DEVICES):
        label = f"{CALLERS} callers, {policy}, calls/s"
        record[label] = _line(say, label, measure_calls(policy, options.pairs, options.seconds), 0, HIGHER)
    for policy, callers in product((PERCEPTRONS[0], *DEVICES), (1, CALLERS)) if options.peers else ():
        how = "--seconds", options.seconds, "--callers", callers, "--device-s", policy.device_s, "--hidden", *policy.hidden
        if (peer := _peer(say, "infer_pickle", *how)) is not None:
            label = f"{callers} caller{'s' * (callers > 1)}, {policy}: {peer['peer']}, calls/s"
            say(f"{label:60} {peer['calls_per_s']:11.0f}; {peer['median_us']:.0f} us")
            record[label] = peer
    return record


def _durable(options: BenchOptions, say: PrintLine) -> Record:
    payload, record = PAYLOADS["P1"], {}
    for batch in DURABLE_BATCHES:
        commits: list[float] = []
        load = {"batch": batch, "seconds": options.seconds, "folder": options.folder}

        def written(load: Record = load, commits: list[float] = commits) -> float:
            rate = measure_ingress(payload, fsync="always", **load)
            commits.append(rate.items_per_commit)
            return rate.steps_per_s / 1e6

        def appended(load: Record = load, commits: list[float] = commits) -> float:
            return append_rate(payload, items_per_commit=commits[-1], **load).steps_per_s / 1e6

        pairs = measure_pairs(written, appended, options.pairs)
        figures = _line(say, f"P1, durable, {batch} a message, M steps/s", pairs, 3, HIGHER)
        record[f"{batch} a message"] = {**figures, "items_per_commit": spread(commits).median}
    return record


def _coding(options: BenchOptions, say: PrintLine) -> Record:
    record = {}
    for env_id, batch in product(ENVS, (1, 16)):
        if missing := missing_for(env_id):
            say(f"{env_id}: skipped; it needs {missing}")
            continue
        label = f"{env_id}, {batch} a message"
        record[label] = _coded_line(say, label, measure_coding(env_id, batch, options.seed))
    for scene, (name, codec) in product(SCENES, CODECS.items()):
        if codec is not None and not has_pillow():
            say(f"{scene} images, {name}: skipped: {NEEDS_PILLOW}")
            continue
        label = f"{scene} images, {name}"
        record[label] = _coded_line(say, label, measure_images(scene, codec, options.seed))
    return record


def _coded_line(say: PrintLine, label: str, found: CodingResult) -> Record:
    say(
        f"{label}: {found.coded_bytes:,.0f} of {found.plain_bytes:,.0f} bytes, {found.encode_us:.0f} us to code,"
        f" {found.decode_us:.0f} us to decode; pays below {found.break_even_mbit_s:,.0f} Mbit/s; off by {found.error:.1f}"
    )
    return {**asdict(found), "break_even_mbit_s": found.break_even_mbit_s}


def _weights(options: BenchOptions, say: PrintLine) -> Record:
    return {name: measure_diffs(name, versions, REPEAT, say) for name, versions, _ in own_pairs(options.seed)}


def _peer(say: PrintLine, name: str, *arguments: object) -> Record | None:
    try:
        return run_peer(name, *arguments)
    except PeerMissing as missing:
        say(f"skipped: {missing}")
        return None


def _line(say: PrintLine, label: str, pairs: PairedFigures, digits: int = 2, better: str = LOWER) -> Record:
    mine, baseline, ratio = spread(pairs.ours).median, spread(pairs.baseline).median, spread(pairs.ratios)
    say(f"{label:46} {mine:12.{digits}f} {baseline:12.{digits}f}   {ratio.text()}")
    return {**pairs.record(), "better": better}


QUESTIONS: dict[str, Callable[[BenchOptions, PrintLine], Record]] = {
    "step": _step,
    "recurrent": _recurrent,
    "footprint": _footprint,
    "overhead": _overhead,
    "collect": _collect,
    "fanout": _fanout,
    "ingress": _ingress,
    "durable": _durable,
    "infer": _infer,
    "coding": _coding,
    "weights": _weights,
}
"""The benchmarks by name. Each function prints lines and returns its figures."""
