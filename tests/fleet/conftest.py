"""The report of an actor for the tests of fleets."""

from typing import Any

from rl4sys_zmq.fleet import ActorReport


def report_of(**changes: Any) -> ActorReport:
    """Return the report of an actor that has joined, with other values in `changes`."""
    counts: dict[str, Any] = {"steps": 10, "episodes": 0, "returns": 0, "mean_return": None, "credit_wait_s": 0.25}
    whole = {"actor_id": "a", "state": "joined", "version": 1, "uptime_s": 1.0, "done": False, **counts, **changes}
    return ActorReport(**whole)
