"""The one ZeroMQ context of this process, and the set of its open sockets.

All sockets share one context, because inproc addresses are known only within a context. A forked child creates a new one. It
does not close the inherited context, because the parent's I/O threads do not exist in the child.
"""

from __future__ import annotations

import atexit
import os
import resource
import threading
from abc import abstractmethod

import zmq

from rl4sys_zmq.resource import Resource

MAX_SOCKETS = 8192


class TrackedResource(Resource):
    """A resource that the end of the process closes and a fork disables in the child: a socket, or the handle of a sidecar."""

    owner: int
    """The identifier of the thread that created the object. Only this thread can use it."""

    @abstractmethod
    def abandon(self) -> None:
        """Mark the object as unusable in a forked child, without closing anything that the parent still uses."""


class _ProcessSockets:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.open: set[TrackedResource] = set()


_process = _ProcessSockets()
_inherited: list[_ProcessSockets] = []  # kept alive, so that no finalizer in a child closes the parent's sockets


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


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit on open files of this process to `wanted`, as far as the hard limit permits. Return the new limit.

    A learner needs two descriptors for each actor. Many systems start processes with a soft limit of 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


def track(socket: TrackedResource) -> None:
    """Register an open socket. The reference also keeps the garbage collector from closing the socket in another thread."""
    with _process.lock:
        _process.open.add(socket)


def untrack(socket: TrackedResource) -> None:
    """Remove a closed socket from the set of open sockets."""
    with _process.lock:
        _process.open.discard(socket)


def tracked() -> list[TrackedResource]:
    """Return the open sockets of this process."""
    with _process.lock:
        return list(_process.open)


def open_sockets() -> int:
    """Return the number of open sockets of this process."""
    with _process.lock:
        return len(_process.open)


def _after_fork() -> None:
    global _process
    _inherited.append(_process)
    inherited, _process = _process, _ProcessSockets()
    for socket in inherited.open:
        socket.abandon()


def _at_exit() -> None:
    """Close the sockets of ended threads, and terminate the context if no open socket remains."""
    # The socket of a thread that still runs cannot be closed here, because libzmq would then abort the process. Terminating the
    # context would wait for such a socket. In that case the process ends without terminating the context. That is safe, because
    # all sockets discard their unsent messages when they are closed.
    if _process.pid != os.getpid() or _process.context is None:
        return
    left = tracked()
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    for socket in left:
        if socket.owner not in others:
            socket.owner = threading.get_ident()
            socket.close()
    if not open_sockets():
        _process.context.term()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
