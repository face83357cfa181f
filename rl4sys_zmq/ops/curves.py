"""Learning curves from the logs of runs, and their pictures."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.learner.run import log_files
from rl4sys_zmq.learner.run.log_files import read_log
from rl4sys_zmq.learner.run.resume import CONFIG
from rl4sys_zmq.limits import RECENT_EPISODES

WINDOW = RECENT_EPISODES
"""Number of episodes in a moving mean of returns."""

AXES = {"steps": "environment steps", "time": "seconds since the first actor joined", "updates": "updates"}
"""The labels of the axes over which curves can be drawn."""

GRID = 400
"""Number of places at which the curves of several runs are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """The learning curve of one client in one run: ``N`` episodes in the order in which they ended."""

    label: str  # the name of the curve in a picture
    client_id: str
    returns: NDArray[np.float64]  # the return of each episode, float64 ``[N]``
    # the number of environment steps that the learner had received at the end of each episode, ``[N]``
    steps: NDArray[np.float64]
    # the time from the join of the client's first actor to the end of each episode, ``[N]``, without the time during
    # which no learner ran. It is measured at the learner, at most 0.1 s late
    seconds: NDArray[np.float64]
    policy_lag: float | None  # the mean lag of the training data. None: nothing was trained
    updates: NDArray[np.float64]  # the number of updates at the end of each episode, ``[N]``
    run: str  # the name of the run directory
    seed: int | None  # of the training, as config.json has it
    settings: str  # what config.json says about the training of this client but for the seed, as text
    # the learner's evaluations of versions, ``[M, 3]``: mean return, steps at the publication, seconds
    evaluations: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 3)))

    def over(self, axis: str) -> NDArray[np.float64]:
        """Return the place of each episode on one of `AXES`."""
        return {"steps": self.steps, "time": self.seconds, "updates": self.updates}[axis]

    def reached(self, target: float) -> tuple[float, int] | None:
        """Return the seconds and steps at which the mean return of `WINDOW` episodes first reached `target`, None for never."""
        full = moving_mean(self.returns)[WINDOW - 1 :]
        hits = np.flatnonzero(full >= target)
        if not len(hits):
            return None
        index = int(hits[0]) + WINDOW - 1
        return float(self.seconds[index]), int(self.steps[index])


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """Curves that are drawn as one line: their mean, in a band from the lowest to the highest."""

    label: str
    curves: tuple[LearningCurve, ...]

    def band(self, axis: str, window: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return places ``[G]`` on the axis, and the moving mean of each curve there, ``[curves, G]``, NaN after its end.

        The places lie between the last first episode of a curve and the longest curve's end. Between two episodes, the values
        are interpolated.
        """
        ranges = [curve.over(axis)[[0, -1]] for curve in self.curves]
        grid = np.linspace(max(first for first, _ in ranges), max(last for _, last in ranges), GRID)
        rows = [np.interp(grid, curve.over(axis), moving_mean(curve.returns, window), right=np.nan) for curve in self.curves]
        return grid, np.asarray(rows)


def group_curves(curves: Sequence[LearningCurve], by: str) -> list[CurveGroup]:
    """Return the curves in groups: by ``client``, those of one client with equal settings but for the seed; by ``seed``, each."""
    if by == "seed":
        names = [c.label if c.seed is None else f"{c.client_id}, seed {c.seed}" for c in curves]
        return [CurveGroup(name if names.count(name) == 1 else c.label, (c,)) for name, c in zip(names, curves, strict=True)]
    groups: dict[tuple[str, str], list[LearningCurve]] = {}
    for curve in curves:
        groups.setdefault((curve.client_id, curve.settings), []).append(curve)
    found = []
    for members in groups.values():
        first, count = members[0], len(members)
        runs = f"{first.client_id}, {count} runs ({first.run} to {members[-1].run}): mean, lowest to highest"
        label = first.label if count == 1 else runs
        found.append(CurveGroup(label, tuple(members)))
    return found


def moving_mean(values: NDArray[np.float64], window: int = WINDOW) -> NDArray[np.float64]:
    """Return an array with, for each element, the mean of that element and up to `window` - 1 elements before."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts), dtype=np.float64)


@dataclass(slots=True)
class _ClientCurve:
    """The data of one client's learning curve, which grow while the log of a run is read."""

    # return, steps, seconds and updates of each training episode, without those that a restart from a checkpoint has undone
    rows: list[tuple[float, float, float, float]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)  # the policy lag in each record of metrics
    # mean return, steps and seconds of each evaluation, without undone ones
    evaluations: list[tuple[float, float, float]] = field(default_factory=list)
    began_s: float | None = None  # the log's time at which the curve begins. None before the first actor joined

    def seconds(self, at: float) -> float:
        """Return the time from the beginning of the curve to the log's time `at`. The first call sets the beginning."""
        if self.began_s is None:
            self.began_s = at
        return at - self.began_s

    def pause(self, pause_s: float) -> None:
        if self.began_s is not None:
            self.began_s += pause_s

    def note(self, record: Mapping[str, Any]) -> None:
        match record["event"]:
            case "actor_joined":
                self.seconds(record["t"])
            case log_files.CLIENT_READY:  # the learner thread continues from here; what it had observed beyond is undone
                self.rows = [row for row in self.rows if row[1] <= record["steps"]]
                self.evaluations = [row for row in self.evaluations if row[1] <= record["steps"]]
            case "metrics":
                if "dist/policy_lag" in record["scalars"]:
                    self.lags.append(record["scalars"]["dist/policy_lag"])
                if "eval/mean_return" in record["scalars"]:
                    evaluated = record["scalars"]["eval/mean_return"]
                    self.evaluations.append((evaluated, record["step"], self.seconds(record["t"])))
                if record["episodes"]:
                    seconds = self.seconds(record["t"])
                    self.rows += [(total, step, seconds, record["update"]) for step, total, _ in record["episodes"]]


def read_curves(run_dir: Path) -> list[LearningCurve]:
    """Read the log of a run directory, and return a curve for each client with a finished episode.

    Episodes after the checkpoint from which the learner continued are left out, and so is the time during which no learner ran.

    Raises:
        RunDirectoryError: If the directory has no readable ``log.jsonl``.
    """
    clients: dict[str, _ClientCurve] = {}
    for record in read_log(run_dir):
        if record["event"] == log_files.LEARNER_STARTED:
            for client in clients.values():
                client.pause(record["down_s"])
        elif client_id := record.get("client_id"):
            clients.setdefault(client_id, _ClientCurve()).note(record)
    curves, config = [], _read_config(run_dir)
    played = {client_id: client for client_id, client in sorted(clients.items()) if client.rows}
    for client_id, client in played.items():
        returns, steps, seconds, updates = np.asarray(client.rows, dtype=np.float64).T
        seed, settings = _settings(config, client_id)
        curves.append(
            LearningCurve(
                label=run_dir.name if run_dir.name == client_id or len(played) == 1 else f"{run_dir.name}/{client_id}",
                client_id=client_id,
                returns=returns,
                steps=steps,
                seconds=seconds,
                updates=updates,
                run=run_dir.name,
                seed=seed,
                settings=settings,
                policy_lag=float(np.mean(client.lags)) if client.lags else None,
                evaluations=np.array(client.evaluations, np.float64).reshape(-1, 3),
            )
        )
    return curves


def _read_config(run_dir: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, RecursionError):  # the log is enough for a curve
        config = json.loads((run_dir / CONFIG).read_bytes())
        return config if isinstance(config, dict) else {}
    return {}


def _settings(config: Mapping[str, Any], client_id: str) -> tuple[int | None, str]:
    """Return the seed of a client, and what else the configuration says about its training, as text."""
    entry = (config.get("clients") or {}).get(client_id) or {}
    parameters = dict(entry.get("algorithm_parameters") or {})
    seed = parameters.pop("seed", None)
    told = [{**entry, "algorithm_parameters": parameters}, config.get("algorithms"), config.get("default_algorithm")]
    return seed if seed is not None else config.get("seed"), json.dumps(told, sort_keys=True)


def write_curves(groups: Iterable[CurveGroup], path: Path, *, window: int = WINDOW) -> None:
    """Write a CSV file with a row for each episode of each curve: its places, its return and the moving mean."""
    names = ("group", "run", "client_id", "seed", "steps", "seconds", "updates", "return", "mean")

    def rows() -> Iterator[Sequence[object]]:
        for label, curve in ((group.label, curve) for group in groups for curve in group.curves):
            columns = (curve.steps, curve.seconds, curve.updates, curve.returns, moving_mean(curve.returns, window))
            for numbers in zip(*(column.tolist() for column in columns), strict=True):
                yield label, curve.run, curve.client_id, "" if curve.seed is None else curve.seed, *numbers

    write_csv(path, names, rows())


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a new CSV file. Raise RunDirectoryError if it cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *rows])
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be written: {exc.strerror}") from exc


