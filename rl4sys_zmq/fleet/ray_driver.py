"""The program that connects a fleet with Ray. It creates, follows and ends the Ray actors in which the fleet's actors run.

`ray_engine` starts it with the descriptor of the socketpair to the fleet's process, and the address of the cluster. It is a
process of its own for the reasons that the learner's driver has. When the socketpair closes, which is also when the fleet's
process ends, it terminates its actors, kills the rest, and ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from rl4sys_zmq.fleet.engine import CONFIG_EXIT_CODE, TERMINATE_S
from rl4sys_zmq.fleet.ray_packets import CPU, ENDED, NEWS, START, STOP, WAITING
from rl4sys_zmq.fleet.ray_worker import FOLLOW_S, RayWorker
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, decode_packet, encode_packet
from rl4sys_zmq.learner.engines.ray_cluster import (
    SuspectNodes,
    alive_nodes,
    check_own_node,
    connect_to_ray,
    error_line,
    run_driver,
)
from rl4sys_zmq.learner.engines.ray_packets import CONNECTED
from rl4sys_zmq.learner.engines.ray_resources import nodes_text
from rl4sys_zmq.version import package_version

__all__ = ["FleetDriver", "main"]

PENDING_S = 5.0
"""Time after which actors that Ray has not placed so far are reported, in seconds."""
LATE_S = FOLLOW_S + 0.5
"""Time after which a Ray actor is killed whose child process should have been killed there, in seconds."""
LOOK_S = 0.05
LOOK_EVERY_S = 1.0
LOST, KILLED = 1, -9


@dataclass(slots=True, kw_only=True)
class _Placement:
    """One actor of the fleet, from its start until its end.

    Attributes:
        number: The number with which the fleet names it.
        actor: The Ray actor.
        call: The call of an actor's method that has not returned so far: of `RayWorker.start`, then of `RayWorker.follow`.
        node: The node on which it is; empty until that is known.
        host: The address of this node.
        since: When the Ray actor was created.
        grace_s: The grace with which the next call stops the actor. None: it does not.
        kill_at: When the Ray actor is killed.
    """

    number: int
    actor: Any
    call: Any
    node: str
    since: float
    host: str = ""
    grace_s: float | None = None
    kill_at: float = float("inf")


class FleetDriver:
    """The connection to Ray, and the Ray actors that it has created. One thread uses it."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._poll = select.poll()
        self._poll.register(pair, select.POLLIN)
        self._placements: dict[int, _Placement] = {}
        self._node = ""
        self._suspects = SuspectNodes()
        self._looked = 0.0
        self._reported = ""

    def connect(self, address: str) -> None:
        """Connect to a cluster, or start a local Ray, and report its nodes.

        Args:
            address: ``local``, ``auto``, or the ``HOST:PORT`` of the head node.

        Raises:
            Exception: If that is impossible. Ray raises exceptions of many types.
        """
        fields = connect_to_ray(address)
        self._node = fields["node"]
        self.send(CONNECTED, **fields)

    def run(self) -> None:
        """Follow the fleet's packets and the actors, until the fleet closes the socketpair. Then terminate the actors.

        Raises:
            RuntimeError: If the node that this process is connected to has left the cluster.
        """
        while self._read():
            now = time.monotonic()
            if now - self._looked >= LOOK_EVERY_S:
                self._looked = now
                check_own_node(self._node)
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

    def send(self, kind: str, **fields: object) -> None:
        """Send a packet to the fleet."""
        with contextlib.suppress(OSError):  # the fleet has ended: `_read` returns False
            self._pair.send(encode_packet(kind, **fields), socket.MSG_NOSIGNAL)

    def _read(self) -> bool:
        """Handle the packets that have arrived; wait for one if there is no actor. Return False after the fleet's end."""
        wait_s = 0.0 if self._placements else LOOK_S
        while self._poll.poll(wait_s * 1000):
            try:
                data = self._pair.recv(MAX_PACKET_BYTES)
            except OSError:
                return False
            if not data:
                return False
            kind, fields = decode_packet(data)
            if kind == START:
                self._start(**fields)
            elif kind == STOP and fields["number"] in self._placements:
                self._stop(self._placements[fields["number"]], fields["grace_s"])
            wait_s = 0.0
        return True

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
        """Handle the results of the calls that have returned, and kill the actors whose time has passed."""
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
    """Connect to Ray, and follow the fleet until it ends.

    The arguments of the command line are the descriptor of the socketpair, and the address of the cluster.
    """
    run_driver(FleetDriver)
