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

from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.resource import Resource

MAX_SOCKETS = 8192

_NO_OWNER = -1


class ThreadOwnedResource(Resource):
    """A socket or a sidecar that only one thread uses. The end of the process closes it. A forked child cannot use it."""

    def __init__(self, role: str, where: str = "") -> None:
        """Add the resource to the open ones of the process, so that the garbage collector never closes it in another thread."""
        self.role = role  # ``router``, ``dealer``, ``xpub``, ``sub``, ``push``, ``pull`` or ``sidecar``
        self.owner = threading.get_ident()  # the identifier of the only thread that can use the resource
        self.closed = False
        self._where = where
        with _process.lock:
            _process.open.add(self)

    def check_thread(self) -> None:
        """Raise TransportError if the calling thread does not own the resource."""
        if self.inherited:
            raise TransportError(f"this {self.role} was inherited by a fork; create a new one in the child")
        if self.owner != threading.get_ident():
            raise TransportError(f"this {self.role} belongs to another thread; create, use and close it in one thread")

    def check_owner(self) -> None:
        """Raise TransportError if the calling thread does not own the resource, and Closed after `close`."""
        if self.owner != threading.get_ident():
            self.check_thread()
        if self.closed:
            raise Closed(f"the {self.role}{self._where} is closed")

    @property
    def inherited(self) -> bool:
        """True if this process is a forked child and the resource belongs to the parent. Only `close` can be called."""
        return self.owner == _NO_OWNER

    def abandon(self) -> None:
        """Mark the resource as unusable in a forked child. The parent's resource is not affected."""
        self.owner = _NO_OWNER

    def close(self) -> None:
        """Release everything, and discard messages that are still queued. A second call does nothing."""
        if self.closed:
            return
        if not self.inherited:
            self.check_thread()
        self.closed = True
        if self.inherited:
            return
        try:
            self._release()
        finally:
            with _process.lock:
                _process.open.discard(self)

    @abstractmethod
    def _release(self) -> None:
        """Release what this process owns."""


class _ProcessSockets:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.open: set[ThreadOwnedResource] = set()


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


def tracked() -> list[ThreadOwnedResource]:
    """Return the open sockets of this process."""
    with _process.lock:
        return list(_process.open)


def open_sockets() -> int:
    """Return the number of open sockets of this process."""
    return len(tracked())


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
