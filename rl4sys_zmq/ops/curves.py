"""Learning curves from a run's log: reading, smoothing and drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, RunDirectoryError
from rl4sys_zmq.learner.log_files import read_log

__all__ = ["WINDOW", "LearningCurve", "draw_curves", "moving_mean", "read_curves"]

WINDOW = 100
"""Number of episodes in a moving mean of returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """The learning curve of one client: ``N`` training episodes in the order in which they ended. Arrays are float64 ``[N]``.

    Attributes:
        label: The name of the curve in a picture, from the names of the run directory and the client.
        client_id: The name of the client.
        returns: The return of each episode.
        steps: The number of environment steps that the learner had received at the end of each episode.
        seconds: The time from the join of the client's first actor to the end of each episode, in seconds. It is measured at
            the learner, at most 0.1 s late.
        policy_lag: The mean number of policy versions by which the training data were behind. None: nothing was trained.
    """

    label: str
    client_id: str
    returns: NDArray[np.float64]
    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    policy_lag: float | None

    def reached(self, target: float) -> tuple[float, int] | None:
        """Return the seconds and the steps at which the mean return of `WINDOW` episodes first reached `target`, or None."""
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


def read_curves(run_dir: Path) -> list[LearningCurve]:
    """Read the log of a run directory, and return a curve for each client with at least one finished episode.

    Raises:
        RunDirectoryError: If the directory has no readable ``log.jsonl``.
    """
    started: dict[str, float] = {}
    base: dict[str, float] = {}
    rows: dict[str, list[tuple[float, float, float]]] = {}
    lags: dict[str, list[float]] = {}
    for record in read_log(run_dir):
        client = record.get("client_id", "")
        if record["event"] == "actor_joined":
            started.setdefault(client, record["t"])
        elif record["event"] == "client_restarted" and rows.get(client):
            base[client] = rows[client][-1][1]  # the new learner thread counts from 0
        elif record["event"] == "metrics":
            began = started.setdefault(client, record["t"])
            if "dist/policy_lag" in record["scalars"]:
                lags.setdefault(client, []).append(record["scalars"]["dist/policy_lag"])
            for step, total, _ in record["episodes"]:
                rows.setdefault(client, []).append((total, base.get(client, 0.0) + step, record["t"] - began))
    curves = []
    for client, found in sorted(rows.items()):
        returns, steps, seconds = np.asarray(found, dtype=np.float64).T
        label = run_dir.name if run_dir.name == client or len(rows) == 1 else f"{run_dir.name}/{client}"
        lag = float(np.mean(lags[client])) if client in lags else None
        curves.append(LearningCurve(label=label, client_id=client, returns=returns, steps=steps, seconds=seconds, policy_lag=lag))
    return curves


def draw_curves(curves: Sequence[LearningCurve], path: Path, *, target: float | None = None) -> None:
    """Draw learning curves into a picture file: episode returns and their moving mean, over steps and over seconds.

    The suffix of the file determines the format.

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
        mean = moving_mean(curve.returns)
        for axes, x in ((left, curve.steps), (right, curve.seconds)):
            axes.plot(x, curve.returns, ".", color=color, markersize=2, alpha=0.25)
            axes.plot(x, mean, color=color, linewidth=2, label=curve.label)
    for axes, name in ((left, "environment steps"), (right, "seconds since the first actor joined")):
        if target is not None:
            axes.axhline(target, color="black", linewidth=0.8, linestyle="--", label=f"target {target:g}")
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    left.set_ylabel(f"episodic return; line: mean of {WINDOW}")
    if curves:
        left.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be written: {exc.strerror}") from exc
