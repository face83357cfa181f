"""The base of processes that are connected to Ray: the connection, the nodes, and the life of their Ray actors."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl4sys_zmq.child_process import reset_signals
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, decode_packet, encode_packet
from rl4sys_zmq.remote.ray_process import CONNECTED, ENDED, LOCAL, REFUSED, placement_problem
from rl4sys_zmq.version import package_version

PENDING_S = 5.0
"""Time after which a Ray actor that Ray has not placed so far is reported, in seconds."""

LOOK_S = 0.05  # for a packet, or for the result of a call
LOOK_EVERY_S = 1.0  # at the nodes of the cluster
REACH_S = 5.0  # for a TCP connection to the cluster's address

SUSPECT_S = 30.0
"""Time for which a node is avoided, in seconds. Ray needs about 15 s to find that a node is lost, and uses it until then."""

STORE_BYTES = 80 * 1024 * 1024
"""The object store of a local Ray. No data passes through it, and this is about the least that Ray accepts."""


def alive_nodes() -> list[dict[str, Any]]:
    """Return ``node``, ``host`` and ``resources`` of each node of the cluster that is not lost."""
    return [
        {"node": node["NodeID"], "host": node["NodeManagerAddress"], "resources": node["Resources"]}
        for node in ray.nodes()
        if node["Alive"]
    ]


def error_line(exc: BaseException) -> str:
    """Return the class and the text of an exception in one line, without Ray's colours."""
    text = " ".join(str(exc).replace("\x1b[36m", "").replace("\x1b[39m", "").split())
    return f"{type(exc).__name__}: {text}"[:400]


@dataclass(slots=True, kw_only=True)
class PlacedRayActor:
    """The driver's record of one Ray actor, from the request to place the Ray actor on a node until its end."""

    number: int  # by which the other process names it
    actor: Any = None
    call: Any = None  # the call that has not returned so far. The first one returns the ``node``, its ``host`` and an ``error``
    node: str = ""  # empty until it is known
    host: str = ""  # empty until the first call has returned
    since: float = 0.0  # when the actor was created


P = TypeVar("P", bound=PlacedRayActor)