def draw_curves(
    curves: Sequence[LearningCurve | CurveGroup],
    path: Path,
    *,
    target: float | None = None,
    axes: Sequence[str] = ("steps", "time"),
    window: int = WINDOW,
) -> None:
    """Draw returns and their moving mean over each of `axes` (`AXES`). The suffix of the file determines the format.

    Of a group, the mean is drawn, in a band from the lowest to the highest moving mean. The line is dotted where some of its
    runs have ended; it is then the mean of the others.

    Raises:
        ConfigError: If matplotlib is missing or does not support the suffix.
        RunDirectoryError: If the file cannot be written.
    """
    groups = [curve if isinstance(curve, CurveGroup) else CurveGroup(curve.label, (curve,)) for curve in curves]
    figure = new_figure(5.5 * len(axes), 4.5)
    plots = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for axis, plot in zip(axes, plots, strict=True):
        for index, group in enumerate(groups):
            (_draw_curve if len(group.curves) == 1 else _draw_band)(plot, group, axis, window, f"C{index % 10}")
        if target is not None:
            plot.axhline(target, color="black", linewidth=0.8, linestyle="--", label=f"target {target:g}")
        plot.set_xlabel(AXES[axis])
        plot.set_xlim(left=0)
        plot.grid(alpha=0.3)
    plots[0].set_ylabel(f"episodic return; line: mean of {window}")
    add_legend(plots[0])
    save_figure(figure, path)


