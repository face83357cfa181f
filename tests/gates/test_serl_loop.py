"""SERL's actor and learner on Pendulum, with the learner killed and started again, and the actor's loop unmodified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.testing.addresses import TransportUnderTest

from .conftest import Child, Spawn, Tier

pytest.importorskip("torch")
pytest.importorskip("gymnasium")

EXAMPLE = Path(__file__).parents[2] / "examples" / "async_learner_actor.py"
SOLVED = -200.0
PATIENCE_S = {"quick": 60.0, "long": 420.0}


def hear_until(child: Child, ready: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
    """The first report of a program for which a condition holds."""
    reports: list[dict[str, Any]] = []
    while not reports or not ready(reports[-1]):
        reports.append(child.hear(timeout_s))
    return reports[-1]


def test_serls_loop_lives_through_a_killed_learner_and_learns(
    tier: Tier, spawn: Spawn, seed: int, report: Callable[..., None]
) -> None:
    """Quick: the actor goes on without its learner, and the next one gets all transitions and trains. Long: to -200."""
    patience_s = PATIENCE_S[tier.name]
    with TransportUnderTest("ipc") as ipc:
        options = {"address": ipc.address(), "example": str(EXAMPLE), "seed": seed}
        learner = spawn("serl_loop", {**options, "role": "learner"})
        actor = spawn("serl_loop", {**options, "role": "actor"})
        before = hear_until(actor, lambda r: r.get("networks", 0) >= tier.size(20, 200), patience_s)
        learner.kill()
        without = hear_until(actor, lambda r: r.get("failed", 0) > before["failed"], patience_s)
        assert without["step"] > before["step"]

        second = spawn("serl_loop", {**options, "role": "learner"})
        again = hear_until(actor, lambda r: r.get("networks", 0) >= without["networks"] + tier.size(5, 20), patience_s)
        known = hear_until(second, lambda r: r["updates"] > 50, patience_s)
        assert known["replay"] >= without["held"]  # what the first one had is sent again
        solved = {"step": again["step"], "evaluated": None}
        if tier.long:
            solved = hear_until(actor, lambda r: r.get("evaluated", SOLVED - 1.0) >= SOLVED, patience_s)
        report(**solved, failed=again["failed"], replay=known["replay"])
        for child in (actor, second):
            child.end()
