"""Addresses for tests: fresh, bindable, gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports import Address

__all__ = ["TransportUnderTest", "fresh_address"]


def fresh_address(scheme: str, folder: str | Path) -> str:
    """An address of `scheme` that nobody has bound: port 0, or a name that is used once.

    Args:
        scheme: ``tcp``, ``ipc`` or ``inproc``.
        folder: where an ipc socket goes. A path may have 107 bytes in all, which pytest's ``tmp_path`` can exceed.

    Raises:
        TransportError: for another scheme, or a folder with too long a path.
    """
    if scheme == "tcp":
        return "tcp://127.0.0.1:0"
    name = uuid.uuid4().hex[:12]
    return Address.parse(f"ipc://{folder}/{name}" if scheme == "ipc" else f"{scheme}://test-{name}").uri


class TransportUnderTest(Resource):
    """One scheme and as many addresses of it as a test needs. What the `transport` fixture yields.

    Attributes:
        scheme: ``tcp``, ``ipc`` or ``inproc``.
    """

    def __init__(self, scheme: str) -> None:
        if scheme not in ("tcp", "ipc", "inproc"):
            raise TransportError(f"no transport {scheme!r} to test; use tcp, ipc or inproc")
        self.scheme = scheme
        self._folder = tempfile.mkdtemp(prefix="rl4-") if scheme == "ipc" else ""

    def address(self) -> str:
        """A fresh address to bind. After binding, `Socket.bound` says what to dial."""
        return fresh_address(self.scheme, self._folder)

    def close(self) -> None:
        """Removes the folder of the ipc sockets."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def __repr__(self) -> str:
        return f"<transport {self.scheme}>"
