"""The program that connects a learner with Ray. It creates, watches and ends the Ray actors that train the learner's clients.

It is a process of its own for four reasons: Ray installs signal handlers, also in C++; it writes to stdout; its calls can take
seconds; and a driver whose node is lost cannot continue. The learner then starts another one (`ray_connection`).

The program ends when the socketpair closes, which is also when the learner's process ends. It then ends its actors, and the Ray
that it has started itself, if any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from rl4sys_zmq.remote.ray_cluster import PENDING_S, Driver, PlacedRayActor, alive_nodes, run_driver
from rl4sys_zmq.remote.ray_process import BUILT_IN, KILL, PLACE, PLACED, WAITING, amounts_text, placement_problem
from rl4sys_zmq.remote.ray_worker import RayWorker


@dataclass(slots=True, kw_only=True)
class _Worker(PlacedRayActor):
    client_id: str
    wanted: dict[str, float]  # the resources that it needs, by Ray's names
    start: str = field(repr=False)  # the start data, which contain secrets
    path: list[str]  # `sys.path` of the learner
    waits: bool  # for a node with these resources. Otherwise it fails if there is none.
    reported: str = ""  # the last text about what this worker waits for


class RayDriver(Driver[_Worker]):
    """The driver of a learner. Its Ray actors are workers: each trains one client."""

    ENDED_WELL = {"end": "", "error": ""}

    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == PLACE:
            worker = _Worker(**fields)
            self._placements[worker.number] = worker
            self._place(worker, alive_nodes())
        elif kind == KILL and fields["number"] in self._placements:
            worker = self._placements[fields["number"]]
            self._avoid(worker.node)  # the learner has not heard of it for a while
            self._end(worker)

    def _place(self, worker: _Worker, nodes: Sequence[Mapping[str, Any]]) -> None:
        problem = placement_problem(worker.wanted, nodes)
        if problem and worker.waits:
            self._wait(worker, problem)
        elif problem:
            self._end(worker, error=f"resources: {problem}; change the resources of the client, or add a node")
        else:
            options: dict[str, object] = {
                "name": f"rl4sys-{worker.client_id}-{worker.number}",
                "num_gpus": worker.wanted.get("GPU", 0),
                "resources": {name: amount for name, amount in worker.wanted.items() if name not in BUILT_IN},
            }
            if "memory" in worker.wanted:
                options["memory"] = worker.wanted["memory"]
            actor = self._create(worker, RayWorker, worker.wanted, **options)
            worker.call = actor.describe.remote(worker.start, worker.path)

    def _wait(self, worker: _Worker, text: str) -> None:
        if text != worker.reported:
            worker.reported = text
            self.send(WAITING, number=worker.number, text=text)

    def _on_nodes(self, nodes: Sequence[Mapping[str, Any]], now: float) -> None:
        for worker in list(self._placements.values()):
            if worker.actor is None:
                self._place(worker, nodes)
            elif not worker.host and now - worker.since >= PENDING_S:
                available = ray.available_resources()
                free = amounts_text({name: available.get(name, 0.0) for name in worker.wanted})
                needs = amounts_text(worker.wanted)
                self._wait(worker, f"Ray has not placed it so far: it needs {needs} on one node, and the cluster has {free} free")

    def _on_result(self, worker: _Worker, result: Any) -> None:
        if worker.host:
            self._end(worker, end=result)
            return
        worker.node, worker.host = result["node"], result["host"]
        self.send(PLACED, number=worker.number, node=worker.node, host=worker.host, pid=result["pid"])
        worker.call = worker.actor.run.remote(worker.start)

    def _fail(self, worker: _Worker, problem: str, *, recurs: bool) -> None:
        self._end(worker, **{"error" if recurs else "end": problem})


def main() -> None:
    """Connect to Ray, and follow the learner until it ends."""
    run_driver(RayDriver)
