"""What answers at an address, found out with plain sockets: a name, a listener, and the first 64 bytes of ZMTP 3.

Each function has a deadline, and says in its error what a person can do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
import time
from dataclasses import dataclass

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.transports import Address

__all__ = ["Greeting", "Unreachable", "dial", "greet", "look_up"]

GREETING_BYTES = 64
_HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x01"
"""Signature and version of ZMTP 3.1. libzmq answers with its whole greeting; no more is said, so that nobody is let in."""

_PROBE_S = 0.5
_HTTP_PROBE = b"GET / HTTP/1.0\r\n\r\n"

_REMEDIES = {
    errno.ECONNREFUSED: ("nobody listens there", "start the learner, or correct the port"),
    errno.ENETUNREACH: ("there is no route to that network", "correct the host, or this machine's network"),
    errno.EHOSTUNREACH: ("there is no route to that host", "correct the host, or see whether that machine is up"),
    errno.ETIMEDOUT: ("nothing answers", "correct the host and port, or open the port in the firewall"),
    errno.ENOENT: ("there is no such socket", "start the learner, or correct the path"),
    errno.EACCES: ("this user may not use it", "run this as the learner's user, or use tcp"),
}


class Unreachable(RL4SysError):
    """What is at an address is not what was hoped for.

    Attributes:
        cause: what is so.
        remedy: what to do about it.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        self.cause, self.remedy = cause, remedy
        super().__init__(f"{cause}; {remedy}")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first words of a ZeroMQ socket.

    Attributes:
        version: of ZMTP, such as ``3.1``.
        mechanism: ``NULL``, ``CURVE``, or another.
    """

    version: str
    mechanism: str


def look_up(address: Address, timeout_s: float) -> list[tuple[int, tuple[str, int]]]:
    """The IP addresses of a tcp address: pairs of a family and what `dial` connects to.

    Raises:
        Unreachable: when the name has none, or nobody says so in time.
    """
    found: list[tuple[int, tuple[str, int]]] = []
    failures: list[OSError] = []

    def ask() -> None:
        try:
            for family, _, _, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
                found.append((family, (str(where[0]), int(where[1]))))
        except (OSError, UnicodeError) as exc:
            failures.append(exc if isinstance(exc, OSError) else OSError(str(exc)))

    # In a thread that may be left behind: nothing else puts a limit on a resolver.
    thread = threading.Thread(target=ask, name="rl4sys-doctor-name", daemon=True)
    thread.start()
    thread.join(timeout_s)
    remedy = "correct the name, or add it to the DNS or to /etc/hosts; an IP address does too"
    if thread.is_alive():
        raise Unreachable(f"the name {address.host!r} was not resolved within {timeout_s:g} s", remedy)
    if failures:
        raise Unreachable(f"the name {address.host!r} has no address ({failures[0].strerror or failures[0]})", remedy)
    # As libzmq does it: a name means IPv4, only an address in brackets IPv6.
    usable = [pair for pair in dict.fromkeys(found) if address.is_v6 or pair[0] == socket.AF_INET]
    if not usable:
        others = ", ".join(sorted({where[0] for _, where in found}))
        raise Unreachable(f"the name {address.host!r} has IPv6 addresses only ({others})", "write one in brackets instead")
    return usable


def dial(address: Address, timeout_s: float) -> socket.socket:
    """A plain connection to a tcp or ipc address; the caller closes it.

    Raises:
        Unreachable: saying why there is none.
    """
    deadline = time.monotonic() + timeout_s
    if address.scheme == "ipc":
        return _dial_path(address.name, timeout_s)
    error: OSError | None = None
    for family, where in look_up(address, timeout_s):
        raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.settimeout(max(0.01, deadline - time.monotonic()))
            raw.connect(where)
        except OSError as exc:
            raw.close()
            error = exc
            continue
        return raw
    assert error is not None  # a name that has no address was an error before
    raise _unreachable(error, f"{address.host}:{address.port}", timeout_s)


def _dial_path(path: str, timeout_s: float) -> socket.socket:
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise Unreachable(f"{path} is no socket", "name the path that the learner binds")
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        raw.settimeout(timeout_s)
        raw.connect(path)
    except OSError as exc:
        raw.close()
        raise _unreachable(exc, path, timeout_s) from exc
    return raw


def _unreachable(error: OSError, where: str, timeout_s: float) -> Unreachable:
    if isinstance(error, TimeoutError):
        what, remedy = _REMEDIES[errno.ETIMEDOUT]
        return Unreachable(f"{what} at {where} within {timeout_s:g} s", remedy)
    what, remedy = _REMEDIES.get(error.errno or 0, (error.strerror or str(error), "correct the address"))
    return Unreachable(f"{where}: {what} ({errno.errorcode.get(error.errno or 0, 'error')})", remedy)


def greet(address: Address, timeout_s: float) -> Greeting:
    """Says the first words of ZMTP, and reads the answer.

    Raises:
        Unreachable: when what answers is no ZeroMQ of version 3, or says nothing.
    """
    with dial(address, timeout_s) as raw:
        heard, hung_up = _exchange(raw, _HELLO, GREETING_BYTES, timeout_s)
    if len(heard) >= GREETING_BYTES and heard[0] == 0xFF and heard[9] & 1:
        if heard[10] < 3:
            raise Unreachable(
                f"ZeroMQ of ZMTP {heard[10]}.{heard[11]}; 3 is needed", "it is no learner of ours: correct the port"
            )
        return Greeting(f"{heard[10]}.{heard[11]}", heard[12:32].rstrip(b"\0").decode("ascii", "replace"))
    raise Unreachable(_what_said(address, heard, hung_up, timeout_s), "it is no learner: correct the host and the port")


def _exchange(raw: socket.socket, words: bytes, at_most: int, timeout_s: float) -> tuple[bytes, bool]:
    """Says something; returns what was heard until then, and whether the other side hung up."""
    deadline = time.monotonic() + timeout_s
    heard = b""
    try:
        raw.sendall(words)
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


def _what_said(address: Address, heard: bytes, hung_up: bool, timeout_s: float) -> str:
    if not heard:
        # A web server waits for the end of a line that never comes; asked in its own language, it answers.
        with contextlib.suppress(Unreachable), dial(address, _PROBE_S) as raw:
            asked, _ = _exchange(raw, _HTTP_PROBE, GREETING_BYTES, min(timeout_s, _PROBE_S))
            if asked.startswith(b"HTTP/"):
                heard = asked
    if heard.startswith(b"HTTP/"):
        return "an HTTP server answers, not ZeroMQ"
    if heard.startswith(b"SSH-"):
        return "an SSH server answers, not ZeroMQ"
    if heard[:2] == b"\x15\x03":
        return "a TLS server answers, not ZeroMQ"
    if heard:
        return f"what answers is not ZeroMQ: {heard[:16]!r}"
    if hung_up:
        return "it hangs up without a word"
    return f"it listens, and says nothing within {timeout_s:g} s"
