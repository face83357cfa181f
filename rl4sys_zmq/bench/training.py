"""The benchmark of training: time to solve a task with ``rl4sys-learner demo``, a learner and two actor processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["LIMIT_S", "TARGETS", "Solved", "train_ours"]

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
"""Target for the mean return of the last 100 training episodes."""
WINDOW = 100
LIMIT_S = 95.0
"""Time limit of a run, ours or a peer's. A ratio with a run that did not finish is a bound."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The result of one run.

    Attributes:
        seconds: Time from the first actor's join to the target; None if the target was not reached.
        steps: Environment steps until then.
        steps_per_s: Steps per second over the whole run.
        held_steps, held_return: Steps and mean return at the end of a run that continued after the target.
    """

    seconds: float | None
    steps: int | None
    steps_per_s: float
    held_steps: int | None = None
    held_return: float | None = None


def train_ours(env_id: str, seed: int, limit_s: float = LIMIT_S, *, hold: bool = False, folder: Path | None = None) -> Solved:
    """Run the demo once and read the figures from its log.

    Args:
        env_id: A task of `TARGETS`.
        seed: Seed of all random choices.
        limit_s: Time limit in seconds.
        hold: True to continue to twice the steps.
        folder: Keep the run directory in this folder.
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
        return Solved(seconds, steps, rate)
    return Solved(seconds, steps, rate, int(curve.steps[-1]), round(float(np.mean(curve.returns[-WINDOW:])), 1))
