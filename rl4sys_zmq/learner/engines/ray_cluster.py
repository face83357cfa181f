"""Functions of the processes that are connected to Ray: the connection, the nodes, and the choice of a node for an actor."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl4sys_zmq.learner.engines.ray_packets import LOCAL, REFUSED
from rl4sys_zmq.learner.engines.ray_resources import placement_problem

__all__ = ["Driver", "SuspectNodes", "alive_nodes", "check_own_node", "connect_to_ray", "error_line", "run_driver"]

REACH_S = 5.0
"""Longest time to wait for a TCP connection to the cluster's address, in seconds."""

SUSPECT_S = 30.0
"""Time for which no actor is placed on a node of which one could not be reached, in seconds. Ray itself needs about 15 s to find
that a node is lost, and places actors on it until then."""

STORE_BYTES = 80 * 1024 * 1024
"""Size of the object store of a local Ray. No data passes through it, and this is about the least that Ray accepts."""


def alive_nodes() -> list[dict[str, Any]]:
    """Return ``node``, ``host`` and ``resources`` of each node of the cluster that is not lost."""
    return [
        {"node": node["NodeID"], "host": node["NodeManagerAddress"], "resources": node["Resources"]}
        for node in ray.nodes()
        if node["Alive"]
    ]


def check_own_node(node: str) -> None:
    """Check that the node to which this process is connected is in the cluster.

    Raises:
        RuntimeError: If it has left the cluster.
    """
    if node not in (each["node"] for each in alive_nodes()):
        raise RuntimeError("the node of this machine has left the Ray cluster")


def connect_to_ray(address: str) -> dict[str, Any]:
    """Connect to a cluster, or start a local Ray. Return the fields of the packet ``connected``.

    Args:
        address: ``local``, ``auto``, or the ``HOST:PORT`` of the head node.

    Raises:
        Exception: If that is impossible. Ray raises exceptions of many types.
    """
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
    """The nodes of which an actor could not be reached, for `SUSPECT_S` seconds each."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def add(self, node: str) -> None:
        """Place no actor on this node for a while, if another one has the resources."""
        self._since[node] = time.monotonic()

    def strategy(self, wanted: Mapping[str, float], nodes: Sequence[Mapping[str, Any]], used: Sequence[str]) -> tuple[Any, str]:
        """Return Ray's strategy for a new actor, and the node if the strategy names one: spread, but not on a suspect.

        Args:
            wanted: The resources that the actor needs, by Ray's names.
            nodes: The result of `alive_nodes`.
            used: The node of each other actor.
        """
        now = time.monotonic()
        suspects = {node for node, at in self._since.items() if now - at < SUSPECT_S}
        others = [each["node"] for each in nodes if each["node"] not in suspects and not placement_problem(wanted, [each])]
        if not suspects.intersection(each["node"] for each in nodes) or not others:
            return "SPREAD", ""
        node = min(others, key=used.count)
        return NodeAffinitySchedulingStrategy(node, soft=True), node


def error_line(exc: BaseException) -> str:
    """Return the class and the text of an exception in one line of at most 400 characters, without Ray's colours."""
    words = " ".join(str(exc).replace("\x1b[36m", "").replace("\x1b[39m", "").split())
    return f"{type(exc).__name__}: {words}"[:400]


class Driver(Protocol):
    """A program that is connected to Ray, and to the process that has started it by a socketpair."""

    def connect(self, address: str) -> None:
        """Connect to Ray."""

    def run(self) -> None:
        """Work until the other process closes the socketpair."""

    def close(self) -> None:
        """End all actors."""

    def send(self, kind: str, **fields: object) -> None:
        """Send a packet to the other process."""


def run_driver(create: Callable[[socket.socket], Driver]) -> None:
    """Run a driver with the arguments of the command line: the address of the cluster, and the descriptor of the socketpair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
