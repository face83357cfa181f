"""ZeroMQ sockets in a sidecar process, so that the host survives an abort in libzmq: the host's side, without a ZeroMQ socket.

If the sidecar ends, the messages in it are lost, as when a connection breaks. The delivery protocol of the actor resends them.
"""

from __future__ import annotations

import contextlib
import math
import select
import subprocess
import sys
import time
from collections import deque
from typing import NoReturn, cast

from rl4sys_zmq.child_process import ChildProcess, end_text, start_with_socketpair
from rl4sys_zmq.errors import Closed, ProtocolError, RefusalReason, TransportError
from rl4sys_zmq.liveness import PING_S, PING_TIMEOUT_S, SIDECAR_START_S, is_silent
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import ThreadOwnedResource
from rl4sys_zmq.transports.frames import MAX_FRAME_BYTES, MAX_FRAMES, Frame, Frames, SendResult, TooManyFrames, frame_bytes
from rl4sys_zmq.transports.monitor import MonitorEvent
from rl4sys_zmq.transports.network import Keys, Limits, SocketFactory
from rl4sys_zmq.transports.peers import inode
from rl4sys_zmq.transports.poller import HasFileno, Poller, Source
from rl4sys_zmq.transports.sidecar_pipe import (
    LIMITS,
    MAX_MESSAGE_BYTES,
    RECEIVE_WINDOW_BYTES,
    SEND_WINDOW_BYTES,
    TOTAL,
    SidecarCommand,
    SidecarCommandKind,
    SidecarPipe,
    cost_bytes,
    size_fault,
)

# Longest time that the host waits for the end of a sidecar after `QUIT`. Then it kills the process.
CLOSE_WAIT_S = 0.5

_KEY_BYTES = 40
_MODULE = "rl4sys_zmq.transports.sidecar_process"


class SidecarSocketFactory(ThreadOwnedResource, SocketFactory):
    """A `SocketFactory` whose sockets are in a sidecar: it starts the process, exchanges commands with it, and ends it.

    `close` ends the sidecar within about a second, by force if necessary. After the sidecar has ended, all methods of the
    factory, its sockets and its pollers except `close` and `unregister` raise `TransportError`. The factory does not start
    another sidecar. In a forked child every method except `close` raises.
    """

    def __init__(self) -> None:
        """Start the process. Commands can be sent at once; the process reads them when it has started."""
        self._connections: dict[int, SidecarSocket] = {}
        self._opened = 0
        self._death: str | None = None
        self.pipe, self._process = _start()  # when the pipe is ready, call `exchange`
        self.pid = self._process.pid  # of the sidecar
        self._heard_at = time.monotonic()
        self._answer_by: float | None = self._heard_at + SIDECAR_START_S
        super().__init__("sidecar")

    def poller(self) -> SidecarPoller:
        return SidecarPoller(self)

    def _open(self, role: str, connect: Address | str, limits: Limits, keys: Keys | None) -> SidecarSocket:
        # The sidecar connects the socket later. If that fails, later calls of the socket's methods raise.
        self.check_owner()
        address = Address.parse(connect)
        if address.is_fresh or address.host == "*" or address.scheme == "inproc":
            raise TransportError(f"a sidecar cannot connect to {address.uri}; give an address that another process binds")
        if min(limits) < 0 or max(limits[:2]) >= 2**31 or limits[2] > MAX_FRAME_BYTES:
            raise TransportError(f"hwm and frame limits {limits}: expected at least 0, a frame at most {MAX_FRAME_BYTES} bytes")
        if keys is not None and any(len(key.encode()) != _KEY_BYTES for key in keys):
            raise TransportError(f"the CURVE keys are not three Z85 texts of {_KEY_BYTES} characters")
        self._opened += 1
        line = SidecarSocket(self, self._opened, role, address)
        frames = [role.encode(), address.uri.encode(), LIMITS.pack(*limits), *(key.encode() for key in keys or ())]
        self.put(SidecarCommandKind.OPEN, line.number, frames)
        self._connections[line.number] = line
        return line

    def put(self, command: SidecarCommandKind, line: int, frames: Frames = ()) -> None:
        """Queue a command for the socket with the number `line` in the sidecar, and write what fits without blocking."""
        self.pipe.put(command, line, frames)
        try:
            self.pipe.flush()
        except ConnectionError:
            self._die()

    def exchange(self) -> None:
        """Write queued data to the sidecar, and pass the commands received from it to their sockets. Never block."""
        self.check_owner()
        heard: list[SidecarCommand] = []
        progress = False
        try:
            self.pipe.flush()
            while (done := self.pipe.read()) is not None:
                progress = True
                heard += done
        except (EOFError, ConnectionError):
            self._die()
        except ProtocolError as exc:
            self._die(f"it sent a malformed command ({exc.detail})")
        self._watch(time.monotonic(), progress)
        for command in heard:
            if (line := self._connections.get(command.line)) is not None:
                line.on_command(command)

    def close_connection(self, number: int) -> None:
        if self.inherited:
            return
        self.check_thread()
        self._connections.pop(number, None)
        if not self.closed and self._death is None:
            with contextlib.suppress(TransportError):  # the sidecar has ended, so its sockets are closed
                self.put(SidecarCommandKind.CLOSE, number)

    def check_owner(self) -> None:
        """Raise TransportError in another thread or if the sidecar has ended, and Closed after `close`."""
        super().check_owner()
        if self._death is not None:
            raise TransportError(self._death)

    def abandon(self) -> None:
        """Mark the factory as unusable in a forked child, and close the child's copy of the socketpair.

        The copy would keep the sidecar running after the end of the host.
        """
        super().abandon()
        self.pipe.close()
        self._process.returncode = 0  # the parent waits for the process

    def _watch(self, now: float, progress: bool) -> None:
        """Ask the sidecar for an answer after 5 s without `progress` (data from the sidecar). Kill it if none comes in time."""
        if progress:
            self._heard_at, self._answer_by = now, None
        elif self._answer_by is None and is_silent(now, self._heard_at, PING_S):
            self._answer_by = now + PING_TIMEOUT_S
            self.put(SidecarCommandKind.PING, 0)
        elif self._answer_by is not None and now >= self._answer_by:
            self._die("it did not reply, and was killed")

    def _die(self, reason: str = "") -> NoReturn:
        self.pipe.close()
        if reason:
            self._process.kill()
        code = self._process.end(CLOSE_WAIT_S)
        self._death = f"the sidecar (pid {self.pid}) ended: {reason or end_text(code)}"
        raise TransportError(self._death)

    def _release(self) -> None:
        self._connections.clear()
        try:
            if self._death is None:
                deadline = time.monotonic() + CLOSE_WAIT_S
                self._send_quit(deadline)
                self._process.end(max(0.0, deadline - time.monotonic()))
        finally:
            self.pipe.close()

    def _send_quit(self, deadline: float) -> None:
        # The socketpair stays open: closing it would end the process before it has sent its last message.
        room = select.poll()
        room.register(self.pipe, select.POLLOUT)
        self.pipe.put(SidecarCommandKind.QUIT, 0)
        with contextlib.suppress(ConnectionError):
            while self.pipe.unsent_bytes and (left_s := deadline - time.monotonic()) > 0:
                room.poll(math.ceil(left_s * 1000))
                self.pipe.flush()


