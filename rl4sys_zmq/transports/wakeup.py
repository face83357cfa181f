"""A signal that wakes a poll loop from any thread."""

from __future__ import annotations

import select
import socket
from collections import deque

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource

_CLOSE_WAIT_S = 1.0


class Wakeup(Resource):
    """A signal that ends the wait of a poll loop. Any thread can call `set`; the loop polls `fileno` and calls `clear`.

    The loop must call `clear` *before* it checks for new work. Then it finds all work that was added before a call of `set`.
    """

    def __init__(self) -> None:
        try:
            self._reader, self._writer = socket.socketpair()
        except OSError as exc:
            raise TransportError(f"cannot open a pair of sockets: {exc.strerror}; raise the limit with ulimit -n") from exc
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # There is no lock, because a thread of the user's program could have to wait for it. Instead there is one token, in a
        # deque, whose operations are atomic. `set` takes the token and sends one byte; `clear` reads the byte and puts the
        # token back. While the token is taken, `set` does nothing.
        self._token: deque[None] = deque([None], maxlen=1)  # one, even if a forked child writes to the pair that it shares
        self._closed = False

    def set(self) -> None:
        """Wake the loop. Any thread can call this method. It is fast and never blocks. After `close` it does nothing."""
        try:
            self._token.pop()
        except IndexError:
            return  # a byte is already under way, or the pair is closed
        self._writer.send(b"\0")

    def fileno(self) -> int:
        """Return the file descriptor that the loop must poll for reading."""
        return self._reader.fileno()

    def clear(self) -> bool:
        """Reset the signal, so that the next wait blocks. Return True if the signal was set."""
        try:
            rung = bool(self._reader.recv(1))
        except BlockingIOError:
            return False
        if rung:
            self._token.append(None)
        return rung

    def wait(self, timeout_s: float) -> bool:
        """Wait until the signal is set, at most `timeout_s` seconds. Return True if it is set."""
        poll = select.poll()  # unlike `select.select`, it takes descriptors above 1023
        poll.register(self._reader, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))

    def close(self) -> None:
        """Close both ends of the socketpair, when no thread is in the middle of `set`."""
        if self._closed:
            return
        self._closed = True
        # First disable `set`: a later one must not write to the closed descriptor, whose number another file can have by then.
        try:
            self._token.pop()
        except IndexError:
            self.wait(_CLOSE_WAIT_S)
        self._reader.close()
        self._writer.close()
