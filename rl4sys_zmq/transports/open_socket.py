"""The operations of an open ZeroMQ socket, such as send and receive. The subclass `Socket` creates sockets."""

from __future__ import annotations

import errno
import math
import threading
import time

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.binding import SocketBinding
from rl4sys_zmq.transports.context import ThreadOwnedResource
from rl4sys_zmq.transports.frames import LARGE_FRAME_BYTES, MAX_FRAMES, Frame, Frames, SendResult, TooManyFrames
from rl4sys_zmq.transports.monitor import MAX_EVENTS, ConnectionEventReader, MonitorEvent
from rl4sys_zmq.transports.peers import (
    SubscriptionControl,
    connections,
    cut_off,
    descriptor_of,
    host_of,
    inode,
    silence_s,
    user_of,
)

# The flags for sending the last frame of a message, and the earlier frames: plain numbers, because combining pyzmq's flag
# objects takes as long as sending.
_LAST, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


class OpenSocket(ThreadOwnedResource):
    """An open socket that sends and receives frames in the thread that created it.

    `close` discards messages that are still queued, except on a push socket that was created with a time to linger.
    """

    def __init__(self, raw: zmq.Socket[bytes], role: str, address: Address, binding: SocketBinding | None) -> None:
        self.raw = raw  # the socket of pyzmq
        self.address = address  # to which the socket connects or is bound; with the actual port, path or name if bound
        self._binding = binding
        self._fewest = 2 if role == "router" else 1
        # on an `authenticated` socket: the user id that the key check (`rl4sys_zmq.security.zap`) has given to the sender of
        # the last received message. Empty if that message is an unsubscription that the end of a connection caused. Always
        # empty on other sockets.
        self.user = ""
        self.authenticated = False  # libzmq checks the keys of all peers: on a bound tcp or ipc socket with a ZAP domain
        self._first: zmq.Frame | None = None
        self._heard: dict[int, int] = {}
        self._monitor: ConnectionEventReader | None = None
        self._grants: SubscriptionControl | None = None
        self._timeout_ms = -1
        self._linger_ms = 0
        super().__init__(role, f" at {address.uri}")

    @property
    def bound(self) -> Address:
        """The bound address, to which peers can connect. Raise TransportError if the socket connects rather than binds."""
        if self._binding is None:
            raise TransportError(f"this {self.role} connects to {self.address.uri}; it is not bound")
        return self.address

    def send(self, frames: Frames) -> SendResult:
        """Queue one message, as a whole or not at all, without blocking.

        Frames are copied, so the caller can reuse a buffer at once. Only a view that `recv` returned is sent without a copy. On
        a router, the first frame is the routing id of the peer.

        Raises:
            TransportError: If the message is empty, a router's message consists only of the routing id, or another thread
                calls.
            Closed: If the socket is closed.
        """
        if self.owner != threading.get_ident() or self.closed:
            self.check_owner()
        last = len(frames) - 1
        if last + 1 < self._fewest:
            raise TransportError(f"a {self.role} sends at least {self._fewest} frame(s), not {last + 1}")
        if self.role == "xpub":
            # libzmq checks only about once per millisecond whether a subscriber's queue has drained, and until then drops
            # messages, even to subscribers that keep up. Reading EVENTS makes it check first.
            self.raw.getsockopt(zmq.EVENTS)
        result = SendResult.OK
        for index, frame in enumerate(frames):
            try:
                held = frame if type(frame) is bytes else _shared(frame)
                self.raw.send(held, _LAST if index == last else _MORE)
            except zmq.Again:
                result = SendResult.FULL
                if index == 0:
                    break
                # The peer disconnected within the message. libzmq has rolled it back and discards the remaining frames. They
                # must still be sent, or libzmq would discard the next message instead.
            except zmq.ZMQError as exc:
                if exc.errno != errno.EHOSTUNREACH:
                    raise TransportError(f"cannot send on the {self.role} at {self.address.uri}: {exc.strerror}") from exc
                return SendResult.GONE
        return result

    def send_wait(self, frames: Frames, timeout_s: float | None) -> SendResult:
        """Send one message as `send` does, but wait up to `timeout_s` seconds (None: no limit) while the queue is full. Not on
        a router, which cannot wait for a single peer.
        """
        if self.role == "router":
            raise TransportError("a router cannot wait for one peer; use send, and try again later")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (sent := self.send(frames)) is SendResult.FULL:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self.raw.poll(None if left_s is None else math.ceil(left_s * 1000), zmq.POLLOUT)
        return sent

    def recv(self, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        """Receive one message without blocking. Return None if no message is waiting.

        Returns:
            The frames. A frame of at least 64 KiB is a read-only view of libzmq's buffer, a smaller one is ``bytes``. On a
            router, the first frame is the routing id of the sender. On an xpub, the message is a subscription
            (`read_subscription`).

        Raises:
            TooManyFrames: If the message had more than `max_frames` frames. It is discarded.
            TransportError: If another thread calls.
            Closed: If the socket is closed.
        """
        return self._recv(max_frames, _LAST)

    def recv_wait(self, timeout_s: float, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        """Receive one message as `recv` does, but wait for it up to `timeout_s` seconds. Only for a thread that can block."""
        timeout_ms = math.ceil(max(0.0, timeout_s) * 1000)
        if timeout_ms != self._timeout_ms:
            self.check_owner()
            self.raw.setsockopt(zmq.RCVTIMEO, timeout_ms)
            self._timeout_ms = timeout_ms
        return self._recv(max_frames, 0)

    def _recv(self, max_frames: int, flags: int) -> list[Frame] | None:
        if self.owner != threading.get_ident() or self.closed:
            self.check_owner()
        try:
            frame = self._first = self.raw.recv(flags, copy=False)
            frames = [_owned(frame)]
            if self.authenticated:
                self.user = user_of(frame)
            if self._grants is not None and not frame.more:
                self._grants.note(frame)
            count = 1
            while frame.more:
                frame = self.raw.recv(_LAST, copy=False)
                count += 1
                if count <= max_frames:
                    frames.append(_owned(frame))
        except zmq.Again:
            return None
        except zmq.ZMQError as exc:
            raise TransportError(f"cannot receive on the {self.role} at {self.address.uri}: {exc.strerror}") from exc
        if count > max_frames:
            raise TooManyFrames(count, max_frames, bytes(frames[0]))
        return frames

    def grant(self, topic: bytes) -> None:
        """Allow the subscription in the last received message, so that it takes effect. Only on an xpub with ``grants=True``.

        If the subscriber has disconnected, nothing happens. Raise TransportError if that message did not subscribe to this
        topic.
        """
        self.check_owner()
        if self._grants is None:
            raise TransportError(f"this {self.role} has no grants; only an xpub created with grants=True has")
        self._grants.grant(topic)
        self.descriptor()

    def cut_off(self) -> bool:
        """Close the connection from which the last message came, for example because the peer's key was revoked. The peer
        reconnects.

        Return False if the connection has ended, before the first message, on inproc, and on a connecting socket.
        """
        self.check_owner()
        return self.cut(self.descriptor())

    def descriptor(self) -> int:
        """Return the file descriptor of the last message's connection; -1 before a message, on inproc and when connecting."""
        if self._binding is None or self._first is None:
            return -1
        descriptor = descriptor_of(self._first)
        self._heard[descriptor] = inode(descriptor)
        return descriptor

    def activity(self, descriptor: int) -> tuple[bool, float]:
        """Return the key that sorts the connections by which one to close: the lowest is closed first.

        The key is a pair: True if the connection has sent a message or a subscription, and the seconds without data, negative.
        """
        return self._heard.get(descriptor) == inode(descriptor), -silence_s(descriptor)

    def sender_host(self) -> str:
        """Return the IP address of the peer that sent the last message. Empty before the first message, and on ipc and inproc."""
        return host_of(self._first) if self._first is not None else ""

    def cut(self, descriptor: int) -> bool:
        """Close the connection with this descriptor. Return False if it has ended, or does not belong to this socket."""
        return self._binding is not None and descriptor >= 0 and cut_off(descriptor, self.address)

    def connections(self) -> list[int]:
        """Return the file descriptors of all connections to this bound socket; [] on inproc, or if there is no ``/proc``."""
        return connections(self.address) if self._binding is not None else []

    def events(self, limit: int = MAX_EVENTS) -> list[MonitorEvent]:
        """Return the events of the connections since the last call, without blocking. Only with ``watch=True``.

        Call this about once a second or more often, because waiting events take memory. If more than `limit` events are
        waiting, the others are discarded, and the event ``lost`` follows.
        """
        self.check_owner()
        if self._monitor is None:
            raise TransportError(f"this {self.role} is not watched; create it with watch=True")
        return self._monitor.events(limit)

    def subscribe(self, prefix: bytes) -> None:
        """Subscribe to all messages whose first frame starts with `prefix`. Only for a SUB socket."""
        self._set_topic(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Cancel one earlier `subscribe` of the same prefix. The prefix stays subscribed if it was subscribed several times."""
        self._set_topic(zmq.UNSUBSCRIBE, prefix)

    def _release(self) -> None:
        self._first = None
        try:
            if self._monitor is not None:
                self._monitor.close()
            if self._binding is not None:
                self._binding.close()
        finally:
            self.raw.close(linger=self._linger_ms)

    def adopt(self) -> None:
        """Make the calling thread the owner of the socket, the only thread that can use it.

        Use it only if a lock ensures that the previous owner has finished all its calls of the socket.
        """
        if not self.inherited:
            self.owner = threading.get_ident()
        self.check_owner()

    def abandon(self) -> None:
        """Mark the socket as unusable in a forked child. The parent's socket is not affected."""
        super().abandon()
        if self._binding is not None:
            self._binding.abandon()

    def _set_topic(self, option: int, prefix: bytes) -> None:
        self.check_owner()
        if self.role != "sub":
            raise TransportError(f"a {self.role} has no subscriptions; only a sub has")
        self.raw.setsockopt(option, prefix)

    def __repr__(self) -> str:
        state = "closed, was at" if self.closed else "bound to" if self._binding else "connecting to"
        return f"<{self.role} {state} {self.address.uri}>"


def _shared(frame: Frame) -> Frame | zmq.Frame:
    """Return the received libzmq frame of which `frame` is a whole view, to avoid a copy; else return `frame` itself."""
    if isinstance(frame, memoryview) and isinstance(frame.obj, zmq.Frame) and frame.nbytes == len(frame.obj):
        return frame.obj
    return frame


def _owned(frame: zmq.Frame) -> Frame:
    if len(frame) < LARGE_FRAME_BYTES:
        return frame.bytes
    return memoryview(frame.buffer).toreadonly()
