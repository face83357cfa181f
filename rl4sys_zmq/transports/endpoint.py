"""One open socket: what can be done with it once it is bound or dials. `Socket` makes them by role."""

from __future__ import annotations

import errno
import math
import threading
import time

import zmq

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.binding import Binding
from rl4sys_zmq.transports.context import TrackedSocket, track, untrack
from rl4sys_zmq.transports.frames import LARGE_FRAME_BYTES, MAX_FRAMES, Frame, Frames, SendResult, TooManyFrames
from rl4sys_zmq.transports.monitor import MAX_EVENTS, Monitor, MonitorEvent
from rl4sys_zmq.transports.peers import SubscriptionGrants, connections, cut_off, descriptor_of, user_of

__all__ = ["Endpoint"]

_NOBODY = -1
_LAST, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)
"""Flags of the last frame of a message and of those before. As numbers: to combine flags costs as much as to send a frame."""


class Endpoint(TrackedSocket):
    """Frames in, frames out, in the thread that made it.

    Attributes:
        user: on an `authenticated` socket, who sent the last message that `recv` took, as the domain's check named them; empty
            for an xpub's notice that the end of a connection caused. Empty on every other socket.
    """

    def __init__(self, raw: zmq.Socket[bytes], role: str, address: Address, binding: Binding | None) -> None:
        self.owner = threading.get_ident()
        self.role = role
        self.raw = raw
        self._address = address
        self._binding = binding
        self._fewest = 2 if role == "router" else 1
        self.user = ""
        self._authenticated = False
        self._first: zmq.Frame | None = None
        self._monitor: Monitor | None = None
        self._grants: SubscriptionGrants | None = None
        self._closed = False
        self._timeout_ms = -1
        track(self)

    @property
    def address(self) -> Address:
        """Where it is bound, with port, path and name as they came out, or where it dials."""
        return self._address

    @property
    def bound(self) -> Address:
        """Where it is bound: what the other side dials.

        Raises:
            TransportError: when it dials rather than binds.
        """
        if self._binding is None:
            raise TransportError(f"this {self.role} dials {self._address.uri}; it is not bound")
        return self._address

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @property
    def authenticated(self) -> bool:
        """True when `user` names the sender of every message: bound with a ZAP domain, and not on inproc."""
        return self._authenticated

    def send(self, frames: Frames) -> SendResult:
        """Queues one message, whole or not at all, and never blocks.

        Frames are copied, so a buffer may be reused at once; but what `recv` gave as a view goes on as it is, without a copy.
        On a router the first frame is the peer's routing id.

        Raises:
            TransportError: for an empty message, a router's without a body, or a call from another thread.
            Closed: after `close`.
        """
        if self.owner != threading.get_ident() or self._closed:
            self.check_owner()
        last = len(frames) - 1
        if last + 1 < self._fewest:
            raise TransportError(f"a {self.role} sends at least {self._fewest} frame(s), not {last + 1}")
        if self.role == "xpub":
            # A publisher learns only about once per millisecond that a queue has drained, and meanwhile drops messages
            # to subscribers that keep up; asking for its state makes it look first.
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
                # The peer vanished within the message: libzmq has rolled it back and swallows its remaining frames, but
                # they must be sent, or it would swallow the next message in their place.
            except zmq.ZMQError as exc:
                if exc.errno != errno.EHOSTUNREACH:
                    raise TransportError(f"cannot send on the {self.role} at {self._address.uri}: {exc.strerror}") from exc
                return SendResult.GONE
        return result

    def send_wait(self, frames: Frames, timeout_s: float | None) -> SendResult:
        """Like `send`, but waits for room, at most `timeout_s` seconds (None: for ever). Only for a thread that may stand still.

        Raises:
            TransportError: on a router, which cannot wait for one peer alone; and as `send` does.
            Closed: after `close`.
        """
        if self.role == "router":
            raise TransportError("a router cannot wait for one peer; try again when something happens")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (sent := self.send(frames)) is SendResult.FULL:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self.raw.poll(None if left_s is None else math.ceil(left_s * 1000), zmq.POLLOUT)
        return sent

    def recv(self, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        """Takes one message, or None when there is none; never blocks.

        Returns:
            Its frames, as ``bytes``, or from `LARGE_FRAME_BYTES` on as read-only views of a buffer that is theirs alone. On a
            router the first frame is the sender's routing id; on an xpub the message is a notice (`read_subscription`).

        Raises:
            TooManyFrames: for a message of more than `max_frames` frames, which is gone.
            TransportError: for a call from another thread.
            Closed: after `close`.
        """
        return self._recv(max_frames, _LAST)

    def recv_wait(self, timeout_s: float, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        """Like `recv`, but waits for a message, at most `timeout_s` seconds. Only for a thread that may stand still.

        Raises:
            TooManyFrames: as `recv` does.
            TransportError: for a call from another thread.
            Closed: after `close`.
        """
        timeout_ms = math.ceil(max(0.0, timeout_s) * 1000)
        if timeout_ms != self._timeout_ms:
            self.check_owner()
            self.raw.setsockopt(zmq.RCVTIMEO, timeout_ms)
            self._timeout_ms = timeout_ms
        return self._recv(max_frames, 0)

    def _recv(self, max_frames: int, flags: int) -> list[Frame] | None:
        if self.owner != threading.get_ident() or self._closed:
            self.check_owner()
        try:
            frame = self._first = self.raw.recv(flags, copy=False)
            frames = [_owned(frame)]
            if self._authenticated:
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
            raise TransportError(f"cannot receive on the {self.role} at {self._address.uri}: {exc.strerror}") from exc
        if count > max_frames:
            raise TooManyFrames(count, max_frames, bytes(frames[0]))
        return frames

    def grant(self, topic: bytes) -> None:
        """Makes the subscription of the last notice effective, on an xpub with ``grants=True``. Whoever is gone stays gone.

        Raises:
            TransportError: when the last notice asked for something else or for nothing, or this socket needs no grants.
        """
        self.check_owner()
        if self._grants is None:
            raise TransportError(f"this {self.role} grants nothing; only an xpub made with grants=True does")
        self._grants.grant(topic)

    def cut_off(self) -> bool:
        """Ends the connection that the last message came on, as for a key that was revoked; its peer redials.

        Returns:
            False when it has ended already, on inproc, on a dialling socket, and before the first message.
        """
        self.check_owner()
        return self.cut(self.descriptor())

    def descriptor(self) -> int:
        """The descriptor of the connection that the last message came on; -1 on inproc, when dialling, and before the first."""
        return -1 if self._binding is None or self._first is None else descriptor_of(self._first)

    def cut(self, descriptor: int) -> bool:
        """Ends the connection of this descriptor, if it is one to this socket; its peer redials.

        Returns:
            False when it is none (any more).
        """
        return self._binding is not None and descriptor >= 0 and cut_off(descriptor, self._address)

    def connections(self) -> list[int]:
        """The descriptors of all connections to this bound socket; empty on inproc, and on systems without ``/proc``."""
        return connections(self._address) if self._binding is not None else []

    def events(self, limit: int = MAX_EVENTS) -> list[MonitorEvent]:
        """What has happened to the connections since the last call, at most `limit`; never blocks. `explain` puts one in words.

        Call it at least about once a second: what waits costs memory.

        Raises:
            TransportError: when the socket was made without ``watch=True``.
        """
        self.check_owner()
        if self._monitor is None:
            raise TransportError(f"this {self.role} is not watched; make it with watch=True")
        return self._monitor.events(limit)

    def subscribe(self, prefix: bytes) -> None:
        """Asks a sub's publisher for all messages whose first frame starts with `prefix`."""
        self.check_owner()
        self._set_topic(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes back one `subscribe` of the same prefix."""
        self.check_owner()
        self._set_topic(zmq.UNSUBSCRIBE, prefix)

    def close(self) -> None:
        """Stops listening and closes; what is still queued for sending is discarded. A second call does nothing.

        Raises:
            TransportError: for a call from another thread.
        """
        if self._closed:
            return
        if self.owner == _NOBODY:
            self._closed = True
            return
        self.check_owner()
        self._closed = True
        self._first = None
        try:
            if self._monitor is not None:
                self._monitor.close()
            if self._binding is not None:
                self._binding.close()
        finally:
            self.raw.close(linger=0)
            untrack(self)

    def adopt(self) -> None:
        """Makes the calling thread the owner. Only where a lock orders all that the last owner did with it before this.

        Raises:
            TransportError: when a fork has inherited it.
            Closed: after `close`.
        """
        if self.owner != _NOBODY:
            self.owner = threading.get_ident()
        self.check_owner()

    @property
    def inherited(self) -> bool:
        """Whether it is the parent's, in a forked child: there it can only be closed, which leaves the parent's alone."""
        return self.owner == _NOBODY

    def disown(self) -> None:
        """Lets go of it in a forked child."""
        self.owner = _NOBODY
        if self._binding is not None:
            self._binding.disown()

    def _set_topic(self, option: int, prefix: bytes) -> None:
        if self.role != "sub":
            raise TransportError(f"a {self.role} has no subscriptions; only a sub has")
        self.raw.setsockopt(option, prefix)

    def check_owner(self) -> None:
        """Raises TransportError in a thread that did not make it, Closed after `close`."""
        if self.owner != threading.get_ident():
            if self.owner == _NOBODY:
                raise TransportError(f"this {self.role} was inherited by a fork; make a new one in the child")
            raise TransportError(f"this {self.role} belongs to another thread; make, use and close a socket in one thread")
        if self._closed:
            raise Closed(f"the {self.role} at {self._address.uri} is closed")

    def __repr__(self) -> str:
        state = "closed, was at" if self._closed else "bound to" if self._binding else "dialling"
        return f"<{self.role} {state} {self._address.uri}>"


def _shared(frame: Frame) -> Frame | zmq.Frame:
    """The message behind a view of all of it, which libzmq passes on without a copy; any other frame as it is."""
    if isinstance(frame, memoryview) and isinstance(frame.obj, zmq.Frame) and frame.nbytes == len(frame.obj):
        return frame.obj
    return frame


def _owned(frame: zmq.Frame) -> Frame:
    if len(frame) < LARGE_FRAME_BYTES:
        return frame.bytes
    return memoryview(frame.buffer).toreadonly()
