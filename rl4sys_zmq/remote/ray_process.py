"""A driver process, which is connected to Ray: its start, the packets to and from it, and resources under Ray's names.

The learner and the fleet of actors both have such a process, so that their own processes never import Ray.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rl4sys_zmq.child_process import end_text, start_with_socketpair
from rl4sys_zmq.config import ResourcesConfig
from rl4sys_zmq.config.learner import ray_address
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, decode_packet

LOCAL: Final = "local"
"""The address that stands for a Ray of the learner's own."""

PLACE: Final = "place"
"""To the driver: create a worker. Fields: ``number``, ``client_id``, ``wanted``, ``waits``, ``path``, and ``start`` as text."""

KILL: Final = "kill"
"""To the driver: end a worker by force. Field: ``number``."""

CONNECTED: Final = "connected"
"""From the driver, first: ``address``, ``version`` and ``nodes`` of the cluster, and the ``host`` and ``node`` of the driver."""

REFUSED: Final = "refused"
"""From the driver, last: the ``error`` because of which it is not connected to Ray, or not any more."""

PLACED: Final = "placed"
"""From the driver: the ``node``, ``host`` and ``pid`` of a worker."""

WAITING: Final = "waiting"
"""From the driver: the ``text`` about what a worker, or a fleet's actors, wait for."""

ENDED: Final = "ended"
"""From the driver, the last about a Ray actor. A worker: how it has ended (``end``; empty if in order), or the ``error`` because
of which another worker would fail too. A fleet's actor: its ``exit_code``, and a ``text`` (empty if it printed the reason).
"""


BUILT_IN = ("CPU", "GPU", "memory")
"""The resources that Ray itself defines. Their amounts are arguments of their own in Ray's interface."""


def ray_amounts(resources: ResourcesConfig) -> dict[str, float]:
    """Return the amounts of resources that are reserved for a worker, by Ray's names. Amounts of 0 are left out."""
    amounts = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": float(resources.memory or 0), **resources.custom}
    return {name: amount for name, amount in amounts.items() if amount}


def placement_problem(wanted: Mapping[str, float], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return a text if a worker fits on no node, even if nothing else ran there; else an empty text."""
    nodes = list(nodes)
    for node in nodes:
        if all(amount <= node["resources"].get(name, 0.0) for name, amount in wanted.items()):
            return ""
    return f"no node of the Ray cluster has {amounts_text(wanted)}; there is {nodes_text(nodes)}"


def nodes_text(nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return nodes and their resources as text, such as ``10.0.0.5 {CPU: 8, edge: 1}``."""

    def text(node: Mapping[str, Any]) -> str:
        kept = {k: v for k, v in node["resources"].items() if k != "object_store_memory" and not k.startswith("node:")}
        return f"{node['host']} {amounts_text(kept)}"

    return ", ".join(map(text, nodes)) or "no node"


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Return amounts of resources as text, such as ``{CPU: 2, GPU: 0.5}``: first those that Ray defines, then by name."""
    ordered = sorted(amounts.items(), key=lambda item: (item[0] not in BUILT_IN, item[0]))
    return f"{{{', '.join(f'{name}: {amount:.12g}' for name, amount in ordered)}}}"


CONNECT_S = 60.0
"""Longest time to connect to a cluster, or to start a local Ray."""

CLOSE_S = 5.0
"""Longest time in which the driver ends the local Ray that it has started. Then it is killed."""

_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""A Ray that a driver starts sends no statistics to Ray's authors, unless the environment says so."""


def cluster_address(configured: str | None) -> str:
    """Return the address of the cluster: the configured one, else that in ``RAY_ADDRESS``, else ``local``."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine: ray needs ray, which is not installed: pip install 'rl4sys-zmq[ray]'", key="engine")
    address = os.environ.get("RAY_ADDRESS")
    return configured or (check_value("RAY_ADDRESS", address, ray_address) if address else LOCAL)


def described_cluster(address: str) -> str:
    return "the local Ray" if address == LOCAL else f"the Ray cluster at {address}"


class DriverProcess:
    """A driver process, and the socketpair to it. One thread uses it, and closes it.

    Attributes:
        connected: True once the driver was connected to Ray.
        problem: Why the driver has ended, or why it cannot connect.
    """

    def __init__(self, program: str, address: str) -> None:
        silent = subprocess.DEVNULL  # Ray writes messages of its own there
        self._pair, self._process = start_with_socketpair(
            "-c", program, address, kind=socket.SOCK_SEQPACKET, stdout=silent, stderr=silent, environment=_NO_STATISTICS
        )
        self._pair.setblocking(False)
        self.outbox: deque[bytes] = deque()
        self.pid = self._process.pid
        self.connected = False
        self.problem = ""
        self._deadline = time.monotonic() + CONNECT_S

    def exchange(self, timeout_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Send the packets in `outbox`, wait at most `timeout_s` seconds for the driver, and yield its packets.

        Raises EOFError if the driver has ended, or has not connected to Ray within `CONNECT_S` seconds.
        """
        self._send()
        poll = select.poll()
        poll.register(self._pair, select.POLLIN | (select.POLLOUT if self.outbox else 0))
        poll.poll(timeout_s * 1000)
        while (data := self._receive()) is not None:
            if not data:
                raise EOFError
            kind, fields = decode_packet(data)
            if kind == REFUSED:
                self.problem = fields["error"]
                continue
            self.connected |= kind == CONNECTED
            yield kind, fields
        self._send()
        if self._late:
            self.problem = f"no answer within {CONNECT_S:g} s"
            raise EOFError

    def close(self, timeout_s: float) -> None:
        """Close the socketpair, which ends the driver. Kill it after `timeout_s` seconds, or at once if it never connected."""
        self._pair.close()
        end = end_text(self._process.end(0.0 if self._late else timeout_s))
        self.problem = self.problem or f"the driver process ended with {end}"

    @property
    def _late(self) -> bool:
        return not self.connected and time.monotonic() > self._deadline

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the driver is busy; or it has ended, and `_receive` returns nothing
            while self.outbox:
                self._pair.send(self.outbox[0], socket.MSG_NOSIGNAL)
                self.outbox.popleft()

    def _receive(self) -> bytes | None:
        """Return a packet; None if there is none now; empty bytes if the driver has ended."""
        try:
            return self._pair.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""
