"""The process that connects a fleet with Ray: it creates, follows and ends the Ray actors in which the fleet's actors run.

`ray_engine` starts it. When the socketpair to the fleet closes, it terminates its actors, kills the rest, and ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from rl4sys_zmq.fleet.engine import CONFIG_EXIT_CODE, TERMINATE_S
from rl4sys_zmq.fleet.ray_engine import CPU, NEWS, START, STOP
from rl4sys_zmq.fleet.ray_worker import FOLLOW_S, RayFleetActor
from rl4sys_zmq.remote.ray_cluster import PENDING_S, Driver, PlacedRayActor, run_driver
from rl4sys_zmq.remote.ray_process import WAITING, nodes_text
from rl4sys_zmq.version import package_version

LATE_S = FOLLOW_S + 0.5
"""Time until a Ray actor is killed whose child process should have been killed on its node, in seconds."""
LOST, KILLED = 1, -9


@dataclass(slots=True, kw_only=True)
class _Actor(PlacedRayActor):
    grace_s: float | None = None  # the grace with which the next call stops the actor. None: it does not
    kill_at: float = float("inf")


class FleetDriver(Driver[_Actor]):
    """The driver of a fleet. Each of its Ray actors runs one actor of the fleet as a child process."""

    ENDED_WELL = {"exit_code": KILLED, "text": ""}
    _reported = ""

    def run(self) -> None:
        """Follow the fleet's packets and the actors, until the fleet closes the socketpair. Then terminate the actors."""
        super().run()
        for actor in list(self._placements.values()):
            self._stop(actor, 0.0)
        while self._placements:
            self._follow_all()

    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == START:
            self._start(**fields)
        elif kind == STOP and fields["number"] in self._placements:
            self._stop(self._placements[fields["number"]], fields["grace_s"])

    def _on_nodes(self, nodes: Sequence[Mapping[str, Any]], now: float) -> None:
        waiting = [actor for actor in self._placements.values() if not actor.host]
        total = sum(node["resources"].get("CPU", 0.0) for node in nodes)
        text = ""
        if waiting and len(self._placements) > total:
            text = (
                f"{len(self._placements):,} actors need a CPU each, and the Ray cluster has {nodes_text(nodes)}; the others wait"
            )
        elif any(now - actor.since >= PENDING_S for actor in waiting):
            free = ray.available_resources().get("CPU", 0.0)
            text = f"{len(waiting):,} actors wait for a CPU each, and the Ray cluster has {free:g} free"
        if text and text != self._reported:
            self.send(WAITING, text=text)
        self._reported = text

    def _start(self, number: int, arguments: list[str], folder: str) -> None:
        actor = _Actor(number=number)
        actor.call = self._create(actor, RayFleetActor, CPU).start.remote(arguments, folder, package_version())
        self._placements[number] = actor
        self._looked = 0.0

    def _stop(self, actor: _Actor, grace_s: float) -> None:
        if not actor.host:  # it has nothing to drain
            self._end(actor)
            return
        actor.grace_s = min(grace_s, actor.grace_s if actor.grace_s is not None else grace_s)
        actor.kill_at = min(actor.kill_at, time.monotonic() + grace_s + TERMINATE_S + LATE_S)

    def _follow_all(self) -> None:
        """Handle the calls that have returned, and kill the actors whose time has passed."""
        super()._follow_all()
        now = time.monotonic()
        for actor in list(self._placements.values()):
            if now >= actor.kill_at:
                self._end(actor, text=f"node {actor.host} did not answer; it was killed")

    def _on_result(self, actor: _Actor, result: dict[str, Any]) -> None:
        report, exit_code, lines = result.get("report", ""), result.get("exit_code"), result.get("lines", [])
        if not actor.host:
            actor.node, actor.host = result["node"], result["host"]
            lines = [f"it runs on {actor.host}, node {actor.node} of the Ray cluster"]
        self.send(NEWS, number=actor.number, report=report, lines=lines)
        if exit_code is not None:
            self._end(actor, exit_code=exit_code)
            return
        actor.call = actor.actor.follow.remote(actor.grace_s)
        actor.grace_s = None

    def _fail(self, actor: _Actor, problem: str, *, recurs: bool) -> None:
        where = f" on {actor.host}, or that node," if actor.host else ""
        text = f"its Ray worker{where} is lost: {problem}"
        if recurs:
            text = problem
        elif problem.startswith("it raised"):
            text = f"its Ray worker: {problem}"
        self._end(actor, exit_code=CONFIG_EXIT_CODE if recurs else LOST, text=text)


def main() -> None:
    run_driver(FleetDriver)
