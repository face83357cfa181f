"""The seam of an actor's connecting sockets, which are in this process or in a sidecar.

The host survives if libzmq aborts a sidecar. `LocalSocketFactory` creates sockets in this process,
`sidecar.SidecarSocketFactory` in a sidecar.
"""

from __future__ import annotations

from abc import abstractmethod

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.interfaces import ConnectingSocket
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.frames import MAX_FRAME_BYTES
from rl4sys_zmq.transports.poller import Poller
from rl4sys_zmq.transports.sockets import Secure, Socket

Keys = tuple[str, str, str]
"""The CURVE keys of a connecting socket as Z85 text: own public key, own secret key, and the learner's public key."""


class SocketFactory(Resource):
    """A factory of connecting sockets and of pollers for them. A subclass determines which process holds the sockets.

    Create, use and close the factory, its sockets and its pollers in one thread.
    """

    @abstractmethod
    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> ConnectingSocket:
        """Create a connecting DEALER, as `Socket.dealer` does. With `keys`, the connection uses CURVE."""

    @abstractmethod
    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> ConnectingSocket:
        """Create a connecting SUB, as `Socket.sub` does. With `keys`, the connection uses CURVE."""

    @abstractmethod
    def poller(self) -> Poller:
        """Create a poller for the sockets of this factory and for file descriptors."""


class LocalSocketFactory(SocketFactory):
    """A `SocketFactory` whose sockets are in this process. The code that creates a socket must close it."""

    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> ConnectingSocket:
        secure = secure_with(keys)
        return Socket.dealer(
            connect, send_hwm=send_hwm, recv_hwm=recv_hwm, max_frame_bytes=max_frame_bytes, secure=secure, watch=True
        )

    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> ConnectingSocket:
        return Socket.sub(connect, hwm=hwm, max_frame_bytes=max_frame_bytes, secure=secure_with(keys))

    def poller(self) -> Poller:
        return Poller()

    def close(self) -> None: ...


def secure_with(keys: Keys | None) -> Secure | None:
    """Return a function that sets CURVE keys on a connecting socket (`curve`), or None if there are no keys."""
    return curve(keys) if keys is not None else None


def curve(keys: Keys) -> Secure:
    """Return a function that sets CURVE keys on a connecting socket. Raise TransportError if a key is not valid Z85 text."""
    public, secret, learner_public = (key.encode() for key in keys)

    def secure(raw: zmq.Socket[bytes]) -> None:
        try:
            raw.setsockopt(zmq.CURVE_PUBLICKEY, public)
            raw.setsockopt(zmq.CURVE_SECRETKEY, secret)
            raw.setsockopt(zmq.CURVE_SERVERKEY, learner_public)
        except zmq.ZMQError as exc:
            raise TransportError("the CURVE keys are not three Z85 texts of 40 characters, or this libzmq has no CURVE") from exc

    return secure
