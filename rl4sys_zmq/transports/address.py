"""Addresses of sockets: ``tcp://host:port``, ``ipc://path`` or ``inproc://name``."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import replace
from typing import Self

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.immutable import immutable

SOCKET_NAME_BYTES = 12
SCHEMES = ("tcp", "ipc", "inproc")

# The system allows 108 bytes with the terminating zero.
MAX_IPC_PATH_BYTES = 107


@immutable
class Address:
    """An address to which a socket binds or connects. `parse` creates one from text.

    A *fresh* address has port 0, or is ``ipc://*`` or ``inproc://*``. Its port, path or name is chosen when a socket binds to
    it.

    Attributes:
        host: For tcp, a host name, an IP address without brackets, or ``*`` for all IPv4 interfaces. Otherwise empty.
        port: For tcp, 0 to 65535. Otherwise 0.
        name: The path of an ipc address, or the name of an inproc address. Otherwise empty.
    """

    scheme: str
    host: str = ""
    port: int = 0
    name: str = ""

    @classmethod
    def parse(cls, text: str | Address) -> Address:
        """Parse ``host:port``, ``tcp://host:port``, ``ipc://path`` or ``inproc://name``. IPv6 hosts must be in brackets.

        Raises:
            TransportError: If the text has none of these forms. The message gives the right form.
        """
        if isinstance(text, Address):
            return text
        if not isinstance(text, str):
            raise TransportError(f"{text!r:.60} is not an address; write tcp://host:port, ipc://path or inproc://name")
        scheme, separator, rest = text.strip().partition("://")
        if not separator:
            scheme, rest = "tcp", text.strip()
        if scheme not in SCHEMES:
            raise TransportError(f"{text!r} has an unknown scheme {scheme!r}; use tcp://host:port, ipc://path or inproc://name")
        if "\0" in rest:
            raise TransportError(f"{text!r} contains a zero byte")
        if scheme == "tcp":
            return cls("tcp", *_host_and_port(text, rest))
        if not rest:
            raise TransportError(f"{text!r} names no {'path' if scheme == 'ipc' else 'endpoint'}; write {scheme}://something")
        if scheme == "ipc":
            _check_ipc_path(text, rest)
        return cls(scheme, name=rest)

    @property
    def uri(self) -> str:
        """The address as text that `parse` accepts."""
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.name}"
        return f"tcp://[{self.host}]:{self.port}" if self.is_v6 else f"tcp://{self.host}:{self.port}"

    @property
    def is_v6(self) -> bool:
        """True if the host is an IPv6 address."""
        return ":" in self.host

    def check_connectable(self) -> None:
        """Raise TransportError if no socket can connect to this address, because it is fresh or its host is ``*``."""
        if self.is_fresh or self.host == "*":
            raise TransportError(f"cannot connect to {self.uri}; give the host and port (or path) that the other side binds")

    def seen_from(self, other: Address) -> Address:
        """Return this address, with the host of `other` in place of the host ``*``, to which no socket can connect."""
        return replace(self, host=other.host) if self.host == "*" else self

    @property
    def is_fresh(self) -> bool:
        """True if the address leaves port, path or name open."""
        return self.port == 0 if self.scheme == "tcp" else self.name == "*"

    def with_port(self, port: int) -> Self:
        """Return a tcp address with the same host and another port. Raise TransportError for others, and outside 0 to 65535."""
        if self.scheme != "tcp":
            raise TransportError(f"{self.uri} has no port to change; only tcp addresses have one")
        if not 0 <= port <= 65535:
            raise TransportError(f"port {port} is outside 0 to 65535")
        return replace(self, port=port)

    def __str__(self) -> str:
        return self.uri


def _host_and_port(text: str, rest: str) -> tuple[str, int]:
    host, separator, port = rest.rpartition(":")
    if not separator or not port or port.endswith("]"):
        raise TransportError(f"{text!r} has no port; write {rest or 'host'}:5555")
    if host.startswith("["):
        return _v6_host(text, host), _port(text, port)
    if not host:
        raise TransportError(f"{text!r} has no host; write 127.0.0.1:{port}, or *:{port} to listen on all interfaces")
    if ":" in host:
        raise TransportError(f"{text!r} is ambiguous; put an IPv6 host in brackets: tcp://[{host}]:{port}")
    if any(c.isspace() or c in "/;@[]\\" for c in host):
        raise TransportError(f"{text!r} is not host:port; a host is a name, an IPv4 address, or [an IPv6 address]")
    return host, _port(text, port)


def _v6_host(text: str, bracketed: str) -> str:
    try:
        if bracketed.endswith("]"):
            ipaddress.IPv6Address(bracketed[1:-1])
            return bracketed[1:-1]
    except ValueError:
        pass
    raise TransportError(f"{text!r} has no IPv6 address in its brackets; write for instance tcp://[::1]:5555")


def _port(text: str, port: str) -> int:
    if port == "*":
        return 0
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise TransportError(f"{text!r} has no valid port; a port is a number from 0 to 65535 (0 picks a free one)")
    return int(port)


def make_socket_folder() -> str:
    """Create a private folder for ipc sockets among the temporary files, and return its path.

    Raises:
        TransportError: If there is no folder for temporary files, or its path is too long.
    """
    import tempfile  # slow to import, and needed only to bind

    try:
        parent = tempfile.gettempdir()
        if (room := MAX_IPC_PATH_BYTES - len(os.fsencode(parent)) - len("/rl4sys-xxxxxxxx/")) < SOCKET_NAME_BYTES:
            problem = f"the path of the folder for temporary files, {parent}, leaves {room} bytes for the name of a socket"
            raise TransportError(f"{problem}; set TMPDIR to a folder with a shorter path, such as /tmp")
        return tempfile.mkdtemp(prefix="rl4sys-")  # mode 0700
    except OSError as exc:
        raise TransportError(f"no folder for sockets can be created: {exc}; set TMPDIR to a folder on a local disk") from exc


def _check_ipc_path(text: str, path: str) -> None:
    if path.startswith("@"):
        raise TransportError(f"{text!r} is in the abstract namespace, where no file mode protects it; use a path")
    size = len(os.fsencode(path))
    if size > MAX_IPC_PATH_BYTES:
        raise TransportError(
            f"{text!r} is too long: {size} bytes of at most {MAX_IPC_PATH_BYTES}; use a shorter path, in /tmp for instance"
        )
