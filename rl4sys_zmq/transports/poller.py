"""`Poller`, with which a thread waits for its sockets, and the signals of other threads that end the wait.

`Wakeup` is such a signal. `ThreadCallQueue` lets the waiting thread call functions of other threads.
"""

from __future__ import annotations

import math
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import zmq

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.interfaces import ConnectingSocket
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.sockets import Socket

if TYPE_CHECKING:
    from concurrent.futures import Future


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


class HasFileno(Protocol):
    """An object with a file descriptor: a `Wakeup`, a file, or a socket of the operating system."""

    def fileno(self) -> int:
        """Return the file descriptor to poll."""


Source = Socket | ConnectingSocket | HasFileno | int


class Poller(Resource):
    """A poller for ZeroMQ sockets and file descriptors, its *sources*. Use it in the thread of the sockets.

    The subclass `SidecarPoller` is for the sockets of a sidecar.
    """

    def __init__(self) -> None:
        self._raw = zmq.Poller()
        self._sources: dict[object, Source] = {}
        self._sockets: list[Socket] = []

    def register(self, source: Source, *, read: bool = True, write: bool = False) -> None:
        """Add a source, or change the conditions in which `poll` reports it: something to read, or room to write.

        A router is reported when there is room for *any* of its peers.
        """
        key = _pollable(source)
        self._raw.register(key, (zmq.POLLIN if read else 0) | (zmq.POLLOUT if write else 0))
        self._sources[key] = source
        self._sockets = [s for s in self._sources.values() if isinstance(s, Socket)]

    def unregister(self, source: Source) -> None:
        """Remove a source. Do this before the source is closed. An unknown source is ignored."""
        key = _pollable(source)
        if self._sources.pop(key, None) is not None:
            self._raw.unregister(key)
            self._sockets = [s for s in self._sources.values() if isinstance(s, Socket)]

    def poll(self, timeout_s: float | None) -> set[Source]:
        """Wait until a source is ready, and return the sources that are ready. None waits without limit.

        A file descriptor is also ready when it has failed or its other end is closed. Reading from it then shows the reason.

        Raises:
            TransportError: If a source was closed before `unregister`, or belongs to another thread.
        """
        for each in self._sockets:
            each.check_owner()
        try:
            ready = self._raw.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000))
        except zmq.ZMQError as exc:
            raise TransportError(f"cannot poll: {exc.strerror}; unregister a source before closing it") from exc
        return {self._sources[key] for key, _ in ready}

    def close(self) -> None:
        """Remove all sources. The sources themselves stay open."""
        for key in list(self._sources):
            self._raw.unregister(key)
        self._sources.clear()
        self._sockets = []


def _pollable(source: Source) -> zmq.Socket[bytes] | int:
    if isinstance(source, Socket):
        source.check_owner()
        return source.raw
    return source if isinstance(source, int) else cast(HasFileno, source).fileno()


T = TypeVar("T")


class ThreadCallQueue:
    """A queue of functions that other threads want one thread to call, and their request to stop this thread.

    The thread polls `wakeup` together with its sockets. After each poll it calls `serve`, until `stopping` is True. At its end
    it calls `refuse_all`. Any thread can use the other methods.
    """

    def __init__(self, owner: str) -> None:
        """Create the queue. `owner` names the object with the thread, such as ``learner``, in error messages."""
        self.wakeup = Wakeup()
        self._owner = owner
        self._calls: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._lock = threading.Lock()
        self.stopping = self._ended = self._released = False

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Let the thread call `function`, and return a future for the result.

        Raises:
            Closed: If the thread has ended or is stopping.
        """
        from concurrent.futures import Future  # not needed by an actor, which imports this package

        future: Future[T] = Future()
        with self._lock:
            if self.stopping:
                raise self.closed()
            self._calls.append((function, future))
        self.wakeup.set()
        return future

    def stop(self) -> None:
        """Ask the thread to end, without waiting."""
        with self._lock:
            self.stopping = True
        self.wakeup.set()

    def serve(self) -> None:
        """Call the functions in the queue. An exception goes to the future of the function."""
        self.wakeup.clear()
        with self._lock:
            calls, self._calls = self._calls, []
        for function, future in calls:
            try:
                future.set_result(function())
            except Exception as exc:  # noqa: BLE001 - handed to the caller
                future.set_exception(exc)

    def refuse_all(self) -> None:
        """Refuse the functions in the queue, and all later ones."""
        with self._lock:
            self.stopping = self._ended = True
            calls, self._calls = self._calls, []
            if self._released:
                self.wakeup.close()
        for _, future in calls:
            future.set_exception(self.closed())

    def release(self, *, alive: bool) -> None:
        """Close `wakeup` now, or at the end of the thread if it still may be `alive`. Call `stop` first."""
        with self._lock:
            self._released = True
            if self._ended or not alive:
                self.wakeup.close()

    def closed(self) -> Closed:
        """Return the exception for calls after the end of the thread."""
        return Closed(f"the {self._owner} is closed")
