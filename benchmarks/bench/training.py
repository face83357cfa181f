"""The benchmark of training: the time until ``rl4sys-learner demo``, with a learner and two actors, solves a task."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["LIMIT_S", "TARGETS", "TrainingResult", "train_ours"]

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
"""The mean return of the last 100 training episodes at which a task counts as solved, by environment."""
WINDOW = 100
LIMIT_S = 95.0
"""Time limit of a training, of this library or another, in seconds."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of one training run.

    Attributes:
        seconds: Time from the join of the first actor until the target was reached. None if it was not reached.
        steps: Number of environment steps until the target was reached. None if it was not reached.
        steps_per_s: Environment steps per second over the whole run.
        held_steps, held_return: Number of steps and mean return at the end of a run that continued after the target. None without
            ``hold``.
    """

    seconds: float | None
    steps: int | None
    steps_per_s: float
    held_steps: int | None = None
    held_return: float | None = None


def train_ours(
    env_id: str, seed: int, limit_s: float = LIMIT_S, *, hold: bool = False, folder: Path | None = None
) -> TrainingResult:
    """Run ``rl4sys-learner demo`` once, and read the figures from its log.

    Args:
        env_id: An environment in `TARGETS`.
        seed: Seed of all random choices.
        limit_s: Time limit in seconds.
        hold: True to continue after the target, up to twice the number of steps.
        folder: Folder in which to keep the run directory. None: remove the run directory afterwards.
    """
    from rl4sys_zmq.ops.curves import read_curves

    with tempfile.TemporaryDirectory() as scratch:
        run_dir = (folder or Path(scratch)) / f"{env_id}-{seed}"
        command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "demo", "--env", env_id, "--seed", str(seed)]
        command += ["--run-dir", str(run_dir), "--max-seconds", str(limit_s), *(["--hold"] if hold else [])]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"the demo failed:\n{done.stdout}\n{done.stderr}")
        (curve,) = read_curves(run_dir)
    reached = curve.reached(TARGETS[env_id])
    seconds, steps = (round(reached[0], 2), reached[1]) if reached is not None else (None, None)
    rate = float(curve.steps[-1] / curve.seconds[-1])
    if not hold:
        return TrainingResult(seconds, steps, rate)
    return TrainingResult(seconds, steps, rate, int(curve.steps[-1]), round(float(np.mean(curve.returns[-WINDOW:])), 1))
