"""The seam of an actor's connecting sockets, which are in this process or in a sidecar.

The host survives if libzmq aborts a sidecar. `SocketFactory` creates sockets in this process, `sidecar.SidecarSocketFactory` in
a sidecar.
"""

from __future__ import annotations

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

Limits = tuple[int, int, int]
"""The limits of a connecting socket: two high-water marks (send, receive) in messages, and the largest frame in bytes."""


class SocketFactory(Resource):
    """A factory of connecting sockets in this process, and of pollers for them. The subclass `SidecarSocketFactory` creates
    them in a sidecar.

    Create, use and close the factory, its sockets and its pollers in one thread.
    """

    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> ConnectingSocket:
        """Create a connecting DEALER, as `Socket.dealer` does, encrypted if `keys` is given. The caller closes it."""
        return self._open("dealer", connect, (send_hwm, recv_hwm, max_frame_bytes), keys)

    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> ConnectingSocket:
        """Create a connecting SUB, as `Socket.sub` does, encrypted if `keys` is given. The caller closes it."""
        return self._open("sub", connect, (0, hwm, max_frame_bytes), keys)

    def poller(self) -> Poller:
        """Create a poller for the sockets of this factory and for file descriptors."""
        return Poller()

    def close(self) -> None:
        """Do nothing: a socket of this process is closed by its owner."""

    def _open(self, role: str, connect: Address | str, limits: Limits, keys: Keys | None) -> ConnectingSocket:
        return connecting_socket(role, connect, limits, keys, watch=role == "dealer")


def connecting_socket(role: str, connect: Address | str, limits: Limits, keys: Keys | None, *, watch: bool = False) -> Socket:
    """Create a connecting ``dealer`` or ``sub`` in this process."""
    secure = curve(keys) if keys is not None else None
    send_hwm, recv_hwm, most = limits
    if role == "sub":
        return Socket.sub(connect, hwm=recv_hwm, max_frame_bytes=most, secure=secure, watch=watch)
    return Socket.dealer(connect, send_hwm=send_hwm, recv_hwm=recv_hwm, max_frame_bytes=most, secure=secure, watch=watch)


def curve(keys: Keys) -> Secure:
    """Return a function that sets keys on a connecting socket. It raises TransportError if a key is not valid Z85 text."""
    public, secret, learner_public = (key.encode() for key in keys)

    def secure(raw: zmq.Socket[bytes]) -> None:
        try:
            raw.setsockopt(zmq.CURVE_PUBLICKEY, public)
            raw.setsockopt(zmq.CURVE_SECRETKEY, secret)
            raw.setsockopt(zmq.CURVE_SERVERKEY, learner_public)
        except zmq.ZMQError as exc:
            raise TransportError("the CURVE keys are not three Z85 texts of 40 characters, or this libzmq has no CURVE") from exc

    return secure
