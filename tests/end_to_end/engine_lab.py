"""What the tests of engines with a process per client share: waits for processes, and for what the status shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rl4sys_zmq.learner import Learner

PATIENCE_S = 60.0
PLUGIN = "harness.engine_plugin"
T = TypeVar("T")


def until(ready: Callable[[], T | None], what: str) -> T:
    """Waits for a condition that nobody announces; returns what it returned at last."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not (found := ready()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s"
        pause.wait(0.02)
    return found


def is_there(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def client_of(learner: Learner, client_id: str = "lab") -> dict[str, Any]:
    found: dict[str, Any] = learner.status()["clients"].get(client_id, {"state": "none"})
    return found


def trained(learner: Learner, count: int, client_id: str = "lab") -> dict[str, Any]:
    """The client's status, once it has trained on so many segments and nothing is pending."""

    def ready() -> dict[str, Any] | None:
        client = client_of(learner, client_id)
        done = client["state"] == "running" and client["verdicts"]["trained"] >= count and not client["pending"]
        return client if done else None

    return until(ready, f"{count} segments are trained on")


def balanced(client: dict[str, Any], count: int) -> None:
    """Each accepted segment was trained on once."""
    assert (client["accepted"], client["verdicts"]["trained"], client["rolled_back"], client["gap"]) == (count, count, 0, 0)
