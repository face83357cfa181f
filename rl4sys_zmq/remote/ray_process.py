"""The start of a driver process, which is connected to Ray.

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
from collections.abc import Iterator
from typing import Any

from rl4sys_zmq.child_process import end_text, start_with_socket
from rl4sys_zmq.config.learner import ray_address
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, decode_packet
from rl4sys_zmq.remote.ray_packets import LOCAL

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
    """A driver process, and the socketpair to it. One thread uses it, and closes it."""

    def __init__(self, program: str, address: str) -> None:
        self._pair, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pair.setblocking(False)
        silent = subprocess.DEVNULL  # Ray writes messages of its own there
        try:
            with theirs:
                self._process = start_with_socket(
                    theirs, "-c", program, address, stdout=silent, stderr=silent, environment=_NO_STATISTICS
                )
        except BaseException:
            self._pair.close()
            raise
        self.outbox: deque[bytes] = deque()
        self.pid = self._process.pid
        self.connected = False  # the owner sets it to True
        self._deadline = time.monotonic() + CONNECT_S

    @property
    def late(self) -> bool:
        return not self.connected and time.monotonic() > self._deadline

    def wait(self, timeout_s: float) -> None:
        """Wait until a packet has arrived, or one of the outbox can be sent, at most `timeout_s` seconds."""
        poll = select.poll()
        poll.register(self._pair, select.POLLIN | (select.POLLOUT if self.outbox else 0))
        poll.poll(timeout_s * 1000)

    def write(self) -> None:
        with contextlib.suppress(OSError):  # the driver is busy; or it has ended, and `read` raises
            while self.outbox:
                self._pair.send(self.outbox[0], socket.MSG_NOSIGNAL)
                self.outbox.popleft()

    def read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        while True:
            try:
                data = self._pair.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                raise EOFError
            yield decode_packet(data)

    def close(self, timeout_s: float) -> str:
        """Close the socketpair, which ends the driver, and wait for its end, at most `timeout_s` seconds. Then kill it."""
        self._pair.close()
        return end_text(self._process.end(timeout_s))
