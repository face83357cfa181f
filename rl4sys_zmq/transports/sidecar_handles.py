"""Handles, in the host, of the ZeroMQ sockets of a sidecar, and a poller for these handles."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from rl4sys_zmq.errors import Closed, ProtocolError, RefusalReason, TransportError
from rl4sys_zmq.liveness import PING_S
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.frames import MAX_FRAMES, Frame, Frames, SendResult, TooManyFrames, frame_bytes
from rl4sys_zmq.transports.monitor import MonitorEvent
from rl4sys_zmq.transports.poller import HasFileno, Poller, Source
from rl4sys_zmq.transports.sidecar_pipe import (
    MAX_MESSAGE_BYTES,
    RECEIVE_WINDOW_BYTES,
    SEND_WINDOW_BYTES,
    TOTAL,
    SidecarCommand,
    SidecarCommandKind,
    cost_bytes,
    size_fault,
)

if TYPE_CHECKING:
    from rl4sys_zmq.transports.sidecar import SidecarSocketFactory


class SidecarSocket(Resource):
    """A handle of a ZeroMQ socket in a sidecar. Its methods behave as those of `Socket`.

    `send` returns `FULL` when `SEND_WINDOW_BYTES` of messages were sent to the sidecar and the ZeroMQ socket has not accepted
    them. `recv` raises `ProtocolError` for a message of more than `MAX_MESSAGE_BYTES`. Messages between host and ZeroMQ socket
    are lost when the socket is closed or the sidecar ends.
    """

    def __init__(self, factory: SidecarSocketFactory, number: int, role: str, address: Address) -> None:
        self.role = role
        self.address = address
        self.number = number
        self.factory = factory
        self._inbox: deque[SidecarCommand] = deque()
        self._error: str | None = None
        self._closed = False
        self._sent_bytes = self._confirmed_bytes = 0
        self._taken_bytes = self._reported_bytes = 0

    @property
    def readable(self) -> bool:
        """True if `recv` would return a message or raise an error."""
        return bool(self._inbox) or self._error is not None

    @property
    def writable(self) -> bool:
        """True if `send` would accept a message."""
        return self._sent_bytes - self._confirmed_bytes < SEND_WINDOW_BYTES and self.factory.unsent_bytes < SEND_WINDOW_BYTES

    def send(self, frames: Frames) -> SendResult:
        self._check()
        if not frames or self.role == "sub":
            raise TransportError(f"a {self.role} cannot send a message of {len(frames)} frame(s)")
        if fault := size_fault([frame_bytes(frame) for frame in frames]):
            raise TransportError(fault)
        if not self.writable:
            self.factory.exchange()
            if not self.writable:
                return SendResult.FULL
        self._sent_bytes += cost_bytes(frames)
        self.factory.send_command(SidecarCommandKind.MESSAGE, self.number, frames)
        return SendResult.OK

    def recv(self, max_frames: int = MAX_FRAMES) -> list[Frame] | None:
        self._check()
        if not self._inbox:
            self.factory.exchange()
            self._check()
            if not self._inbox:
                return None
        command = self._inbox.popleft()
        frames = command.frames
        self._taken_bytes += cost_bytes(frames)
        if self._taken_bytes - self._reported_bytes >= RECEIVE_WINDOW_BYTES // 2:
            self._reported_bytes = self._taken_bytes
            self.factory.send_command(SidecarCommandKind.TAKEN, self.number, [TOTAL.pack(self._taken_bytes)])
        if command.kind == SidecarCommandKind.REFUSED:
            (count,) = TOTAL.unpack(frames[0])
            if not count:
                raise ProtocolError(RefusalReason.TOO_LARGE, f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            raise TooManyFrames(count, max_frames, bytes(frames[1]))
        if len(frames) > max_frames:
            raise TooManyFrames(len(frames), max_frames, bytes(frames[0]))
        return frames

    def subscribe(self, prefix: bytes) -> None:
        self._set_topic(SidecarCommandKind.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        self._set_topic(SidecarCommandKind.UNSUBSCRIBE, prefix)

    def events(self) -> list[MonitorEvent]:
        # the sidecar does not report the events of connections
        return []

    def on_command(self, command: SidecarCommand) -> None:
        if command.kind in (SidecarCommandKind.MESSAGE, SidecarCommandKind.REFUSED):
            self._inbox.append(command)
        elif command.kind == SidecarCommandKind.TAKEN:
            (self._confirmed_bytes,) = TOTAL.unpack(command.frames[0])
        elif command.kind == SidecarCommandKind.FAILED:
            self._error = bytes(command.frames[0]).decode(errors="replace")

    def close(self) -> None:
        """Close the socket. If the sidecar has ended, this does not raise."""
        if not self._closed:
            self.factory.close_connection(self.number)
            self._closed = True
            self._inbox.clear()

    def _set_topic(self, command: SidecarCommandKind, prefix: bytes) -> None:
        self._check()
        if self.role != "sub":
            raise TransportError(f"a {self.role} has no subscriptions; only a sub has")
        self.factory.send_command(command, self.number, [prefix])

    def _check(self) -> None:
        self.factory.check_owner()
        if self._closed:
            raise Closed(f"the {self.role} at {self.address.uri} is closed")
        if self._error is not None:
            raise TransportError(self._error)

    def __repr__(self) -> str:
        return f"<{self.role} {'closed, was connected to' if self._closed else 'connecting to'} {self.address.uri} by a sidecar>"


class SidecarPoller(Poller):
    """A poller for sockets of a `SidecarSocketFactory` and for file descriptors. It uses poll(2)."""

    def __init__(self, factory: SidecarSocketFactory) -> None:
        self._factory = factory
        self._poll = select.poll()
        self._connections: dict[SidecarSocket, tuple[bool, bool]] = {}  # wanted: something to read, room to write
        self._descriptors: dict[int, Source] = {}

    def register(self, source: Source, *, read: bool = True, write: bool = False) -> None:
        self._factory.check_owner()
        if isinstance(source, SidecarSocket) and source.factory is self._factory:
            self._connections[source] = read, write
            return
        fd = _descriptor(source)
        self._poll.register(fd, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        self._descriptors[fd] = source

    def unregister(self, source: Source) -> None:
        if isinstance(source, SidecarSocket):
            self._connections.pop(source, None)
            return
        fd = _descriptor(source)
        if self._descriptors.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def poll(self, timeout_s: float | None) -> set[Source]:
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            ready = self._ready_lines()
            left_s = 0.0 if ready else max(0.0, deadline - time.monotonic())
            ready |= self._wait(min(left_s, PING_S))
            ready |= self._ready_lines()
            if ready or time.monotonic() >= deadline:
                return ready

    def close(self) -> None:
        for fd in self._descriptors:
            self._poll.unregister(fd)
        self._descriptors.clear()
        self._connections.clear()

    def _wait(self, timeout_s: float) -> set[Source]:
        """Wait once for the file descriptors and the sidecar, exchange data with it, and return the ready descriptors.

        The exchange delivers the messages of the sidecar's sockets, and `_ready_lines` then finds them.
        """
        self._factory.check_owner()
        pair = self._factory.fileno()
        self._poll.register(pair, select.POLLIN | (select.POLLOUT if self._factory.unsent_bytes else 0))
        events = self._poll.poll(math.ceil(timeout_s * 1000))
        self._poll.unregister(pair)
        ready: set[Source] = set()
        for fd, event in events:
            if fd == pair:
                continue
            if event & select.POLLNVAL:
                raise TransportError("cannot poll: unregister a source before closing it")
            ready.add(self._descriptors[fd])
        self._factory.exchange()
        return ready

    def _ready_lines(self) -> set[Source]:
        return {
            line for line, (read, write) in self._connections.items() if (read and line.readable) or (write and line.writable)
        }


def _descriptor(source: Source) -> int:
    if isinstance(source, int):
        return source
    if not hasattr(source, "fileno"):
        raise TransportError(f"{source!r} cannot be polled with a sidecar's connections; create it with the same sidecar")
    return cast(HasFileno, source).fileno()
