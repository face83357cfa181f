"""The command ``rl4sys-learner plot``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rl4sys_zmq.cli.app import print_line, require
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.ops.curves import WINDOW, CurveGroup, draw_curves, group_curves, read_curves, write_curves
from rl4sys_zmq.ops.system_series import draw_system, read_system, write_system


def plot_returns(
    runs: Sequence[Path],
    output: Path | None,
    csv: Path | None,
    *,
    group: str | None,
    window: int | None,
    x: str | None,
    target: float | None,
) -> None:
    """Draw the learning curves of run directories into one picture, and print a line for each line in it."""
    require("learner", "matplotlib")
    curves = [curve for run in runs for curve in read_curves(run)]
    if not curves:
        remedy = "without episodes, see charts/mean_reward in TensorBoard"
        raise ConfigError(f"no episode has ended in {', '.join(map(str, runs))}; {remedy}")
    groups, window = group_curves(curves, group or "client"), window or WINDOW
    output = output if output is not None else _free_name(Path("curve.png"))
    draw_curves(groups, output, target=target, axes=(x,) if x is not None else ("steps", "time"), window=window)
    for one in groups:
        print_line("; ".join(_facts(one, window)))
    if csv is not None:
        write_curves(groups, csv, window=window)
    print_line(_written(output, csv))


def _facts(group: CurveGroup, window: int) -> Iterator[str]:
    counts = [len(curve.returns) for curve in group.curves]
    yield f"{group.label}: {_range(counts)} episodes, {_range([curve.steps[-1] for curve in group.curves])} steps"
    for size in dict.fromkeys((window, WINDOW) if window < WINDOW else (window,)):
        means = [curve.returns[-size:].mean() for curve in group.curves]
        spread = f" ({min(means):.1f} to {max(means):.1f})" if len(means) > 1 else ""
        yield f"mean of the last {min(size, max(counts))} episodes: {sum(means) / len(means):.1f}{spread}"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} to {high}"


def plot_system(runs: Sequence[Path], output: Path | None, csv: Path | None) -> None:
    """Draw the figures of the processes and machines of run directories, and print a line for each process."""
    require("learner", "matplotlib")
    series = read_system(runs)
    if not series:
        remedy = "the learner records them with psutil installed and system_every_s above 0"
        raise ConfigError(f"no figures of processes in {', '.join(map(str, runs))}; {remedy}")
    output = output if output is not None else _free_name(Path("system.png"))
    draw_system(series, output)
    for label, records in series.items():
        cpu = sum(record["cpu"] for record in records) / len(records)
        memory = max(record["rss_bytes"] for record in records) / 1e6
        print_line(f"{label}: {len(records):,} records; {cpu:.2f} cores on average, at most {memory:,.0f} MB")
    if csv is not None:
        write_system(series, csv)
    print_line(_written(output, csv))


def _written(output: Path, csv: Path | None) -> str:
    return f"wrote {output}" + (f" and {csv}" if csv is not None else "")


def _free_name(path: Path) -> Path:
    """Return the first of ``NAME.png``, ``NAME-2.png``, ``NAME-3.png``, ... that does not exist."""
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], others) if not free.exists())
