"""Connecting sockets in a sidecar, for a host that must survive libzmq, which can abort its process.

This is the host's side. It carries whole messages over one socketpair. The host has no zmq socket and no context.
"""

from __future__ import annotations

import contextlib
import threading

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import TrackedSocket, track, untrack
from rl4sys_zmq.transports.frames import Frames
from rl4sys_zmq.transports.network import Keys, Network, SocketPoller
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES
from rl4sys_zmq.transports.relay_pipe import LIMITS, RelayCommand
from rl4sys_zmq.transports.relayed_connection import RelayedSocket, RelayPoller
from rl4sys_zmq.transports.sidecar import Sidecar

__all__ = ["Relay"]

_NO_OWNER = -1
_KEY_BYTES = 40


class Relay(Network, TrackedSocket):
    """A sidecar process and the connections through it. Create, use and close it in one thread, like a `Socket`.

    When the sidecar has ended, every call of the relay, its connections and its pollers raises `TransportError`, except for
    `close` and `unregister`. A relay does not start another sidecar. In a forked child every call except `close` raises.

    Attributes:
        owner: The identifier of the thread that created it.
    """

    def __init__(self) -> None:
        """Start the process, without waiting for it.

        Raises:
            TransportError: If no process can be started.
        """
        self.owner = threading.get_ident()
        self._connections: dict[int, RelayedSocket] = {}
        self._opened = 0
        self._closed = False
        self._sidecar = Sidecar()
        track(self)

    @property
    def pid(self) -> int:
        """The process id of the sidecar."""
        return self._sidecar.pid

    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> RelayedSocket:
        """Create a connecting dealer in the sidecar. See `Network.dealer`.

        If connecting itself fails, later calls of the connection raise.

        Raises:
            TransportError: If the address, the limits or the keys are invalid, and as for every call.
        """
        return self._open("dealer", connect, (send_hwm, recv_hwm, max_frame_bytes), keys)

    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> RelayedSocket:
        """Create a connecting subscriber in the sidecar. See `Network.sub` and `dealer`."""
        return self._open("sub", connect, (0, hwm, max_frame_bytes), keys)

    def poller(self) -> SocketPoller:
        """Create a poller for connections of this relay and for plain descriptors."""
        return RelayPoller(self)

    def _open(self, role: str, connect: Address | str, limits: tuple[int, int, int], keys: Keys | None) -> RelayedSocket:
        self.check_owner()
        address = Address.parse(connect)
        if address.is_fresh or address.host == "*" or address.scheme == "inproc":
            raise TransportError(f"a sidecar cannot connect to {address.uri}; give an address that another process binds")
        if min(limits) < 0 or max(limits[:2]) >= 2**31 or limits[2] > MAX_FRAME_BYTES:
            raise TransportError(f"hwm and frame limits {limits}: expected at least 0, a frame at most {MAX_FRAME_BYTES} bytes")
        if keys is not None and any(len(key.encode()) != _KEY_BYTES for key in keys):
            raise TransportError(f"the CURVE keys are not three Z85 texts of {_KEY_BYTES} characters")
        self._opened += 1
        line = RelayedSocket(self, self._opened, role, address)
        frames = [role.encode(), address.uri.encode(), LIMITS.pack(*limits), *(key.encode() for key in keys or ())]
        self.send_command(RelayCommand.OPEN, line.number, frames)
        self._connections[line.number] = line
        return line

    # ---- for its connections and pollers

    def fileno(self) -> int:
        """Return the descriptor that a poller waits for."""
        return self._sidecar.fileno()

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait for room in the socketpair."""
        return self._sidecar.unsent_bytes

    def send_command(self, command: RelayCommand, line: int, frames: Frames = ()) -> None:
        """Send a command to the sidecar."""
        self.check_owner()
        self._sidecar.send_command(command, line, frames)

    def exchange(self) -> None:
        """Write and read as much as is possible without blocking."""
        self.check_owner()
        for said in self._sidecar.exchange():
            if (line := self._connections.get(said.line)) is not None:
                line.on_command(said)

    def close_connection(self, number: int) -> None:
        """Close a connection."""
        if self.owner == _NO_OWNER:
            return
        self.check_thread()
        self._connections.pop(number, None)
        if not self._closed:
            with contextlib.suppress(TransportError):  # the sidecar has ended, and its sockets with it
                self._sidecar.send_command(RelayCommand.CLOSE, number)

    def check_thread(self) -> None:
        """Raise TransportError in a thread that is not the owner."""
        if self.owner == _NO_OWNER:
            raise TransportError("this sidecar was inherited by a fork; create a new one in the child")
        if self.owner != threading.get_ident():
            raise TransportError("this sidecar belongs to another thread; create, use and close it in one thread")

    def check_owner(self) -> None:
        """Raise TransportError in another thread or if the sidecar has ended, and Closed after `close`."""
        self.check_thread()
        if self._closed:
            raise Closed("the sidecar is closed")
        self._sidecar.check()

    # ---- closing

    def close(self) -> None:
        """End the sidecar within about a second, by force if necessary. Messages that it has not sent are discarded.

        Raises:
            TransportError: If another thread calls.
        """
        if self._closed:
            return
        if self.owner == _NO_OWNER:
            self._closed = True
            return
        self.check_thread()
        self._closed = True
        self._connections.clear()
        try:
            self._sidecar.close()
        finally:
            untrack(self)

    def abandon(self) -> None:
        """Give up the relay in a forked child."""
        self.owner = _NO_OWNER
        self._sidecar.abandon()
