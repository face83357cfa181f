"""The peers of a bound socket: find the user that sent a frame, read and allow subscriptions, close one connection."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import zmq

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.frames import Frames, TooManyFrames

if TYPE_CHECKING:
    from rl4sys_zmq.transports.sockets import Socket

_TCP_TIMES = struct.Struct("=I4xI")  # tcpi_last_data_sent, tcpi_last_data_recv, at 44 in Linux's tcp_info

# Subscriptions that can be refused on one connection before it is closed. libzmq keeps each requested topic until the
# connection ends, also a refused one: 200,000 topics of 4 bytes take 143 MiB, 50,000 topics of 100 bytes take 257 MiB.
MAX_UNGRANTED = 64


class SubscriptionControl:
    """The control of subscriptions on an XPUB socket: a subscription takes effect only if `grant` allows it."""

    def __init__(self, raw: zmq.Socket[bytes], address: Address) -> None:
        self._raw = raw
        self._address = address
        self._asked: zmq.Frame | None = None  # the last message, if it is a subscription that was not granted so far
        self._refused: dict[int, int] = {}

    def note(self, frame: zmq.Frame) -> None:
        """Handle a subscription message that the socket has received.

        An unsubscription takes effect at once. A subscription waits for `grant`. If the one before still waits, it is refused.
        """
        if self._asked is not None:
            self._refuse(self._asked)
        notice = frame.bytes
        self._asked = frame if notice[:1] == b"\1" else None
        if notice[:1] == b"\0":
            self._raw.setsockopt(zmq.UNSUBSCRIBE, notice[1:])

    def grant(self, topic: bytes) -> None:
        """Allow the subscription in the last message. Raise TransportError if it is not a subscription to `topic`."""
        if self._asked is None or topic != self._asked.bytes[1:]:
            raise TransportError("only the topic of the last subscription message can be granted, once and before the next recv")
        self._asked = None
        self._raw.setsockopt(zmq.SUBSCRIBE, topic)

    def _refuse(self, frame: zmq.Frame) -> None:
        fd = descriptor_of(frame)
        if fd < 0:
            return
        count = self._refused.get(fd, 0) + 1
        if count <= MAX_UNGRANTED:
            self._refused[fd] = count
            return
        del self._refused[fd]
        cut_off(fd, self._address)


def user_of(frame: zmq.Frame) -> str:
    """Return the authenticated user that sent a frame; empty for an unsubscription that the end of a connection caused.

    Use this only for frames from a socket with a ZAP domain. On other sockets, the peer itself can set the user.
    """
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def host_of(frame: zmq.Frame) -> str:
    """Return the IP address from which a frame came, as libzmq reports it; empty on ipc and inproc."""
    try:
        host = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
    return host.partition("%")[0] if "." in host or ":" in host else ""


def cut_off(fd: int, bound: Address) -> bool:
    """Shut down the connection with this file descriptor, if it is a connection to the address `bound`. Return True if so."""
    with suppress(OSError), _socket_of(fd) as connection:
        # libzmq has no function to close one connection, but treats the peer as disconnected after a shutdown. If the connection
        # has already ended, another connection to `bound` can have the descriptor. It is then shut down by mistake, and its
        # peer reconnects.
        if _is_connection_to(connection, bound):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def connections(bound: Address) -> list[int]:
    """Return the file descriptors of all connections to a bound address; [] on inproc, or without ``/proc``."""
    descriptors: list[int] = []
    for fd in () if bound.scheme == "inproc" else open_descriptors():
        with suppress(OSError), _socket_of(fd) as connection:
            if _is_connection_to(connection, bound) and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                descriptors.append(fd)
    return descriptors


def open_descriptors() -> list[int]:
    """Return the open file descriptors of this process; [] without ``/proc``."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except FileNotFoundError:
        return []
    except OSError:  # none is left to read the folder with
        return [fd for fd in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) if inode(fd)]


def silence_s(fd: int) -> float:
    """Return the time since a TCP connection last sent or received data, in seconds; 0 for a connection of another kind."""
    with suppress(OSError, AttributeError, struct.error), _socket_of(fd) as connection:
        sent_ms, received_ms = _TCP_TIMES.unpack_from(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64), 44)
        return float(min(sent_ms, received_ms) / 1000)
    return 0.0


def inode(fd: int) -> int:
    """Return a number that identifies an open connection even if its descriptor is used again later; 0 if it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


@contextmanager
def _socket_of(fd: int) -> Iterator[socket.socket]:
    # the descriptor stays open; this needs no free one
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise OSError(errno.ENOTSOCK, "not a socket")
    connection = socket.socket(fileno=fd)
    try:
        yield connection
    finally:
        connection.detach()


def _is_connection_to(connection: socket.socket, bound: Address) -> bool:
    name = connection.getsockname()
    if bound.scheme == "tcp":
        return connection.family in (socket.AF_INET, socket.AF_INET6) and name[1] == bound.port
    return connection.family == socket.AF_UNIX and name == bound.name


def descriptor_of(frame: zmq.Frame) -> int:
    """Return the file descriptor of the connection from which a frame came; -1 on inproc."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def read_subscription(frames: Frames) -> tuple[bool, bytes] | None:
    """Decode a message that an XPUB has received. Return None if it is neither a subscription nor an unsubscription.

    Otherwise return True for a subscription, False for an unsubscription, and the topic prefix.
    """
    if len(frames) != 1 or bytes(frames[0][:1]) not in (b"\0", b"\1"):
        return None
    notice = bytes(frames[0])
    return notice[0] == 1, notice[1:]


def subscribed_topics(xpub: Socket, counters: Counters, most: int | None = None) -> Iterator[bytes]:
    """Receive at most `most` messages that wait in an XPUB socket, and yield the topic prefix of each new subscription.

    All other messages are discarded. A subscriber can send anything, so a message with too many frames is only counted
    (``refused.frames``). With ``grants=True``, call `Socket.grant` before the next topic is taken.
    """
    for _ in itertools.count() if most is None else range(most):
        try:
            frames = xpub.recv()
        except TooManyFrames as exc:
            counters.add(f"refused.{exc.code.value}")
            continue
        if frames is None:
            return
        subscription = read_subscription(frames)
        if subscription is not None and subscription[0]:
            yield subscription[1]
