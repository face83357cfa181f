"""Learning curves from a run's log."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.learner.run import log_files
from rl4sys_zmq.learner.run.log_files import read_log
from rl4sys_zmq.limits import RECENT_EPISODES

WINDOW = RECENT_EPISODES
"""Number of episodes in a moving mean of returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """The learning curve of one client: ``N`` episodes in the order in which they ended."""

    label: str  # the name of the curve in a picture
    client_id: str
    returns: NDArray[np.float64]  # the return of each episode, float64 ``[N]``
    # the number of environment steps that the learner had received at the end of each episode, ``[N]``
    steps: NDArray[np.float64]
    # the time from the join of the client's first actor to the end of each episode, ``[N]``, without the time during
    # which no learner ran. It is measured at the learner, at most 0.1 s late
    seconds: NDArray[np.float64]
    policy_lag: float | None  # the mean lag of the training data. None: nothing was trained
    # the learner's evaluations of versions, ``[M, 3]``: mean return, steps at the publication, seconds
    evaluations: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 3)))

    def reached(self, target: float) -> tuple[float, int] | None:
        """Return the seconds and steps at which the mean return of `WINDOW` episodes first reached `target`, None for never."""
        full = moving_mean(self.returns)[WINDOW - 1 :]
        hits = np.flatnonzero(full >= target)
        if not len(hits):
            return None
        index = int(hits[0]) + WINDOW - 1
        return float(self.seconds[index]), int(self.steps[index])


def moving_mean(values: NDArray[np.float64], window: int = WINDOW) -> NDArray[np.float64]:
    """Return an array with, for each element, the mean of that element and up to `window` - 1 elements before."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts), dtype=np.float64)


@dataclass(slots=True)
class _ClientCurve:
    """The data of one client's learning curve, which grow while the log of a run is read."""

    # return, steps and seconds of each training episode, without those that a restart from a checkpoint has undone
    rows: list[tuple[float, float, float]] = field(default_factory=list)
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
                    self.rows += [(total, step, seconds) for step, total, _ in record["episodes"]]


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
    curves = []
    played = {client_id: client for client_id, client in sorted(clients.items()) if client.rows}
    for client_id, client in played.items():
        returns, steps, seconds = np.asarray(client.rows, dtype=np.float64).T
        label = run_dir.name if run_dir.name == client_id or len(played) == 1 else f"{run_dir.name}/{client_id}"
        lag = float(np.mean(client.lags)) if client.lags else None
        curves.append(
            LearningCurve(
                label=label,
                client_id=client_id,
                returns=returns,
                steps=steps,
                seconds=seconds,
                policy_lag=lag,
                evaluations=np.array(client.evaluations, np.float64).reshape(-1, 3),
            )
        )
    return curves


def draw_curves(curves: Sequence[LearningCurve], path: Path, *, target: float | None = None) -> None:
    """Draw episode returns and their moving mean, over steps and over seconds. The suffix of the file determines the format.

    Raises:
        ConfigError: If matplotlib is missing or does not support the suffix.
        RunDirectoryError: If the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as exc:
        raise ConfigError(f"a plot needs matplotlib: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for index, curve in enumerate(curves):
        color = f"C{index % 10}"
        label = curve.label if not curve.label.startswith("_") else f" {curve.label}"  # a legend leaves out labels with "_"
        mean = moving_mean(curve.returns)
        greedy, *places = curve.evaluations.T
        for axes, x, place in zip((left, right), (curve.steps, curve.seconds), places, strict=True):
            if len(greedy):
                axes.plot(place, greedy, "D--", color=color, markersize=4, linewidth=1, label=f"{label}, evaluated")
            axes.plot(x, curve.returns, ".", color=color, markersize=2, alpha=0.25)
            axes.plot(x, mean, color=color, linewidth=2, label=label)
    for axes, name in ((left, "environment steps"), (right, "seconds since the first actor joined")):
        if target is not None:
            axes.axhline(target, color="black", linewidth=0.8, linestyle="--", label=f"target {target:g}")
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    left.set_ylabel(f"episodic return; line: mean of {WINDOW}")
    if curves:
        legend = left.legend(fontsize="small")
        legend.set_in_layout(False)  # a hundred names are larger than the picture
        for text in legend.get_texts():
            text.set_parse_math(False)  # a name is no formula
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a character of a name that no font has becomes a box
            figure.savefig(path, dpi=120)
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be written: {exc.strerror}") from exc
