"""One socket in a sidecar as its host sees it, and how the host waits for several."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from typing import NamedTuple, Protocol, cast

from rl4sys_zmq.errors import Closed, ProtocolError, Refusal, TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.frames import MAX_FRAMES, Frame, Frames, SendResult, TooManyFrames
from rl4sys_zmq.transports.monitor import MonitorEvent
from rl4sys_zmq.transports.network import Connection
from rl4sys_zmq.transports.poller import HasFileno
from rl4sys_zmq.transports.relay_pipe import (
    MAX_MESSAGE_BYTES,
    RECEIVE_WINDOW_BYTES,
    SEND_WINDOW_BYTES,
    TOTAL,
    RelayCommand,
    RelayMessage,
    cost_bytes,
    frame_bytes,
    size_fault,
)
from rl4sys_zmq.transports.sidecar import PING_S

__all__ = ["ConnectionCarrier", "RelayPoller", "RelayedConnection"]


class ConnectionCarrier(Protocol):
    """What carries lines: a `Relay`."""

    @property
    def unsent_bytes(self) -> int:
        """How much the sidecar has not read yet and the pair has no room for."""

    def fileno(self) -> int:
        """The descriptor to wait for."""

    def check_owner(self) -> None:
        """Raises when it may not be used now, or not from here."""

    def say(self, command: RelayCommand, line: int, frames: Frames = ()) -> None:
        """Tells the sidecar something."""

    def pump(self) -> None:
        """Writes and reads what goes without waiting, and gives each line what is its."""

    def forget(self, number: int) -> None:
        """Closes a line."""


class RelayedConnection(Resource):
    """A socket in the sidecar. Its calls mean what those of `Socket` mean.

    `send` answers `FULL` when `SEND_WINDOW_BYTES` of it are under way to a zmq socket that has no room. A message that was
    under way when the line is closed, or the sidecar dies, is lost.

    Attributes:
        role: ``dealer`` or ``sub``.
        address: where it dials.
        number: its number in the sidecar.
        relay: through which it goes.
    """

    def __init__(self, relay: ConnectionCarrier, number: int, role: str, address: Address) -> None:
        self.role = role
        self.address = address
        self.number = number
        self.relay = relay
        self._inbox: deque[RelayMessage] = deque()
        self._error: str | None = None
        self._closed = False
        self._sent_bytes = self._confirmed_bytes = 0
        self._taken_bytes = self._reported_bytes = 0

    @property
    def readable(self) -> bool:
        """True when `recv` has something to return or to raise."""
        return bool(self._inbox) or self._error is not None

    @property
    def writable(self) -> bool:
        """True when `send` would take a message."""
        return self._sent_bytes - self._confirmed_bytes < SEND_WINDOW_BYTES and self.relay.unsent_bytes < SEND_WINDOW_BYTES

    def send(self, frames: Frames) -> SendResult:
        """Queues one message, whole or not at all, and never blocks. Frames are copied.

        Raises:
            TransportError: for an empty message, one larger than a sidecar carries, a sub, a call from another thread, when
                the line has failed, and when the sidecar is dead.
            Closed: after `close`.
        """
        self._check()
        if not frames or self.role == "sub":
            raise TransportError(f"a {self.role} cannot send a message of {len(frames)} frame(s)")
        if fault := size_fault([frame_bytes(frame) for frame in frames]):
            raise TransportError(fault)
        if not self.writable:
            self.relay.pump()
            if not self.writable:
                return SendResult.FULL
        self._sent_bytes += cost_bytes(frames)
        self.relay.say(RelayCommand.MESSAGE, self.number, frames)
        return SendResult.OK

    def recv(self, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        """Takes one message, or None when there is none; never blocks.

        Raises:
            TooManyFrames: for a message of more than `max_frames` frames, which is gone.
            ProtocolError: for one of more than `MAX_MESSAGE_BYTES`, likewise.
            TransportError: for a call from another thread, when the line has failed, and when the sidecar is dead.
            Closed: after `close`.
        """
        self._check()
        if not self._inbox:
            self.relay.pump()
            self._check()
            if not self._inbox:
                return None
        said = self._inbox.popleft()
        frames = said.frames
        self._taken_bytes += cost_bytes(frames)
        if self._taken_bytes - self._reported_bytes >= RECEIVE_WINDOW_BYTES // 2:
            self._reported_bytes = self._taken_bytes
            self.relay.say(RelayCommand.TAKEN, self.number, [TOTAL.pack(self._taken_bytes)])
        if said.command == RelayCommand.REFUSED:
            (count,) = TOTAL.unpack(frames[0])
            if not count:
                raise ProtocolError(Refusal.TOO_LARGE, f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            raise TooManyFrames(count, max_frames, bytes(frames[1]))
        if len(frames) > max_frames:
            raise TooManyFrames(len(frames), max_frames, bytes(frames[0]))
        return frames

    def subscribe(self, prefix: bytes) -> None:
        """Asks a sub's publisher for all messages whose first frame starts with `prefix`."""
        self._set_topic(RelayCommand.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Takes back one `subscribe` of the same prefix."""
        self._set_topic(RelayCommand.UNSUBSCRIBE, prefix)

    def events(self) -> list[MonitorEvent]:
        """None: the sidecar does not tell."""
        return []

    def on_said(self, said: RelayMessage) -> None:
        """Takes what the sidecar says of this line."""
        if said.command in (RelayCommand.MESSAGE, RelayCommand.REFUSED):
            self._inbox.append(said)
        elif said.command == RelayCommand.TAKEN:
            (self._confirmed_bytes,) = TOTAL.unpack(said.frames[0])
        elif said.command == RelayCommand.FAILED:
            self._error = bytes(said.frames[0]).decode(errors="replace")

    def close(self) -> None:
        """Closes it. A second call does nothing; after the sidecar's death it raises nothing.

        Raises:
            TransportError: for a call from another thread.
        """
        if not self._closed:
            self.relay.forget(self.number)
            self._closed = True
            self._inbox.clear()

    def _set_topic(self, command: RelayCommand, prefix: bytes) -> None:
        self._check()
        if self.role != "sub":
            raise TransportError(f"a {self.role} has no subscriptions; only a sub has")
        self.relay.say(command, self.number, [prefix])

    def _check(self) -> None:
        self.relay.check_owner()
        if self._closed:
            raise Closed(f"the {self.role} at {self.address.uri} is closed")
        if self._error is not None:
            raise TransportError(self._error)

    def __repr__(self) -> str:
        return f"<{self.role} {'closed, was dialling' if self._closed else 'dialling'} {self.address.uri} by a sidecar>"


class _Interest(NamedTuple):
    read: bool
    write: bool


class RelayPoller(Resource):
    """Waits on the lines of one relay and on plain descriptors, with nothing but poll(2). It owns none of them."""

    def __init__(self, relay: ConnectionCarrier) -> None:
        self._relay = relay
        self._raw = select.poll()
        self._lines: dict[RelayedConnection, _Interest] = {}
        self._sources: dict[int, HasFileno | int] = {}

    def register(self, source: Connection | HasFileno | int, *, read: bool = True, write: bool = False) -> None:
        """Adds a source, or changes what is waited for.

        Raises:
            TransportError: for a socket or a line that is not of this relay.
        """
        self._relay.check_owner()
        if isinstance(source, RelayedConnection) and source.relay is self._relay:
            self._lines[source] = _Interest(read, write)
            return
        fd = _descriptor(source)
        self._raw.register(fd, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        self._sources[fd] = source if isinstance(source, int) else _with_descriptor(source)

    def unregister(self, source: Connection | HasFileno | int) -> None:
        """Removes a source, before it is closed. One that is not there is left alone."""
        if isinstance(source, RelayedConnection):
            self._lines.pop(source, None)
            return
        fd = _descriptor(source)
        if self._sources.pop(fd, None) is not None:
            self._raw.unregister(fd)

    def poll(self, timeout_s: float | None) -> set[Connection | HasFileno | int]:
        """Waits until a source is ready, at most `timeout_s` seconds (0: does not wait; None: for ever).

        A descriptor counts as ready too when it failed or its other end is closed, and a line when it has failed: reading it
        then tells.

        Raises:
            TransportError: when a descriptor was closed and is still here, when the sidecar is dead, and in another thread.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            ready = self._ready_lines()
            left_s = 0.0 if ready else max(0.0, deadline - time.monotonic())
            ready |= self._wait(min(left_s, PING_S))
            ready |= self._ready_lines()
            if ready or time.monotonic() >= deadline:
                return ready

    def close(self) -> None:
        """Forgets all sources; they stay open."""
        for fd in self._sources:
            self._raw.unregister(fd)
        self._sources.clear()
        self._lines.clear()

    def _wait(self, timeout_s: float) -> set[Connection | HasFileno | int]:
        """One poll(2), and what it says of the plain descriptors; then the pair has been read and written."""
        self._relay.check_owner()
        pair = self._relay.fileno()
        self._raw.register(pair, select.POLLIN | (select.POLLOUT if self._relay.unsent_bytes else 0))
        events = self._raw.poll(math.ceil(timeout_s * 1000))
        self._raw.unregister(pair)
        ready: set[Connection | HasFileno | int] = set()
        for fd, event in events:
            if fd == pair:
                continue
            if event & select.POLLNVAL:
                raise TransportError("cannot poll: unregister a source before closing it")
            ready.add(self._sources[fd])
        self._relay.pump()
        return ready

    def _ready_lines(self) -> set[Connection | HasFileno | int]:
        return {
            line
            for line, interest in self._lines.items()
            if (interest.read and line.readable) or (interest.write and line.writable)
        }


def _with_descriptor(source: Connection | HasFileno) -> HasFileno:
    if not hasattr(source, "fileno"):
        raise TransportError(f"{source!r} cannot be polled with a sidecar's lines: make it with the same Relay")
    return cast(HasFileno, source)


def _descriptor(source: Connection | HasFileno | int) -> int:
    return source if isinstance(source, int) else _with_descriptor(source).fileno()
