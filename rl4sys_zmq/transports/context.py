"""The one ZeroMQ context of this process, and the register of its open sockets.

All sockets share a context, because inproc endpoints exist only within one. It lives as long as the process. A forked child
gets a new one. It drops the inherited context without closing it, because the parent's I/O threads do not exist in the child.
"""

from __future__ import annotations

import atexit
import os
import threading
from abc import abstractmethod

import zmq

from rl4sys_zmq.resource import Resource

__all__ = ["TrackedSocket", "context", "open_sockets", "track", "untrack"]

MAX_SOCKETS = 8192


class TrackedSocket(Resource):
    """An open socket in the register."""

    owner: int
    """The identifier of the thread that created it and that alone can use it."""

    @abstractmethod
    def abandon(self) -> None:
        """Give up the socket in a forked child, without closing anything that the parent still uses."""


class _Process:
    """The state of one process, which a forked child must not share."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.open: set[TrackedSocket] = set()


_process = _Process()
_inherited: list[_Process] = []  # kept alive, so that no finalizer in a child closes the parent's sockets


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the context of this process. The first call creates it."""
    if _process.pid != os.getpid():
        _after_fork()
    with _process.lock:
        if _process.context is None:
            _process.context = zmq.Context(io_threads=1)
            _process.context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
            _process.context.linger = 0
        return _process.context


def track(socket: TrackedSocket) -> None:
    """Register an open socket. The reference keeps the garbage collector from closing it in another thread."""
    with _process.lock:
        _process.open.add(socket)


def untrack(socket: TrackedSocket) -> None:
    """Remove a closed socket."""
    with _process.lock:
        _process.open.discard(socket)


def open_sockets() -> int:
    """Return the number of open sockets of this process. A test that leaves a higher number than before has a leak."""
    with _process.lock:
        return len(_process.open)


def _after_fork() -> None:
    global _process
    _inherited.append(_process)
    inherited, _process = _process, _Process()
    for socket in inherited.open:
        socket.abandon()


def _at_exit() -> None:
    """Terminate the context if that can neither hang nor abort.

    A socket of a thread that still runs cannot be closed from here, since libzmq would abort the process, and `term` would wait
    for it. The process then ends without `term`. That is safe, because no socket lingers.
    """
    if _process.pid != os.getpid() or _process.context is None:
        return
    with _process.lock:
        left = list(_process.open)
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    for socket in left:
        if socket.owner not in others:
            socket.owner = threading.get_ident()
            socket.close()
    if not open_sockets():
        _process.context.term()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
