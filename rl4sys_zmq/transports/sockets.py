"""A socket by role and the poller that waits on several: frames in, frames out, never blocking, one thread each.

The six roles are made by `router`, `dealer`, `xpub`, `sub`, `push` and `pull` in `rl4sys_zmq.transports.roles`.
"""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import zmq

from rl4sys_zmq.errors import Closed, ProtocolError, Refusal, TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.binding import Binding
from rl4sys_zmq.transports.context import Tracked, track, untrack

__all__ = ["LARGE_FRAME_BYTES", "MAX_FRAMES", "Frame", "Frames", "HasFileno", "Poller", "Sent", "Socket", "TooManyFrames"]

Frame = bytes | memoryview
Frames = Sequence[Frame]
"""A message: at least one frame. The transport never looks inside."""

MAX_FRAMES = 32
"""The most frames of one message that `Socket.recv` keeps, unless told otherwise."""

LARGE_FRAME_BYTES = 64 * 1024
"""From this size on a received frame is a read-only view of libzmq's buffer; below it, copying costs less."""

_NOBODY = -1


class Sent(Enum):
    """What became of a message. Only `OK` is true, so ``if not socket.send(frames)`` reads as it should."""

    OK = "ok"  # it is in libzmq's queue; whether it arrives is for the protocol above to learn
    FULL = "full"  # nothing was queued: the peer reads too slowly, or there is none yet
    GONE = "gone"  # nothing was queued: the router knows no such peer

    def __bool__(self) -> bool:
        return self is Sent.OK


class TooManyFrames(ProtocolError):
    """A message had more frames than allowed and was thrown away.

    Attributes:
        first: its first frame; on a router, the routing id of the peer that sent it.
    """

    def __init__(self, count: int, limit: int, first: bytes) -> None:
        self.first = first
        super().__init__(Refusal.FRAMES, f"a message of {count} frames; the limit is {limit}")


class HasFileno(Protocol):
    """Whatever has a descriptor: a `Wakeup`, a file, a plain socket."""

    def fileno(self) -> int:
        """The descriptor to poll."""


class Socket(Tracked):
    """One end of a connection: made, used and closed in one thread.

    A call from another thread raises, since two threads in one libzmq socket tear messages apart without any error. In a
    forked child an inherited socket belongs to nobody: every call but `close` raises, and `close` lets the parent's be.
    """

    def __init__(self, raw: zmq.Socket[bytes], role: str, address: Address, binding: Binding | None) -> None:
        self.owner = threading.get_ident()
        self.role = role
        self._raw = raw
        self._address = address
        self._binding = binding
        self._fewest = 2 if role == "router" else 1
        self._closed = False
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

    def send(self, frames: Frames) -> Sent:
        """Queues one message, whole or not at all, and never blocks.

        Frames are copied, so a buffer may be reused at once. On a router the first frame is the peer's routing id.

        Raises:
            TransportError: for an empty message, a router's without a body, or a call from another thread.
            Closed: after `close`.
        """
        self._own()
        last = len(frames) - 1
        if last + 1 < self._fewest:
            raise TransportError(f"a {self.role} sends at least {self._fewest} frame(s), not {last + 1}")
        result = Sent.OK
        for index, frame in enumerate(frames):
            try:
                self._raw.send(frame, zmq.DONTWAIT if index == last else zmq.DONTWAIT | zmq.SNDMORE)
            except zmq.Again:
                result = Sent.FULL
                if index == 0:
                    break
                # The peer vanished within the message: libzmq has rolled it back and swallows its remaining frames, but
                # they must be sent, or it would swallow the next message in their place.
            except zmq.ZMQError as exc:
                if exc.errno != errno.EHOSTUNREACH:
                    raise TransportError(f"cannot send on the {self.role} at {self._address.uri}: {exc.strerror}") from exc
                return Sent.GONE
        return result

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
        self._own()
        try:
            frame = self._raw.recv(zmq.DONTWAIT, copy=False)
            frames = [_owned(frame)]
            count = 1
            while frame.more:
                frame = self._raw.recv(zmq.DONTWAIT, copy=False)
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

    def subscribe(self, prefix: bytes) -> None:
        """Asks a sub's publisher for all messages whose first frame starts with `prefix`."""
        self._own()
        self._set_topic(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes back one `subscribe` of the same prefix."""
        self._own()
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
        self._own()
        self._closed = True
        try:
            if self._binding is not None:
                self._binding.close()
        finally:
            self._raw.close(linger=0)
            untrack(self)

    def disown(self) -> None:
        """Lets go of it in a forked child."""
        self.owner = _NOBODY
        if self._binding is not None:
            self._binding.disown()

    def _set_topic(self, option: int, prefix: bytes) -> None:
        if self.role != "sub":
            raise TransportError(f"a {self.role} has no subscriptions; only a sub has")
        self._raw.setsockopt(option, prefix)

    def _own(self) -> None:
        if self.owner != threading.get_ident():
            if self.owner == _NOBODY:
                raise TransportError(f"this {self.role} was inherited by a fork; make a new one in the child")
            raise TransportError(f"this {self.role} belongs to another thread; make, use and close a socket in one thread")
        if self._closed:
            raise Closed(f"the {self.role} at {self._address.uri} is closed")

    def __repr__(self) -> str:
        state = "closed, was at" if self._closed else "bound to" if self._binding else "dialling"
        return f"<{self.role} {state} {self._address.uri}>"


Source = Socket | HasFileno | int


class Poller:
    """Waits on sockets and plain descriptors at once. Used in one thread, like the sockets in it."""

    def __init__(self) -> None:
        self._raw = zmq.Poller()
        self._sources: dict[object, Source] = {}

    def add(self, source: Source, *, read: bool = True, write: bool = False) -> None:
        """Adds a source, or changes what is waited for.

        Args:
            source: a `Socket`, a descriptor, or something with one (a `Wakeup`).
            read: ready when there is something to read.
            write: ready when there is room to write. A router's is ready when *any* peer has room.
        """
        key = _pollable(source)
        self._raw.register(key, (zmq.POLLIN if read else 0) | (zmq.POLLOUT if write else 0))
        self._sources[key] = source

    def remove(self, source: Source) -> None:
        """Removes a source, before it is closed. One that is not there is left alone."""
        key = _pollable(source)
        if self._sources.pop(key, None) is not None:
            self._raw.unregister(key)

    def poll(self, timeout_s: float) -> set[Source]:
        """Waits until a source is ready, at most `timeout_s` seconds (0: does not wait); returns those that are.

        A descriptor counts as ready too when it failed or its other end is closed: reading it then tells.

        Raises:
            TransportError: when a source was closed and is still here, or belongs to another thread.
        """
        for source in self._sources.values():
            if isinstance(source, Socket):
                source._own()
        try:
            ready = self._raw.poll(math.ceil(max(0.0, timeout_s) * 1000))
        except zmq.ZMQError as exc:
            raise TransportError(f"cannot poll: {exc.strerror}; remove a source before closing it") from exc
        return {self._sources[key] for key, _ in ready}


def _owned(frame: zmq.Frame) -> Frame:
    if len(frame) < LARGE_FRAME_BYTES:
        return frame.bytes
    return memoryview(frame.buffer).toreadonly()


def _pollable(source: Source) -> zmq.Socket[bytes] | int:
    if isinstance(source, Socket):
        source._own()
        return source._raw
    return source if isinstance(source, int) else source.fileno()
