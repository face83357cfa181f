"""The process that connects a fleet with Ray: it creates, follows and ends the Ray actors in which the fleet's actors run.

`ray_engine` starts it. When the socketpair to the fleet closes, it terminates its actors, kills the rest, and ends.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from rl4sys_zmq.fleet.engine import CONFIG_EXIT_CODE, TERMINATE_S
from rl4sys_zmq.fleet.ray_engine import CPU, ENDED, NEWS, START, STOP, WAITING
from rl4sys_zmq.fleet.ray_worker import FOLLOW_S, RayWorker
from rl4sys_zmq.remote.ray_cluster import LOOK_S, PENDING_S, Driver, alive_nodes, error_line, run_driver
from rl4sys_zmq.remote.ray_process import nodes_text
from rl4sys_zmq.version import package_version

LATE_S = FOLLOW_S + 0.5
"""Time until a Ray actor is killed whose child process should have been killed on its node, in seconds."""
LOST, KILLED = 1, -9


@dataclass(slots=True, kw_only=True)
class _Placement:
    number: int  # the number with which the fleet names it
    actor: Any
    call: Any  # the call of the Ray actor that has not returned so far: of `RayWorker.start`, then of `RayWorker.follow`
    node: str
    since: float
    host: str = ""  # the address of its node; empty until it runs there
    grace_s: float | None = None  # the grace with which the next call stops the actor. None: it does not
    kill_at: float = float("inf")


class FleetDriver(Driver):
    """The connection of a fleet to Ray, and the Ray actors that it has created."""

    def __init__(self, pair: socket.socket) -> None:
        super().__init__(pair)
        self._placements: dict[int, _Placement] = {}
        self._reported = ""

    def run(self) -> None:
        """Follow the fleet's packets and the actors, until the fleet closes the socketpair. Then terminate the actors."""
        while self._read(wait=not self._placements):
            now = time.monotonic()
            if self._nodes_are_due(now):
                self._say_who_waits(now)
            self._follow_all()
        for placement in list(self._placements.values()):
            self._stop(placement, 0.0)
        while self._placements:
            self._follow_all()

    def close(self) -> None:
        """Kill all actors that are left. Their child processes end with their stdin."""
        for placement in list(self._placements.values()):
            self._end(placement, KILLED, "")

    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == START:
            self._start(**fields)
        elif kind == STOP and fields["number"] in self._placements:
            self._stop(self._placements[fields["number"]], fields["grace_s"])

    def _say_who_waits(self, now: float) -> None:
        nodes = alive_nodes()
        waiting = [placement for placement in self._placements.values() if not placement.host]
        total = sum(node["resources"].get("CPU", 0.0) for node in nodes)
        text = ""
        if waiting and len(self._placements) > total:
            text = (
                f"{len(self._placements):,} actors need a CPU each, and the Ray cluster has {nodes_text(nodes)}; the others wait"
            )
        elif any(now - placement.since >= PENDING_S for placement in waiting):
            free = ray.available_resources().get("CPU", 0.0)
            text = f"{len(waiting):,} actors wait for a CPU each, and the Ray cluster has {free:g} free"
        if text and text != self._reported:
            self.send(WAITING, text=text)
        self._reported = text

    # ---- one actor

    def _start(self, number: int, arguments: list[str], folder: str) -> None:
        used = [placement.node for placement in self._placements.values()]
        strategy, node = self._suspects.strategy(CPU, alive_nodes(), used)
        actor = ray.remote(RayWorker).options(num_cpus=CPU["CPU"], max_restarts=0, scheduling_strategy=strategy).remote()
        call = actor.start.remote(arguments, folder, package_version())
        self._placements[number] = _Placement(number=number, actor=actor, call=call, node=node, since=time.monotonic())
        self._looked = 0.0

    def _stop(self, placement: _Placement, grace_s: float) -> None:
        if not placement.host:  # it has nothing to drain
            self._end(placement, KILLED, "")
            return
        placement.grace_s = min(grace_s, placement.grace_s if placement.grace_s is not None else grace_s)
        placement.kill_at = min(placement.kill_at, time.monotonic() + grace_s + TERMINATE_S + LATE_S)

    def _follow_all(self) -> None:
        """Handle the results of calls, and kill the actors whose time has passed."""
        pending = [placement.call for placement in self._placements.values()]
        if pending and ray.wait(pending, timeout=LOOK_S)[0]:
            returned = set(ray.wait(pending, num_returns=len(pending), timeout=0)[0])
            for placement in list(self._placements.values()):
                if placement.call in returned:
                    self._follow(placement)
        now = time.monotonic()
        for placement in list(self._placements.values()):
            if now >= placement.kill_at:
                self._end(placement, KILLED, f"node {placement.host} did not answer; it was killed")

    def _follow(self, placement: _Placement) -> None:
        try:
            result = ray.get(placement.call)
        except RayTaskError as exc:
            self._end(placement, LOST, f"its Ray worker raised {error_line(exc.cause or exc)}")
        except RayError as exc:  # its process or its node is lost, or could not be reached for a moment
            if isinstance(exc, ActorUnavailableError):
                self._suspects.add(placement.node)
            if isinstance(exc, RayActorError) and not placement.host and "ModuleNotFoundError" in str(exc):
                lacks = f"a node of the Ray cluster lacks rl4sys_zmq {package_version()} or a module that it needs"
                self._end(placement, CONFIG_EXIT_CODE, f"{lacks}: {error_line(exc)}; install it there")
            else:
                where = f"its Ray worker on {placement.host}, or that node," if placement.host else "its Ray worker"
                self._end(placement, LOST, f"{where} is lost: {error_line(exc)}")
        else:
            self._on_result(placement, result)

    def _on_result(self, placement: _Placement, result: dict[str, Any]) -> None:
        if not placement.host:
            placement.node, placement.host = result["node"], result["host"]
            if result["error"]:
                self._end(placement, CONFIG_EXIT_CODE, f"{placement.host}: {result['error']}")
                return
            lines = [f"it runs on {placement.host}, node {placement.node} of the Ray cluster"]
            self.send(NEWS, number=placement.number, report="", lines=lines)
        else:
            self.send(NEWS, number=placement.number, report=result["report"], lines=result["lines"])
            if result["exit_code"] is not None:
                self._end(placement, result["exit_code"], "")
                return
        placement.call = placement.actor.follow.remote(placement.grace_s)
        placement.grace_s = None

    def _end(self, placement: _Placement, exit_code: int, text: str) -> None:
        """End the Ray actor if it still runs, and report the end."""
        with contextlib.suppress(RayError):  # it has ended already
            ray.kill(placement.actor, no_restart=True)
        del self._placements[placement.number]
        self.send(ENDED, number=placement.number, exit_code=exit_code, text=text)


def main() -> None:
    run_driver(FleetDriver)
