"""Checks of a learner's address with plain sockets, to find out why no learner answers there.

The checks are name resolution, a connection, and the greeting of ZMTP 3, ZeroMQ's wire protocol. Each has a time limit, and
each error names a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
import time

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.transports.address import Address

GREETING_BYTES = 64
# Signature and version of ZMTP 3.1. libzmq replies with its whole greeting. Nothing more is sent, so that the ZeroMQ handshake
# never completes.
_HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x01"

_PROBE_S = 0.5
_HTTP_PROBE = b"GET / HTTP/1.0\r\n\r\n"

_REMEDIES = {
    errno.ECONNREFUSED: ("no process listens there", "start the learner, or correct the port"),
    errno.ENETUNREACH: ("there is no route to that network", "correct the host, or this machine's network"),
    errno.EHOSTUNREACH: ("there is no route to that host", "correct the host, or check that the machine is running"),
    errno.ETIMEDOUT: ("no reply", "correct the host and port, or open the port in the firewall"),
    errno.ENOENT: ("there is no such socket", "start the learner, or correct the path"),
    errno.EACCES: ("permission denied", "run this as the learner's account, or use tcp"),
}


class LearnerUnreachable(RL4SysError):
    """Raised if no learner can be reached at an address, or the learner refuses the connection or a request."""

    def __init__(self, cause: str, remedy: str) -> None:
        self.cause, self.remedy = cause, remedy
        super().__init__(f"{cause}; {remedy}")


@immutable
class ZmtpGreeting:
    """The first 64 bytes that a ZeroMQ socket sends on a connection."""

    version: str  # version of ZMTP, such as ``3.1``
    mechanism: str  # security mechanism: ``NULL``, ``CURVE`` or another


def look_up(address: Address, timeout_s: float) -> list[tuple[int, tuple[str, int]]]:
    """Resolve the host of a tcp address to pairs of an address family and a socket address ``(IP address, port)``."""
    addresses: list[tuple[int, tuple[str, int]]] = []
    failures: list[OSError] = []

    def ask() -> None:
        try:
            for family, _, _, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
                addresses.append((family, (str(where[0]), int(where[1]))))
        except (OSError, UnicodeError) as exc:
            failures.append(exc if isinstance(exc, OSError) else OSError(str(exc)))

    # getaddrinfo has no time limit, so it runs in a thread that is left behind after a timeout.
    thread = threading.Thread(target=ask, name="rl4sys-doctor-name", daemon=True)
    thread.start()
    thread.join(timeout_s)
    remedy = "correct the name, add it to the DNS or to /etc/hosts, or use an IP address"
    if thread.is_alive():
        raise LearnerUnreachable(f"the name {address.host!r} was not resolved within {timeout_s:g} s", remedy)
    if failures:
        raise LearnerUnreachable(f"the name {address.host!r} has no address ({failures[0].strerror or failures[0]})", remedy)
    # As in libzmq: a name means IPv4, and only an address in brackets means IPv6.
    usable = [pair for pair in dict.fromkeys(addresses) if address.is_v6 or pair[0] == socket.AF_INET]
    if not usable:
        others = ", ".join(sorted({where[0] for _, where in addresses}))
        raise LearnerUnreachable(f"the name {address.host!r} has IPv6 addresses only ({others})", "use one of them, in brackets")
    return usable


def dial(address: Address, timeout_s: float) -> socket.socket:
    """Open a plain connection, without ZeroMQ, to a tcp or ipc address. The caller must close it."""
    deadline = time.monotonic() + timeout_s
    if address.scheme == "ipc":
        return _dial_path(address.name, timeout_s)
    error: OSError | None = None
    for family, where in look_up(address, timeout_s):
        try:
            return _connected(family, where, max(0.01, deadline - time.monotonic()))
        except OSError as exc:
            error = exc
    assert error is not None  # `look_up` returns at least one address
    raise _unreachable(error, f"{address.host}:{address.port}", timeout_s)


def _dial_path(path: str, timeout_s: float) -> socket.socket:
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise LearnerUnreachable(f"{path} is not a socket", "give the path to which the learner is bound")
    try:
        return _connected(socket.AF_UNIX, path, timeout_s)
    except OSError as exc:
        raise _unreachable(exc, path, timeout_s) from exc


def _connected(family: int, where: str | tuple[str, int], timeout_s: float) -> socket.socket:
    raw = socket.socket(family, socket.SOCK_STREAM)
    try:
        raw.settimeout(timeout_s)
        raw.connect(where)
    except OSError:
        raw.close()
        raise
    return raw


def _unreachable(error: OSError, where: str, timeout_s: float) -> LearnerUnreachable:
    if isinstance(error, TimeoutError):
        what, remedy = _REMEDIES[errno.ETIMEDOUT]
        return LearnerUnreachable(f"{what} at {where} within {timeout_s:g} s", remedy)
    what, remedy = _REMEDIES.get(error.errno or 0, (error.strerror or str(error), "correct the address"))
    return LearnerUnreachable(f"{where}: {what} ({errno.errorcode.get(error.errno or 0, 'error')})", remedy)


def greet(address: Address, timeout_s: float) -> ZmtpGreeting:
    """Check that a ZeroMQ socket listens at an address, and return its greeting. Only the start of a greeting is sent."""
    with dial(address, timeout_s) as raw:
        heard, closed = _exchange(raw, _HELLO, GREETING_BYTES, timeout_s)
    if len(heard) >= GREETING_BYTES and heard[0] == 0xFF and heard[9] & 1:
        if heard[10] < 3:
            raise LearnerUnreachable(
                f"the peer uses ZMTP {heard[10]}.{heard[11]}; expected 3", "it is not a learner: correct the port"
            )
        return ZmtpGreeting(f"{heard[10]}.{heard[11]}", heard[12:32].rstrip(b"\0").decode("ascii", "replace"))
    raise LearnerUnreachable(
        _describe_peer(address, heard, closed, timeout_s), "it is not a learner: correct the host and the port"
    )


def explain_silence(uri: str, *, has_keys: bool, timeout_s: float = 0.5) -> str:
    """Return the cause for which no learner answers at an address, and a remedy. Empty for an ``inproc`` address.

    `has_keys` says if the caller has keys. The call can take three times `timeout_s`.
    """
    address = Address.parse(uri)
    if address.scheme == "inproc":
        return ""
    try:
        greeting = greet(address, timeout_s)
    except LearnerUnreachable as exc:
        return str(exc)
    if has_keys != (greeting.mechanism == "CURVE"):
        return (
            "the learner has no keys, but this side has: remove the option keys"
            if has_keys
            else "the learner has keys: set the option keys to a key file"
        )
    return f"a ZeroMQ socket answers, but no learner: correct the port, or {'the keys' if has_keys else 'see its log'}"


def _exchange(raw: socket.socket, request: bytes, at_most: int, timeout_s: float) -> tuple[bytes, bool]:
    """Send bytes, and read up to `at_most` bytes until the timeout. Return these, and True if the peer has disconnected."""
    deadline = time.monotonic() + timeout_s
    heard = b""
    try:
        raw.sendall(request)
        while len(heard) < at_most and (left_s := deadline - time.monotonic()) > 0:
            raw.settimeout(left_s)
            data = raw.recv(at_most - len(heard))
            if not data:
                return heard, True
            heard += data
    except TimeoutError:
        pass
    except OSError:
        return heard, True
    return heard, False


def _describe_peer(address: Address, heard: bytes, closed: bool, timeout_s: float) -> str:
    if not heard:
        # A web server waits for the end of a line; to recognize it, send an HTTP request.
        with contextlib.suppress(LearnerUnreachable), dial(address, _PROBE_S) as raw:
            asked, _ = _exchange(raw, _HTTP_PROBE, GREETING_BYTES, min(timeout_s, _PROBE_S))
            if asked.startswith(b"HTTP/"):
                heard = asked
    if heard.startswith(b"HTTP/"):
        return "the peer is an HTTP server, not ZeroMQ"
    if heard.startswith(b"SSH-"):
        return "the peer is an SSH server, not ZeroMQ"
    if heard[:2] == b"\x15\x03":
        return "the peer is a TLS server, not ZeroMQ"
    if heard:
        return f"the peer is not ZeroMQ; it sent {heard[:16]!r}"
    if closed:
        return "the peer closes the connection without a reply"
    return f"the peer accepts the connection, but sends nothing within {timeout_s:g} s"
