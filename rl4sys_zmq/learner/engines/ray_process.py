"""The start of a driver process, which is connected to Ray: its address of the cluster, and its descriptor.

The learner and the fleet of actors both have such a process, so that their own processes never import Ray.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess

from rl4sys_zmq.child_process import start_with_socket
from rl4sys_zmq.config.learner import ray_address
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.ray_packets import LOCAL

__all__ = ["CLOSE_S", "CONNECT_S", "cluster_address", "described_cluster", "spawn_driver"]

CONNECT_S = 60.0
"""Longest time to connect to a cluster, or to start a local Ray, in seconds."""

CLOSE_S = 5.0
"""Longest time in which the driver ends the local Ray that it has started, in seconds. Then it is killed."""

_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""A Ray that a driver starts sends no statistics to Ray's authors, unless the environment says so."""


def cluster_address(given: str | None) -> str:
    """Return the address of the cluster: the given one, else that in ``RAY_ADDRESS``, else ``local``.

    Raises:
        ConfigError: If Ray is not installed, or the environment variable ``RAY_ADDRESS`` is invalid.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine: ray needs ray, which is not installed: pip install 'rl4sys-zmq[ray]'", key="engine")
    found = os.environ.get("RAY_ADDRESS")
    return given or (check_value("RAY_ADDRESS", found, ray_address) if found else LOCAL)


def described_cluster(address: str) -> str:
    """Return the words for the cluster at an address, for messages."""
    return "the local Ray" if address == LOCAL else f"the Ray cluster at {address}"


def spawn_driver(theirs: socket.socket, program: str, address: str) -> subprocess.Popen[bytes]:
    """Start a driver process.

    Args:
        theirs: The driver's end of a socketpair. The caller closes it.
        program: The Python code that runs the driver. Its arguments are `address`, and the descriptor of the socketpair.
        address: ``local``, ``auto``, or the ``HOST:PORT`` of the head node.

    Raises:
        OSError, subprocess.SubprocessError: If no process can be started.
    """
    silent = subprocess.DEVNULL  # Ray writes messages of its own there
    return start_with_socket(theirs, "-c", program, address, stdout=silent, stderr=silent, environment=_NO_STATISTICS)
