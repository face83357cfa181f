"""A poller that waits until one of several sockets and file descriptors is ready."""

from __future__ import annotations

import math
from typing import Protocol

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.sockets import Socket


class HasFileno(Protocol):
    """An object with a file descriptor: a `Wakeup`, a file, or a socket of the operating system."""

    def fileno(self) -> int:
        """Return the file descriptor to poll."""


Source = Socket | HasFileno | int


class Poller(Resource):
    """A poller for ZeroMQ sockets and file descriptors, its *sources*. Use it in the thread of the sockets."""

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
        """Remove a source. Do this before it is closed. An unknown source is ignored."""
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
        for socket in self._sockets:
            socket.check_owner()
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
    return source if isinstance(source, int) else source.fileno()
