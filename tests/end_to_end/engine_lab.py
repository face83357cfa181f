"""Helpers for the tests of engines with a process per client: they wait for processes and for values of the status."""

from __future__ import annotations

from typing import Any, TypeVar

from kit import until

from rl4sys_zmq.learner import Learner

PATIENCE_S = 60.0
PLUGIN = "harness.engine_plugin"
T = TypeVar("T")


def client_of(learner: Learner, client_id: str = "lab") -> dict[str, Any]:
    found: dict[str, Any] = learner.status()["clients"].get(client_id, {"state": "none"})
    return found


def trained(learner: Learner, count: int, client_id: str = "lab") -> dict[str, Any]:
    """Return the client's status, once at least `count` segments are trained and none is pending."""

    def ready() -> dict[str, Any] | None:
        client = client_of(learner, client_id)
        done = client["state"] == "running" and client["verdicts"]["trained"] >= count and not client["pending"]
        return client if done else None

    return until(ready, f"{count} segments are trained on")


def balanced(client: dict[str, Any], count: int) -> None:
    """Assert that each accepted segment was trained once."""
    assert (client["accepted"], client["verdicts"]["trained"], client["rolled_back"], client["gap"]) == (count, count, 0, 0)