class Driver(ABC, Generic[P]):
    """The base class of drivers. A driver creates Ray actors, and exchanges packets with the process that has started it."""

    ENDED_WELL: ClassVar[Mapping[str, object]]
    """The fields of the packet ``ended`` for an actor that has ended as it should."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._poll = select.poll()
        self._poll.register(pair, select.POLLIN)
        self._node = ""
        self._placements: dict[int, P] = {}
        self._unreachable: dict[str, float] = {}  # the nodes on which an actor could not be reached, and when
        self._looked = 0.0

    def connect(self, address: str) -> None:
        """Connect to a cluster, or start a local Ray, and report its nodes. Ray raises exceptions of many types."""
        if address == LOCAL:
            ray.init(address="local", include_dashboard=False, object_store_memory=STORE_BYTES, log_to_driver=False)
        else:
            host, _, port = address.rpartition(":")
            if host:
                socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        for number in (signal.SIGTERM, signal.SIGINT):  # Ray has replaced the handlers
            signal.signal(number, signal.SIG_IGN)
        runtime = ray.get_runtime_context()
        self._node, host = runtime.get_node_id(), ray.util.get_node_ip_address()
        about = {"address": runtime.gcs_address, "version": ray.__version__}
        self.send(CONNECTED, host=host, node=self._node, nodes=alive_nodes(), **about)

    def run(self) -> None:
        """Handle packets and Ray actors until the socketpair is closed. Raise RuntimeError if this node has left the cluster."""
        while self._read(wait=all(placement.call is None for placement in self._placements.values())):
            now = time.monotonic()
            if now - self._looked >= LOOK_EVERY_S:
                self._looked, nodes = now, alive_nodes()
                if self._node not in (each["node"] for each in nodes):
                    raise RuntimeError("the node of this machine has left the Ray cluster")
                self._on_nodes(nodes, now)
            self._follow_all()

    def close(self) -> None:
        """End all Ray actors."""
        for placement in list(self._placements.values()):
            self._end(placement)

    @abstractmethod
    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        """Handle a packet of the other process."""

    @abstractmethod
    def _on_nodes(self, nodes: Sequence[Mapping[str, Any]], now: float) -> None:
        """Place the Ray actors that wait, or report why they wait. `nodes` are alive. Called every `LOOK_EVERY_S` seconds."""

    @abstractmethod
    def _on_result(self, placement: P, result: Any) -> None:
        """Handle the result of a call of a Ray actor's method. At the first call of this method, `host` is still empty."""

    @abstractmethod
    def _fail(self, placement: P, problem: str, *, recurs: bool) -> None:
        """End a Ray actor whose call has raised, or whose process is lost. `recurs`: another Ray actor would fail too."""

    def send(self, kind: str, **fields: object) -> None:
        with contextlib.suppress(OSError):  # it has ended: `_read` returns False
            self._pair.send(encode_packet(kind, **fields), socket.MSG_NOSIGNAL)

    def _read(self, *, wait: bool) -> bool:
        """Handle the packets that have arrived. Return False if the other process has ended."""
        wait_s = LOOK_S if wait else 0.0
        while self._poll.poll(wait_s * 1000):
            try:
                data = self._pair.recv(MAX_PACKET_BYTES)
            except OSError:
                return False
            if not data:
                return False
            self._on_packet(*decode_packet(data))
            wait_s = 0.0
        return True

    def _avoid(self, node: str) -> None:
        """Avoid a node for new Ray actors for `SUSPECT_S` seconds, as long as another node has the resources."""
        self._unreachable[node] = time.monotonic()

    def _create(self, placement: P, worker: type, wanted: Mapping[str, float], **options: object) -> Any:
        """Create the Ray actor of a placement, and return it. Ray chooses the node, unless one has to be avoided."""
        now, nodes = time.monotonic(), alive_nodes()
        suspects = {node for node, at in self._unreachable.items() if now - at < SUSPECT_S}
        others = [each["node"] for each in nodes if each["node"] not in suspects and not placement_problem(wanted, [each])]
        strategy: Any = "SPREAD"
        if others and suspects.intersection(each["node"] for each in nodes):
            used = [each.node for each in self._placements.values()]
            placement.node = min(others, key=used.count)
            strategy = NodeAffinitySchedulingStrategy(placement.node, soft=True)
        options |= {"num_cpus": wanted.get("CPU", 0), "max_restarts": 0, "scheduling_strategy": strategy}
        placement.actor, placement.since = ray.remote(worker).options(**options).remote(), now
        return placement.actor

    def _follow_all(self) -> None:
        """Handle the calls of Ray actors that have returned."""
        pending = [placement.call for placement in self._placements.values() if placement.call is not None]
        if pending and ray.wait(pending, timeout=LOOK_S)[0]:
            returned = set(ray.wait(pending, num_returns=len(pending), timeout=0)[0])  # of thousands
            for placement in list(self._placements.values()):
                if placement.call in returned:
                    self._follow(placement)

    def _follow(self, placement: P) -> None:
        try:
            result = ray.get(placement.call)
        except RayTaskError as exc:
            self._fail(placement, f"it raised {error_line(exc.cause or exc)}", recurs=False)
        except RayError as exc:  # its process or its node is lost, or could not be reached for a moment
            if isinstance(exc, ActorUnavailableError):
                self._avoid(placement.node)
            if isinstance(exc, RayActorError) and not placement.host and "ModuleNotFoundError" in str(exc):
                lacks = f"a node of the Ray cluster lacks rl4sys_zmq {package_version()} or a module that it needs"
                self._fail(placement, f"{lacks}: {error_line(exc)}; install it there", recurs=True)
            else:
                self._fail(placement, error_line(exc), recurs=False)
        else:
            if not placement.host and result["error"]:
                self._fail(placement, f"node {result['node']} ({result['host']}): {result['error']}", recurs=True)
            else:
                self._on_result(placement, result)

    def _end(self, placement: P, **outcome: object) -> None:
        """End the Ray actor if it still runs, and report its end."""
        if placement.actor is not None:
            with contextlib.suppress(RayError):  # it has ended already
                ray.kill(placement.actor, no_restart=True)
        del self._placements[placement.number]
        self.send(ENDED, number=placement.number, **{**self.ENDED_WELL, **outcome})


def run_driver(create: Callable[[socket.socket], Driver[Any]]) -> None:
    """Run a driver with the arguments of the command line: the cluster's address, and the descriptor of the socketpair."""
    reset_signals()
    for number in (signal.SIGTERM, signal.SIGINT):  # this process ends when the socketpair is closed
        signal.signal(number, signal.SIG_IGN)
    driver = create(socket.socket(fileno=int(sys.argv[2])))
    code = 1
    try:
        driver.connect(sys.argv[1])
    except Exception as exc:  # noqa: BLE001 - Ray raises many types; the other process reports the text
        driver.send(REFUSED, error=error_line(exc))
    else:
        try:
            driver.run()
            code = 0
        except Exception as exc:  # noqa: BLE001 - as above; the other process starts another driver
            driver.send(REFUSED, error=error_line(exc))
        driver.close()
    ray.shutdown()
    os._exit(code)
