"""Unused addresses for tests."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports import Address, make_socket_folder


def fresh_address(scheme: str, folder: str | Path) -> str:
    """Return an address that a test can bind: tcp port 0, for which the system picks a free port, or a unique name.

    Args:
        scheme: ``tcp``, ``ipc`` or ``inproc``.
        folder: Folder of an ipc socket. The whole path is limited to 107 bytes, which pytest's ``tmp_path`` can exceed.

    Raises:
        TransportError: If the scheme is unknown or the path is too long.
    """
    if scheme == "tcp":
        return "tcp://127.0.0.1:0"
    name = uuid.uuid4().hex[:12]
    return Address.parse(f"ipc://{folder}/{name}" if scheme == "ipc" else f"{scheme}://test-{name}").uri


class TransportUnderTest(Resource):
    """A source of unused addresses of one transport. It is the value of the pytest fixture `transport`.

    Attributes:
        scheme: ``tcp``, ``ipc`` or ``inproc``.
    """

    def __init__(self, scheme: str) -> None:
        if scheme not in ("tcp", "ipc", "inproc"):
            raise TransportError(f"unknown transport {scheme!r}; use tcp, ipc or inproc")
        self.scheme = scheme
        self._folder = make_socket_folder() if scheme == "ipc" else ""

    def address(self) -> str:
        """Return an unused address to bind. After binding, `Socket.bound` is the address to connect to."""
        return fresh_address(self.scheme, self._folder)

    def close(self) -> None:
        """Remove the folder of the ipc sockets."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def __repr__(self) -> str:
        return f"<transport {self.scheme}>"
