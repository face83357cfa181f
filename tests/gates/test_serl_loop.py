"""SERL's actor and learner on Pendulum. The learner is killed and started again, and the actor's loop is unmodified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.testing.addresses import TransportUnderTest

from .conftest import Child, Report, Spawn

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

EXAMPLE = Path(__file__).parents[2] / "examples" / "async_learner_actor.py"
SOLVED = -200.0
TRAINING_S = 300.0


def hear_until(child: Child, ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first report of a program that satisfies a condition."""
    while not ready(report := child.hear(TRAINING_S)):
        pass
    return dict(report)


@pytest.mark.timeout(600)
def test_serls_loop_learns_pendulum_though_its_learner_is_killed(spawn: Spawn, seed: int, report: Report) -> None:
    with TransportUnderTest("ipc") as ipc:
        options = {"address": ipc.address(), "example": str(EXAMPLE), "seed": seed}
        learner = spawn("serl_loop", {**options, "role": "learner"})
        actor = spawn("serl_loop", {**options, "role": "actor"})
        before = hear_until(actor, lambda r: r.get("networks", 0) >= 50)
        learner.kill()
        without = hear_until(actor, lambda r: r.get("failed", 0) > before["failed"])
        assert without["step"] > before["step"]  # the actor continues

        second = spawn("serl_loop", {**options, "role": "learner"})
        known = hear_until(second, lambda r: r["updates"] > 0)
        assert known["replay"] >= without["held"]  # the transitions of the first learner were sent again
        solved = hear_until(actor, lambda r: r.get("evaluated", SOLVED - 1.0) >= SOLVED)
        report(killed=before["step"], **solved, replay=known["replay"])
        for child in (actor, second):
            child.end()
