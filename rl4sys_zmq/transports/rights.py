"""Who may hear what: an xpub's subscriptions are effective only when granted; and how a peer is cut off."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports.address import Address

__all__ = ["MAX_UNGRANTED", "Grants", "cut_off", "user_of"]

MAX_UNGRANTED = 64
"""How many subscriptions that are not granted a connection may send before it is cut.

libzmq keeps what was asked for until the connection ends, granted or not: 200,000 topics of 4 bytes cost 143 MiB, 50,000 of
100 bytes 257 MiB."""


class Grants:
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
        fd = _descriptor(frame)
        if fd < 0:
            return
        count = self._in_vain.get(fd, 0) + 1
        if count <= MAX_UNGRANTED:
            self._in_vain[fd] = count
            return
        del self._in_vain[fd]
        self.cuts += cut_off(frame, self._address)


def user_of(frame: zmq.Frame) -> str:
    """The authenticated user that a frame came from; empty for a notice that a connection's end caused.

    Only on a socket with a ZAP domain: elsewhere a peer could write this property itself.
    """
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def cut_off(frame: zmq.Frame, bound: Address) -> bool:
    """Shuts the connection down that a frame came on; libzmq then closes it as if the peer had gone. True when it did.

    libzmq has no call for that, but says the descriptor. If the connection has ended meanwhile, the number may be another's:
    only a connection to our own address is shut, and whoever is innocent redials.
    """
    fd = _descriptor(frame)
    if fd < 0:
        return False
    with suppress(OSError):
        copy = os.dup(fd)
        try:
            with socket.socket(fileno=copy) as connection:
                copy = -1  # the socket closes it
                name = connection.getsockname()
                if (name[1] == bound.port) if bound.scheme == "tcp" else (name == bound.name):
                    connection.shutdown(socket.SHUT_RDWR)
                    return True
        finally:
            if copy >= 0:
                os.close(copy)
    return False


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1  # inproc
