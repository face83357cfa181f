"""The peers of a bound socket: the user of a frame, subscriptions that must be granted, and the end of a connection."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports.address import Address

__all__ = ["MAX_UNGRANTED", "SubscriptionGrants", "connections", "cut_off", "descriptor_of", "user_of"]

MAX_UNGRANTED = 64
"""How many subscriptions that are not granted a connection may send before it is cut.

libzmq keeps what was asked for until the connection ends, granted or not: 200,000 topics of 4 bytes cost 143 MiB, 50,000 of
100 bytes 257 MiB."""


class SubscriptionGrants:
    """The open question of an xpub: which topic its last notice asked for, and how often each connection asked in vain."""

    def __init__(self, raw: zmq.Socket[bytes], address: Address) -> None:
        self.cuts = 0
        self._raw = raw
        self._address = address
        self._asked: bytes | None = None
        self._frame: zmq.Frame | None = None
        self._in_vain: dict[int, int] = {}

    def note(self, frame: zmq.Frame) -> None:
        """Takes a notice as it is received; one that takes a topic back is effective at once."""
        if self._asked is not None and self._frame is not None:
            self._refuse(self._frame)
        notice = frame.bytes
        self._asked, self._frame = None, None
        if notice[:1] == b"\0":
            self._raw.setsockopt(zmq.UNSUBSCRIBE, notice[1:])
        elif notice[:1] == b"\1":
            self._asked, self._frame = notice[1:], frame

    def grant(self, topic: bytes) -> None:
        """Makes the last notice's subscription effective."""
        if topic != self._asked:
            raise TransportError("only what the last notice asked for can be granted, once and before the next recv")
        self._asked, self._frame = None, None
        self._raw.setsockopt(zmq.SUBSCRIBE, topic)

    def _refuse(self, frame: zmq.Frame) -> None:
        fd = descriptor_of(frame)
        if fd < 0:
            return
        count = self._in_vain.get(fd, 0) + 1
        if count <= MAX_UNGRANTED:
            self._in_vain[fd] = count
            return
        del self._in_vain[fd]
        self.cuts += cut_off(fd, self._address)


def user_of(frame: zmq.Frame) -> str:
    """The authenticated user that a frame came from; empty for a notice that a connection's end caused.

    Only on a socket with a ZAP domain: elsewhere a peer could write this property itself.
    """
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def cut_off(fd: int, bound: Address) -> bool:
    """Shuts down the connection with this descriptor; libzmq then closes it as if the peer had gone. True when it did.

    libzmq has no call for that, but says the descriptor. If the connection has ended meanwhile, the number may be another's:
    only a connection to our own address is shut, and whoever is innocent redials.
    """
    with suppress(OSError), _borrowed(fd) as connection:
        if _is_ours(connection, bound):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def connections(bound: Address) -> list[int]:
    """The descriptors of all connections to an address of this process; empty on inproc, and where there is no ``/proc``."""
    found: list[int] = []
    if bound.scheme == "inproc":
        return found
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError), _borrowed(int(name)) as connection:
                if _is_ours(connection, bound) and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.append(int(name))
    return found


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object over a descriptor that somebody else goes on using.

    Raises:
        OSError: when there is no such descriptor, or it is no socket's.
    """
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise OSError(errno.ENOTSOCK, "not a socket")
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
    with connection:
        yield connection


def _is_ours(connection: socket.socket, bound: Address) -> bool:
    name = connection.getsockname()
    if bound.scheme == "tcp":
        return connection.family in (socket.AF_INET, socket.AF_INET6) and name[1] == bound.port
    return connection.family == socket.AF_UNIX and name == bound.name


def descriptor_of(frame: zmq.Frame) -> int:
    """The descriptor of the connection that a frame came on; -1 on inproc."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1
