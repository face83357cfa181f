"""The program that connects a learner with Ray. It creates, watches and ends the Ray actors that train the learner's clients.

It is a process of its own for four reasons: Ray installs signal handlers, also in C++; it writes to stdout; its calls can take
seconds; and a driver whose node is lost cannot continue. The learner then starts another one (`ray_connection`).

The program ends when the socketpair closes, which is also when the learner's process ends. It then ends its actors, and the Ray
that it has started itself, if any.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from rl4sys_zmq.remote.ray_cluster import LOOK_S, PENDING_S, Driver, alive_nodes, error_line, run_driver
from rl4sys_zmq.remote.ray_process import BUILT_IN, ENDED, KILL, PLACE, PLACED, WAITING, amounts_text, placement_problem
from rl4sys_zmq.remote.ray_worker import RayWorker
from rl4sys_zmq.version import package_version


@dataclass(slots=True, kw_only=True)
class _Placement:
    """The state of one worker, from the request to place it until its end."""

    number: int
    client_id: str
    wanted: dict[str, float]  # the resources that it needs, by Ray's names
    start: str = field(repr=False)  # the start data, which contain secrets
    path: list[str]  # `sys.path` of the learner
    waits: bool  # for a node with these resources. Otherwise it fails if there is none.
    actor: Any = None
    call: Any = None  # of `RayWorker.describe`, then of `RayWorker.run`
    node: str = ""  # empty until it is known
    running: bool = False  # from the call of `RayWorker.run` on
    since: float = 0.0  # when the actor was created
    reported: str = ""  # the last text about what this worker waits for


class RayDriver(Driver):
    """The connection of a learner to Ray, and the Ray actors that it has created."""

    def __init__(self, pair: socket.socket) -> None:
        super().__init__(pair)
        self._placements: dict[int, _Placement] = {}

    def run(self) -> None:
        while self._read(wait=all(placement.call is None for placement in self._placements.values())):
            now = time.monotonic()
            if self._nodes_are_due(now):
                self._place_those_that_wait(now)
            pending = [placement.call for placement in self._placements.values() if placement.call is not None]
            if pending and ray.wait(pending, timeout=LOOK_S)[0]:
                returned = ray.wait(pending, num_returns=len(pending), timeout=0)[0]
                for placement in list(self._placements.values()):
                    self._follow(placement, returned)

    def close(self) -> None:
        """End all Ray actors. They do not write another checkpoint."""
        for placement in list(self._placements.values()):
            self._end(placement)

    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == PLACE:
            placement = _Placement(**fields)
            self._placements[placement.number] = placement
            self._place(placement)
        elif kind == KILL and fields["number"] in self._placements:
            placement = self._placements[fields["number"]]
            self._suspects.add(placement.node)  # the learner has not heard of it for a while
            self._end(placement)

    # ---- one worker

    def _place(self, placement: _Placement) -> None:
        nodes = alive_nodes()
        problem = placement_problem(placement.wanted, nodes)
        if problem:
            if placement.waits:
                self._wait(placement, problem)
            else:
                self._end(placement, error=f"resources: {problem}; change the resources of the client, or add a node")
            return
        others = {name: amount for name, amount in placement.wanted.items() if name not in BUILT_IN}
        used = [each.node for each in self._placements.values()]
        strategy, placement.node = self._suspects.strategy(placement.wanted, nodes, used)
        options = {
            "name": f"rl4sys-{placement.client_id}-{placement.number}",
            "num_cpus": placement.wanted.get("CPU", 0),
            "num_gpus": placement.wanted.get("GPU", 0),
            "resources": others,
            "max_restarts": 0,  # a restart by Ray would have the key of the worker before it; the learner restarts with a new one
            "scheduling_strategy": strategy,
        }
        if "memory" in placement.wanted:
            options["memory"] = placement.wanted["memory"]
        placement.actor = ray.remote(RayWorker).options(**options).remote()
        placement.call = placement.actor.describe.remote(placement.start, placement.path)
        placement.since = time.monotonic()

    def _wait(self, placement: _Placement, text: str) -> None:
        if text != placement.reported:
            placement.reported = text
            self.send(WAITING, number=placement.number, text=text)

    def _follow(self, placement: _Placement, returned: list[Any]) -> None:
        """Handle the result of the actor's method, if it has returned."""
        if placement.call not in returned:
            return
        try:
            result = ray.get(placement.call)
        except RayTaskError as exc:
            self._end(placement, end=f"it raised {error_line(exc.cause or exc)}")
        except RayError as exc:  # its process or its node is lost, or could not be reached for a moment
            if isinstance(exc, ActorUnavailableError):
                self._suspects.add(placement.node)
            if isinstance(exc, RayActorError) and not placement.running and "ModuleNotFoundError" in str(exc):
                error = (
                    f"a node of the Ray cluster lacks rl4sys_zmq {package_version()} or a module that it needs: {error_line(exc)}"
                )
                self._end(placement, error=f"{error}; install it there")
            else:
                self._end(placement, end=error_line(exc))
        else:
            if placement.running:
                self._end(placement, end=result)
            elif result["error"]:
                self._end(placement, error=f"node {result['node']} ({result['host']}): {result['error']}")
            else:
                self.send(PLACED, number=placement.number, node=result["node"], host=result["host"], pid=result["pid"])
                placement.node, placement.running = result["node"], True
                placement.call = placement.actor.run.remote(placement.start)

    def _end(self, placement: _Placement, *, end: str = "", error: str = "") -> None:
        if placement.actor is not None:
            with contextlib.suppress(RayError):  # it has ended already
                ray.kill(placement.actor, no_restart=True)
        del self._placements[placement.number]
        self.send(ENDED, number=placement.number, end=end, error=error)

    def _place_those_that_wait(self, now: float) -> None:
        for placement in list(self._placements.values()):
            if placement.actor is None:
                self._place(placement)
            elif not placement.running and now - placement.since >= PENDING_S:
                available = ray.available_resources()
                free = amounts_text({name: available.get(name, 0.0) for name in placement.wanted})
                needs = amounts_text(placement.wanted)
                self._wait(
                    placement, f"Ray has not placed it so far: it needs {needs} on one node, and the cluster has {free} free"
                )


def main() -> None:
    """Connect to Ray, and follow the learner until it ends."""
    run_driver(RayDriver)
