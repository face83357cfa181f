"""A signal that wakes a poll loop from any thread."""

from __future__ import annotations

import select
import socket
from collections import deque

from rl4sys_zmq.resource import Resource

__all__ = ["Wakeup"]

_CLOSE_WAIT_S = 1.0


class Wakeup(Resource):
    """A wakeup for a poll loop. Any thread calls `set`; the loop polls `fileno` and calls `clear`.

    The loop must call `clear` *before* it checks for new work. It then misses nothing that was handed over before a `set`.

    There is one token. `set` takes it and sends one byte; `clear` reads the byte and puts the token back. Both are single
    operations on a deque and so atomic. No lock is needed that a thread of the host could wait for.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._token: deque[None] = deque([None])
        self._closed = False

    def set(self) -> None:
        """Wake the loop. It is cheap and never blocks. Any thread can call it, also after `close`, when it does nothing."""
        try:
            self._token.pop()
        except IndexError:
            return  # a byte is already under way, or the pair is closed
        self._writer.send(b"\0")

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._reader.fileno()

    def clear(self) -> bool:
        """Reset the wakeup. Return True if it was set."""
        try:
            rung = bool(self._reader.recv(1))
        except BlockingIOError:
            return False
        if rung:
            self._token.append(None)
        return rung

    def close(self) -> None:
        """Close both ends once no thread is inside `set`.

        Taking the token for good keeps a later `set` from writing to a descriptor that may belong to another file by then.
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
