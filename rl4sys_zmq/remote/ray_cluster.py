"""The base of processes that are connected to Ray: the connection, the nodes, and the choice of a node for a Ray actor."""

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
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl4sys_zmq.child_process import reset_signals
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, decode_packet, encode_packet
from rl4sys_zmq.remote.ray_process import CONNECTED, LOCAL, REFUSED, placement_problem

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


def _connect_to_ray(address: str) -> dict[str, Any]:
    """Connect to a cluster, or start a local Ray. Return the fields of the packet ``connected``."""
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
    return {
        "address": runtime.gcs_address,
        "host": ray.util.get_node_ip_address(),
        "node": runtime.get_node_id(),
        "nodes": alive_nodes(),
        "version": ray.__version__,
    }


class SuspectNodes:
    """The nodes on which a Ray actor could not be reached. Each is avoided for `SUSPECT_S` seconds."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def add(self, node: str) -> None:
        """Avoid a node for new Ray actors from now on, as long as another node has the resources."""
        self._since[node] = time.monotonic()

    def strategy(self, wanted: Mapping[str, float], nodes: Sequence[Mapping[str, Any]], used: Sequence[str]) -> tuple[Any, str]:
        """Return Ray's strategy for a new Ray actor, and the name of the node if the strategy has one.

        The strategy avoids suspect nodes. `used` names the node of each present Ray actor; the least used one is preferred.
        """
        now = time.monotonic()
        suspects = {node for node, at in self._since.items() if now - at < SUSPECT_S}
        others = [each["node"] for each in nodes if each["node"] not in suspects and not placement_problem(wanted, [each])]
        if not suspects.intersection(each["node"] for each in nodes) or not others:
            return "SPREAD", ""
        node = min(others, key=used.count)
        return NodeAffinitySchedulingStrategy(node, soft=True), node


def error_line(exc: BaseException) -> str:
    """Return the class and the text of an exception in one line, without Ray's colours."""
    text = " ".join(str(exc).replace("\x1b[36m", "").replace("\x1b[39m", "").split())
    return f"{type(exc).__name__}: {text}"[:400]


class Driver(ABC):
    """A program that is connected to Ray, and by a socketpair to the process that has started the program. One thread uses it.

    A subclass follows the Ray actors that it has created: `run` calls `_read` until that returns False.
    """

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._poll = select.poll()
        self._poll.register(pair, select.POLLIN)
        self._node = ""
        self._suspects = SuspectNodes()
        self._looked = 0.0

    def connect(self, address: str) -> None:
        """Connect to a cluster, or start a local Ray, and report its nodes. Ray raises exceptions of many types."""
        fields = _connect_to_ray(address)
        self._node = fields["node"]
        self.send(CONNECTED, **fields)

    @abstractmethod
    def run(self) -> None:
        """Handle packets and Ray actors until the other process closes the socketpair. Raise RuntimeError if this process's
        node has left the cluster.
        """

    @abstractmethod
    def close(self) -> None:
        """End all Ray actors."""

    @abstractmethod
    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        """Handle a packet of the other process."""

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

    def _nodes_are_due(self, now: float) -> bool:
        """Return True if it is time to look at the nodes. Then raise RuntimeError if the node of this process has left the
        cluster.
        """
        if now - self._looked < LOOK_EVERY_S:
            return False
        self._looked = now
        if self._node not in (each["node"] for each in alive_nodes()):
            raise RuntimeError("the node of this machine has left the Ray cluster")
        return True


def run_driver(create: Callable[[socket.socket], Driver]) -> None:
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
