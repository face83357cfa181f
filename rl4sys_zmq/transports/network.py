"""Where an actor's dialling sockets live: in this process, or in a sidecar (`relay`). What uses them need not know."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from types import TracebackType
from typing import Protocol, Self, cast

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.frames import MAX_FRAMES, Frame, Frames, SendResult
from rl4sys_zmq.transports.monitor import MonitorEvent
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES, Secure
from rl4sys_zmq.transports.poller import HasFileno, Poller
from rl4sys_zmq.transports.sockets import Socket

__all__ = ["Keys", "Connection", "ConnectionPoller", "LocalNetwork", "Network", "curve", "secure_with"]

Keys = tuple[str, str, str]
"""CURVE keys of a dialling socket as Z85 text: its public one, its secret one, the learner's public one."""


class Connection(Protocol):
    """A dialling socket, wherever it lives. What each call means is said in `Socket`."""

    def send(self, frames: Frames) -> SendResult:
        """Queues one message, whole or not at all, and never blocks."""

    def recv(self, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        """Takes one message, or None when there is none; never blocks."""

    def subscribe(self, prefix: bytes) -> None:
        """Asks a sub's publisher for all messages whose first frame starts with `prefix`."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes back one `subscribe` of the same prefix."""

    def events(self) -> list[MonitorEvent]:
        """What happened to its connection since the last call, of a dealer of this process; nothing is known of others."""

    def close(self) -> None:
        """Closes it; what is still queued for sending is discarded."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class ConnectionPoller(Protocol):
    """Waits on the lines of one network and on plain descriptors. What each call means is said in `Poller`."""

    def register(self, source: Connection | HasFileno | int, *, read: bool = True, write: bool = False) -> None:
        """Adds a source, or changes what is waited for."""

    def unregister(self, source: Connection | HasFileno | int) -> None:
        """Removes a source, before it is closed."""

    def poll(self, timeout_s: float | None) -> Collection[object]:
        """Waits until a source is ready, at most `timeout_s` seconds, and returns those that are."""

    def close(self) -> None:
        """Forgets all sources; they stay open."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Network(Resource):
    """Makes dialling sockets and the pollers that wait on them. All are made, used and closed in one thread."""

    @abstractmethod
    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> Connection:
        """A dialling dealer, as `Socket.dealer` makes it; with `keys` it speaks CURVE."""

    @abstractmethod
    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> Connection:
        """A dialling subscriber, as `Socket.sub` makes it; with `keys` it speaks CURVE."""

    @abstractmethod
    def poller(self) -> ConnectionPoller:
        """A poller for this network's lines (and for no other's)."""


class LocalNetwork(Network):
    """Sockets of this process. It owns none of them."""

    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> Connection:
        """See `Network.dealer`."""
        secure = secure_with(keys)
        return Socket.dealer(
            connect, send_hwm=send_hwm, recv_hwm=recv_hwm, max_frame_bytes=max_frame_bytes, secure=secure, watch=True
        )

    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> Connection:
        """See `Network.sub`."""
        return Socket.sub(connect, hwm=hwm, max_frame_bytes=max_frame_bytes, secure=secure_with(keys))

    def poller(self) -> ConnectionPoller:
        """See `Network.poller`."""
        return cast(ConnectionPoller, Poller())  # the only lines that it is given are sockets

    def close(self) -> None:
        """Does nothing; each socket is closed by who asked for it."""


def secure_with(keys: Keys | None) -> Secure | None:
    """Return `curve` of these keys, or None without keys."""
    return curve(keys) if keys is not None else None


def curve(keys: Keys) -> Secure:
    """Return a function that makes a dialling socket speak CURVE with these keys.

    The function raises TransportError if they are not three keys in Z85.
    """
    public, secret, learner_public = (key.encode() for key in keys)

    def secure(raw: zmq.Socket[bytes]) -> None:
        try:
            raw.setsockopt(zmq.CURVE_PUBLICKEY, public)
            raw.setsockopt(zmq.CURVE_SECRETKEY, secret)
            raw.setsockopt(zmq.CURVE_SERVERKEY, learner_public)
        except zmq.ZMQError as exc:
            raise TransportError("the CURVE keys are not three Z85 texts of 40 characters, or this libzmq has no CURVE") from exc

    return secure
