"""Dialling sockets in a sidecar: for a host that must never die with libzmq, which can abort its process.

The host's side. It carries whole messages over one socketpair; no zmq socket and no context is made in the host.
"""

from __future__ import annotations

import contextlib
import threading

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import TrackedSocket, track, untrack
from rl4sys_zmq.transports.frames import Frames
from rl4sys_zmq.transports.network import ConnectionPoller, Keys, Network
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES
from rl4sys_zmq.transports.relay_pipe import LIMITS, RelayCommand
from rl4sys_zmq.transports.relayed_connection import RelayedConnection, RelayPoller
from rl4sys_zmq.transports.sidecar import Sidecar

__all__ = ["Relay"]

_NOBODY = -1
_KEY_BYTES = 40


class Relay(Network, TrackedSocket):
    """One sidecar and the lines through it. Made, used and closed in one thread, like a `Socket`.

    When the sidecar dies, every call of it, its lines and its pollers raises `TransportError`, but for `close` and
    `unregister`; nothing is started anew. In a forked child it belongs to nobody: every call but `close` raises.
    """

    def __init__(self) -> None:
        """Starts the process, and does not wait for it.

        Raises:
            TransportError: when no process can be started.
        """
        self.owner = threading.get_ident()
        self._lines: dict[int, RelayedConnection] = {}
        self._opened = 0
        self._closed = False
        self._sidecar = Sidecar()
        track(self)

    @property
    def pid(self) -> int:
        """The sidecar's process id."""
        return self._sidecar.pid

    def dealer(
        self,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: Keys | None = None,
    ) -> RelayedConnection:
        """A dialling dealer in the sidecar; see `Network.dealer`. What dialling itself shows is raised by its later calls.

        Raises:
            TransportError: for an address that no sidecar can dial, for limits and keys that cannot be, and as all calls do.
        """
        return self._open("dealer", connect, (send_hwm, recv_hwm, max_frame_bytes), keys)

    def sub(
        self, connect: Address | str, *, hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, keys: Keys | None = None
    ) -> RelayedConnection:
        """A dialling subscriber in the sidecar; see `Network.sub` and `dealer`."""
        return self._open("sub", connect, (0, hwm, max_frame_bytes), keys)

    def poller(self) -> ConnectionPoller:
        """A poller for lines of this relay and plain descriptors."""
        return RelayPoller(self)

    def _open(self, role: str, connect: Address | str, limits: tuple[int, int, int], keys: Keys | None) -> RelayedConnection:
        self.check_owner()
        address = Address.parse(connect)
        if address.is_fresh or address.host == "*" or address.scheme == "inproc":
            raise TransportError(f"{address.uri} cannot be dialled by a sidecar; name what another process binds")
        if min(limits) < 0 or max(limits[:2]) >= 2**31 or limits[2] > MAX_FRAME_BYTES:
            raise TransportError(f"marks and largest frame {limits}: at least 0, a frame at most {MAX_FRAME_BYTES} bytes")
        if keys is not None and any(len(key.encode()) != _KEY_BYTES for key in keys):
            raise TransportError(f"the CURVE keys are not three Z85 texts of {_KEY_BYTES} characters")
        self._opened += 1
        line = RelayedConnection(self, self._opened, role, address)
        frames = [role.encode(), address.uri.encode(), LIMITS.pack(*limits), *(key.encode() for key in keys or ())]
        self.say(RelayCommand.OPEN, line.number, frames)
        self._lines[line.number] = line
        return line

    # ---- for its lines and pollers

    def fileno(self) -> int:
        """The descriptor that a poller waits for."""
        return self._sidecar.fileno()

    @property
    def unsent_bytes(self) -> int:
        """How much the sidecar has not read yet and the pair has no room for."""
        return self._sidecar.unsent_bytes

    def say(self, command: RelayCommand, line: int, frames: Frames = ()) -> None:
        """Tells the sidecar something."""
        self.check_owner()
        self._sidecar.say(command, line, frames)

    def pump(self) -> None:
        """Writes and reads what goes without waiting."""
        self.check_owner()
        for said in self._sidecar.pump():
            if (line := self._lines.get(said.line)) is not None:
                line.on_said(said)

    def forget(self, number: int) -> None:
        """Closes a line."""
        if self.owner == _NOBODY:
            return
        self.check_thread()
        self._lines.pop(number, None)
        if not self._closed:
            with contextlib.suppress(TransportError):  # it is dead, and the line with it
                self._sidecar.say(RelayCommand.CLOSE, number)

    def check_thread(self) -> None:
        """Raises TransportError in a thread that did not make it."""
        if self.owner == _NOBODY:
            raise TransportError("this sidecar was inherited by a fork; make a new one in the child")
        if self.owner != threading.get_ident():
            raise TransportError("this sidecar belongs to another thread; make, use and close it in one thread")

    def check_owner(self) -> None:
        """Raises TransportError in a thread that did not make it and after the sidecar's death, Closed after `close`."""
        self.check_thread()
        if self._closed:
            raise Closed("the sidecar is closed")
        self._sidecar.check()

    # ---- its end

    def close(self) -> None:
        """Ends the sidecar within about a second, by force if need be; what it still had to send is discarded.

        Raises:
            TransportError: for a call from another thread.
        """
        if self._closed:
            return
        if self.owner == _NOBODY:
            self._closed = True
            return
        self.check_thread()
        self._closed = True
        self._lines.clear()
        try:
            self._sidecar.close()
        finally:
            untrack(self)

    def disown(self) -> None:
        """Lets go of it in a forked child."""
        self.owner = _NOBODY
        self._sidecar.disown()
