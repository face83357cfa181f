"""The one ZeroMQ context of this process, and the register of the sockets that are open in it.

All sockets share a context, since inproc endpoints exist only within one. It lives as long as the process; a forked child
gets a new one and lets go of what it inherited without touching it, because the parent's I/O threads did not come along.
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
    """An open socket as this register sees it."""

    owner: int
    """The identifier of the thread that made it and alone may use it."""

    @abstractmethod
    def disown(self) -> None:
        """Lets go of it in a forked child: closes nothing that the parent still uses."""


class _Process:
    """What belongs to one process and must not be taken across a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.open: set[TrackedSocket] = set()


_process = _Process()
_inherited: list[_Process] = []  # kept alive, so that no finaliser in a child closes what is the parent's


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of this process, made on first use."""
    if _process.pid != os.getpid():
        _after_fork()
    with _process.lock:
        if _process.context is None:
            _process.context = zmq.Context(io_threads=1)
            _process.context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
            _process.context.linger = 0
        return _process.context


def track(socket: TrackedSocket) -> None:
    """Registers an open socket. The strong reference keeps the garbage collector from closing it in a foreign thread."""
    with _process.lock:
        _process.open.add(socket)


def untrack(socket: TrackedSocket) -> None:
    """Removes a closed socket."""
    with _process.lock:
        _process.open.discard(socket)


def open_sockets() -> int:
    """How many sockets of this process are open. A test that leaves this number higher than it was has a leak."""
    with _process.lock:
        return len(_process.open)


def _after_fork() -> None:
    global _process
    _inherited.append(_process)
    inherited, _process = _process, _Process()
    for socket in inherited.open:
        socket.disown()


def _at_exit() -> None:
    """Ends the context if that cannot hang or abort.

    A socket of a thread that still runs may not be closed from here (libzmq would abort the process) and `term` would wait
    for it; the process then ends without `term`, which is safe, because nothing lingers.
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