def _draw_curve(plot: Any, group: CurveGroup, axis: str, window: int, color: str) -> None:
    (curve,) = group.curves
    x = curve.over(axis)
    if len(curve.evaluations):
        place = {"steps": curve.evaluations[:, 1], "time": curve.evaluations[:, 2]}
        where = place[axis] if axis in place else np.interp(place["steps"], curve.steps, curve.updates)
        style = {"color": color, "markersize": 4, "linewidth": 1}
        plot.plot(where, curve.evaluations[:, 0], "D--", label=shown(f"{group.label}, evaluated"), **style)
    plot.plot(x, curve.returns, ".", color=color, markersize=2, alpha=0.25)
    plot.plot(x, moving_mean(curve.returns, window), color=color, linewidth=2, label=shown(group.label))


def _draw_band(plot: Any, group: CurveGroup, axis: str, window: int, color: str) -> None:
    grid, rows = group.band(axis, window)
    mean, whole = np.nanmean(rows, axis=0), ~np.isnan(rows).any(axis=0)
    plot.fill_between(grid, np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), color=color, alpha=0.2, linewidth=0)
    plot.plot(grid, mean, ":", color=color, linewidth=2, label=None if whole.all() else "where some of these runs have ended")
    plot.plot(grid[whole], mean[whole], color=color, linewidth=2, label=shown(group.label))


# ---- pictures


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib. Raise ConfigError if it is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        raise ConfigError(f"a plot needs matplotlib: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def shown(label: str) -> str:
    """Return a label that a legend does not leave out: it does so with those that begin with ``_``."""
    return f" {label}" if label.startswith("_") else label


def add_legend(plot: Any) -> None:
    """Add a legend if the plot has lines with labels."""
    if plot.get_legend_handles_labels()[0]:
        style_legend(plot.legend(fontsize="small"))


def style_legend(legend: Any) -> None:
    """Show names as they are, in a legend that does not change the size of the plots."""
    legend.set_in_layout(False)  # a hundred names are larger than the picture
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name is no formula


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a file, as `draw_curves` does."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a character of a name that no font has becomes a box
            figure.savefig(path, dpi=120)
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be written: {exc.strerror}") from exc
