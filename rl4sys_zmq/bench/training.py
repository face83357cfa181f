"""Time to solve a task, from nothing: a learner and two actor processes over tcp, as ``rl4sys-learner demo`` runs them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["LIMIT_S", "TARGETS", "Solved", "train_ours"]

TARGETS = {"CartPole-v1": 475.0, "LunarLander-v3": 200.0}
"""Mean returns of the last 100 training episodes."""
WINDOW = 100
LIMIT_S = 95.0
"""After so long a run is stopped, ours or a peer's: a ratio with one that did not finish is a bound."""


@dataclass(frozen=True, slots=True)
class Solved:
    """One run.

    Attributes:
        seconds: from the moment the first actor joined until the target; None if that was not reached.
        steps: of the environments, until then.
        steps_per_s: while training, over the whole run.
        held_steps, held_return: the end of a run that went on, and its mean return there.
    """

    seconds: float | None
    steps: int | None
    steps_per_s: float
    held_steps: int | None = None
    held_return: float | None = None


def train_ours(env_id: str, seed: int, limit_s: float = LIMIT_S, *, hold: bool = False, folder: Path | None = None) -> Solved:
    """One run of the demo; the figures are read from its log.

    Args:
        env_id: a task of `TARGETS`.
        seed: of everything.
        limit_s: when it is stopped.
        hold: go on to twice the steps.
        folder: keep the run below it.
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