def _start() -> tuple[SidecarPipe, ChildProcess]:
    if not sys.executable:
        raise TransportError("cannot start a sidecar: sys.executable is empty; set it to the Python interpreter to use")
    try:
        ours, process = start_with_socketpair("-m", _MODULE, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as exc:
        raise TransportError(f"cannot start a sidecar: {exc}") from exc
    ours.setblocking(False)
    return SidecarPipe(ours), process


class SidecarSocket(Resource):
    """A handle of a ZeroMQ socket in a sidecar. Its methods behave as those of `Socket`.

    `send` returns `FULL` when 64 MiB of messages were sent to the sidecar and the ZeroMQ socket has not accepted them. `recv`
    raises `ProtocolError` for a message of more than 512 MiB. Messages between host and ZeroMQ socket are lost when the socket
    is closed or the sidecar ends.
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
        return self._sent_bytes - self._confirmed_bytes < SEND_WINDOW_BYTES and self.factory.pipe.unsent_bytes < SEND_WINDOW_BYTES

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
        self.factory.put(SidecarCommandKind.MESSAGE, self.number, frames)
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
            self.factory.put(SidecarCommandKind.TAKEN, self.number, [TOTAL.pack(self._taken_bytes)])
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
        self.factory.put(command, self.number, [prefix])

    def _check(self) -> None:
        self.factory.check_owner()
        if self._closed:
            raise Closed(f"the {self.role} at {self.address.uri} is closed")
        if self._error is not None:
            raise TransportError(self._error)

    def __repr__(self) -> str:
        return f"<{self.role} {'closed, was connected to' if self._closed else 'connecting to'} {self.address.uri} by a sidecar>"


class SidecarPoller(Poller):
    """A poller for sockets of a `SidecarSocketFactory` and for file descriptors, one of which is the factory's socketpair."""

    def __init__(self, factory: SidecarSocketFactory) -> None:
        super().__init__()
        self._factory = factory
        self._connections: dict[SidecarSocket, tuple[bool, bool]] = {}  # wanted: something to read, room to write

    def register(self, source: Source, *, read: bool = True, write: bool = False) -> None:
        self._factory.check_owner()
        if isinstance(source, SidecarSocket) and source.factory is self._factory:
            self._connections[source] = read, write
        elif isinstance(source, int) or hasattr(source, "fileno"):
            super().register(source, read=read, write=write)
        else:
            raise TransportError(f"{source!r} cannot be polled with a sidecar's connections; create it with the same sidecar")

    def unregister(self, source: Source) -> None:
        if isinstance(source, SidecarSocket):
            self._connections.pop(source, None)
        else:
            super().unregister(source)

    def poll(self, timeout_s: float | None) -> set[Source]:
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            ready = self._ready_lines()
            left_s = 0.0 if ready else max(0.0, deadline - time.monotonic())
            # The exchange delivers the messages of the sidecar's sockets, and `_ready_lines` then finds them.
            ready |= self._ready_descriptors(min(left_s, PING_S))
            self._factory.exchange()
            ready |= self._ready_lines()
            if ready or time.monotonic() >= deadline:
                return ready

    def close(self) -> None:
        super().close()
        self._connections.clear()

    def _ready_descriptors(self, timeout_s: float) -> set[Source]:
        self._factory.check_owner()
        pipe = self._factory.pipe
        super().register(pipe, write=pipe.unsent_bytes > 0)
        ready = super().poll(timeout_s) - {pipe}
        if any(map(_is_closed, ready)):
            raise TransportError("cannot poll: unregister a source before closing it")
        return ready

    def _ready_lines(self) -> set[Source]:
        return {
            line for line, (read, write) in self._connections.items() if (read and line.readable) or (write and line.writable)
        }


def _is_closed(source: Source) -> bool:
    return not inode(source if isinstance(source, int) else cast(HasFileno, source).fileno())
