"""How any thread wakes a poll loop."""

from __future__ import annotations

import select
import socket
from collections import deque

from rl4sys_zmq.resource import Resource

__all__ = ["Wakeup"]

_CLOSE_WAIT_S = 1.0


class Wakeup(Resource):
    """A doorbell for a poll loop: any thread calls `set`, the loop polls `fileno` and calls `clear`.

    The loop must clear *before* it looks at what it was woken for; then nothing that was handed over before a `set` can be
    missed, however the two interleave.

    There is one token. `set` needs it to send the one byte; `clear` puts it back once it has read the byte. Taking and
    returning it are single operations on a deque, hence atomic, so there is no lock that a host thread could wait for.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._token: deque[None] = deque([None])
        self._closed = False

    def set(self) -> None:
        """Wakes the loop. Cheap, never blocks; callable from any thread, and after `close` (where it does nothing)."""
        try:
            self._token.pop()
        except IndexError:
            return  # a byte is on its way already, or the pair is closed
        self._writer.send(b"\0")

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._reader.fileno()

    def clear(self) -> bool:
        """Takes the bell back; returns True when it had rung."""
        try:
            rung = bool(self._reader.recv(1))
        except BlockingIOError:
            return False
        if rung:
            self._token.append(None)
        return rung

    def close(self) -> None:
        """Closes both ends once no thread is within `set`.

        Holding the token for good keeps later calls of `set` off descriptors that may by then be somebody else's.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._token.pop()
        except IndexError:
            select.select([self._reader], [], [], _CLOSE_WAIT_S)
        self._reader.close()
        self._writer.close()
