"""ZeroMQ sockets in a sidecar, so that the host survives an abort in libzmq: the host's side.

The host itself has no ZeroMQ socket and no context.
"""

from __future__ import annotations

import contextlib
import threading

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import TrackedResource, track, untrack
from rl4sys_zmq.transports.frames import Frames
from rl4sys_zmq.transports.network import Keys, SocketFactory, SocketPoller
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES
from rl4sys_zmq.transports.sidecar import Sidecar
from rl4sys_zmq.transports.sidecar_handles import SidecarPoller, SidecarSocket
from rl4sys_zmq.transports.sidecar_pipe import LIMITS, SidecarCommandKind

_NO_OWNER = -1
_KEY_BYTES = 40


class SidecarSocketFactory(SocketFactory, TrackedResource):
    """A `SocketFactory` whose sockets are in a sidecar, which it starts.

    After the sidecar has ended, all methods of the factory, its sockets and its pollers except `close` and `unregister` raise
    `TransportError`. The factory does not start another sidecar. In a forked child every method except `close` raises.
    """

    def __init__(self) -> None:
        """Start the sidecar, without waiting until it runs."""
        self.owner = threading.get_ident()
        self._connections: dict[int, SidecarSocket] = {}
        self._opened = 0
        self._closed = False
        self.sidecar = Sidecar()
        track(self)

    @property
    def pid(self) -> int:
        """The process id of the sidecar."""
        return self.sidecar.pid

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

    def poller(self) -> SocketPoller:
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
        self.send_command(SidecarCommandKind.OPEN, line.number, frames)
        self._connections[line.number] = line
        return line

    # ---- for the sockets and pollers of this sidecar

    def send_command(self, command: SidecarCommandKind, line: int, frames: Frames = ()) -> None:
        """Send a command to a socket in the sidecar, or to the sidecar itself (0)."""
        self.check_owner()
        self.sidecar.send_command(command, line, frames)

    def exchange(self) -> None:
        """Write queued data to the sidecar, and pass the commands received from it to their sockets. Never block."""
        self.check_owner()
        for command in self.sidecar.exchange():
            if (line := self._connections.get(command.line)) is not None:
                line.on_command(command)

    def close_connection(self, number: int) -> None:
        """Close the socket with this number in the sidecar."""
        if self.owner == _NO_OWNER:
            return
        self.check_thread()
        self._connections.pop(number, None)
        if not self._closed:
            with contextlib.suppress(TransportError):  # the sidecar has ended, so its sockets are closed
                self.sidecar.send_command(SidecarCommandKind.CLOSE, number)

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
        self.sidecar.check()

    # ---- closing

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
            self.sidecar.close()
        finally:
            untrack(self)

    def abandon(self) -> None:
        """Mark the factory as unusable in a forked child, and close the child's copy of the socketpair."""
        self.owner = _NO_OWNER
        self.sidecar.abandon()
