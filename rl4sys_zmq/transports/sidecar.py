"""ZeroMQ sockets in a sidecar process, so that the host survives an abort in libzmq: the host's side, without a ZeroMQ socket.

If the sidecar ends, the messages in it are lost, as when a connection breaks. The delivery protocol of the actor resends them.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import subprocess
import sys
import threading
import time
from typing import NoReturn

from rl4sys_zmq.child_process import ChildProcess, end_text, start_with_socketpair
from rl4sys_zmq.errors import Closed, ProtocolError, TransportError
from rl4sys_zmq.liveness import PING_S, PING_TIMEOUT_S, SIDECAR_START_S, is_silent
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import TrackedResource, track, untrack
from rl4sys_zmq.transports.frames import MAX_FRAME_BYTES, Frames
from rl4sys_zmq.transports.network import Keys, SocketFactory
from rl4sys_zmq.transports.sidecar_handles import SidecarPoller, SidecarSocket
from rl4sys_zmq.transports.sidecar_pipe import (
    LIMITS,
    SidecarCommand,
    SidecarCommandKind,
    SidecarCommandQueue,
    SidecarCommandReader,
)

# Longest time that the host waits for the end of a sidecar after `QUIT`. Then it kills the process.
CLOSE_WAIT_S = 0.5

_NO_OWNER = -1
_KEY_BYTES = 40
_MODULE = "rl4sys_zmq.transports.sidecar_process"


class SidecarSocketFactory(SocketFactory, TrackedResource):
    """A `SocketFactory` whose sockets are in a sidecar: it starts the process, exchanges commands with it, and ends it.

    After the sidecar has ended, all methods of the factory, its sockets and its pollers except `close` and `unregister` raise
    `TransportError`. The factory does not start another sidecar. In a forked child every method except `close` raises.
    """

    def __init__(self) -> None:
        """Start the process. Commands can be sent at once; the process reads them when it has started."""
        self.owner = threading.get_ident()
        self._connections: dict[int, SidecarSocket] = {}
        self._opened = 0
        self._closed = False
        self._death: str | None = None
        self._input, self._output = SidecarCommandReader(), SidecarCommandQueue()
        self._pair, self._process = _start()
        self.pid = self._process.pid  # of the sidecar
        self._heard_at = time.monotonic()
        self._answer_by: float | None = self._heard_at + SIDECAR_START_S
        track(self)

    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> SidecarSocket:
        # The sidecar connects the socket later. If that fails, later calls of the socket's methods raise.
        return self._open("dealer", connect, (send_hwm, recv_hwm, max_frame_bytes), keys)

    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> SidecarSocket:
        return self._open("sub", connect, (0, hwm, max_frame_bytes), keys)

    def poller(self) -> SidecarPoller:
        return SidecarPoller(self)

    def _open(self, role: str, connect: Address | str, limits: tuple[int, int, int], keys: Keys | None) -> SidecarSocket:
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
        self._put(SidecarCommandKind.OPEN, line.number, frames)
        self._connections[line.number] = line
        return line

    # ---- for the sockets and pollers of this sidecar

    def fileno(self) -> int:
        """Return the descriptor of the socketpair. When it is ready, call `exchange`."""
        return self._pair.fileno()

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that are queued because the socketpair is full."""
        return self._output.nbytes

    def send_command(self, command: SidecarCommandKind, line: int, frames: Frames = ()) -> None:
        """Queue a command for the socket with the number `line` in the sidecar, and write what the socketpair accepts."""
        self.check_owner()
        self._put(command, line, frames)

    def exchange(self) -> None:
        """Write queued data to the sidecar, and pass the commands received from it to their sockets. Never block."""
        self.check_owner()
        heard: list[SidecarCommand] = []
        progress = False
        try:
            self._output.flush(self._pair)
            while (done := self._input.read(self._pair)) is not None:
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
        if self.owner == _NO_OWNER:
            return
        self.check_thread()
        self._connections.pop(number, None)
        if not self._closed and self._death is None:
            with contextlib.suppress(TransportError):  # the sidecar has ended, so its sockets are closed
                self._put(SidecarCommandKind.CLOSE, number)

    def check_thread(self) -> None:
        """Raise TransportError if the calling thread did not create this object, or the process is a forked child."""
        if self.owner == _NO_OWNER:
            raise TransportError("this sidecar was inherited by a fork; create a new one in the child")
        if self.owner != threading.get_ident():
            raise TransportError("this sidecar belongs to another thread; create, use and close it in one thread")

    def check_owner(self) -> None:
        """Raise TransportError in another thread or if the sidecar has ended, and Closed after `close`."""
        self.check_thread()
        if self._closed:
            raise Closed("the sidecar is closed")
        if self._death is not None:
            raise TransportError(self._death)

    # ---- the process

    def _put(self, command: SidecarCommandKind, line: int, frames: Frames = ()) -> None:
        self._output.put(command, line, frames)
        try:
            self._output.flush(self._pair)
        except ConnectionError:
            self._die()

    def _watch(self, now: float, progress: bool) -> None:
        """Send `PING` after `PING_S` without `progress` (data from the sidecar), and kill the sidecar if it does not answer in
        time.
        """
        if progress:
            self._heard_at, self._answer_by = now, None
        elif self._answer_by is None and is_silent(now, self._heard_at, PING_S):
            self._answer_by = now + PING_TIMEOUT_S
            self._put(SidecarCommandKind.PING, 0)
        elif self._answer_by is not None and now >= self._answer_by:
            self._die("it did not reply, and was killed")

    def _die(self, reason: str = "") -> NoReturn:
        self._pair.close()
        if reason:
            self._process.kill()
        code = self._process.end(CLOSE_WAIT_S)
        self._death = f"the sidecar (pid {self.pid}) ended: {reason or end_text(code)}"
        raise TransportError(self._death)

    def close(self) -> None:
        """End the sidecar within about a second, by force if necessary. Messages that it has not sent are discarded."""
        if self._closed:
            return
        if self.owner == _NO_OWNER:
            self._closed = True
            return
        self.check_thread()
        self._closed = True
        self._connections.clear()
        try:
            if self._death is None:
                deadline = time.monotonic() + CLOSE_WAIT_S
                self._send_quit(deadline)
                self._process.end(max(0.0, deadline - time.monotonic()))
        finally:
            self._pair.close()
            untrack(self)

    def abandon(self) -> None:
        """Mark the factory as unusable in a forked child, and close the child's copy of the socketpair.

        The copy would keep the sidecar running after the end of the host.
        """
        self.owner = _NO_OWNER
        self._pair.close()
        self._process.returncode = 0  # the parent waits for the process

    def _send_quit(self, deadline: float) -> None:
        # The socketpair stays open: closing it would end the process before it has sent its last message.
        room = select.poll()
        room.register(self._pair, select.POLLOUT)
        self._output.put(SidecarCommandKind.QUIT, 0)
        with contextlib.suppress(ConnectionError):
            while self._output.nbytes and (left_s := deadline - time.monotonic()) > 0:
                room.poll(math.ceil(left_s * 1000))
                self._output.flush(self._pair)


def _start() -> tuple[socket.socket, ChildProcess]:
    if not sys.executable:
        raise TransportError("cannot start a sidecar: sys.executable is empty; set it to the Python interpreter to use")
    try:
        ours, process = start_with_socketpair("-m", _MODULE, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as exc:
        raise TransportError(f"cannot start a sidecar: {exc}") from exc
    ours.setblocking(False)
    return ours, process
