"""Waiting on several sockets and descriptors at once."""

from __future__ import annotations

import math
from typing import Protocol

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.sockets import Socket

__all__ = ["HasFileno", "Poller", "Source"]


class HasFileno(Protocol):
    """Whatever has a descriptor: a `Wakeup`, a file, a plain socket."""

    def fileno(self) -> int:
        """The descriptor to poll."""


Source = Socket | HasFileno | int


class Poller(Resource):
    """Waits on sockets and plain descriptors. Used in one thread, like the sockets in it; it owns none of them."""

    def __init__(self) -> None:
        self._raw = zmq.Poller()
        self._sources: dict[object, Source] = {}
        self._sockets: list[Socket] = []

    def register(self, source: Source, *, read: bool = True, write: bool = False) -> None:
        """Adds a source, or changes what is waited for.

        Args:
            source: a `Socket`, a descriptor, or something with one (a `Wakeup`).
            read: ready when there is something to read.
            write: ready when there is room to write. A router's is ready when *any* peer has room.
        """
        key = _pollable(source)
        self._raw.register(key, (zmq.POLLIN if read else 0) | (zmq.POLLOUT if write else 0))
        self._sources[key] = source
        self._sockets = [s for s in self._sources.values() if isinstance(s, Socket)]

    def unregister(self, source: Source) -> None:
        """Removes a source, before it is closed. One that is not there is left alone."""
        key = _pollable(source)
        if self._sources.pop(key, None) is not None:
            self._raw.unregister(key)
            self._sockets = [s for s in self._sources.values() if isinstance(s, Socket)]

    def poll(self, timeout_s: float | None) -> set[Source]:
        """Waits until a source is ready, at most `timeout_s` seconds (0: does not wait; None: for ever).

        A descriptor counts as ready too when it failed or its other end is closed: reading it then tells.

        Raises:
            TransportError: when a source was closed and is still here, or belongs to another thread.
        """
        for socket in self._sockets:
            socket.check_owner()
        try:
            ready = self._raw.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000))
        except zmq.ZMQError as exc:
            raise TransportError(f"cannot poll: {exc.strerror}; unregister a source before closing it") from exc
        return {self._sources[key] for key, _ in ready}

    def close(self) -> None:
        """Forgets all sources; they stay open."""
        for key in list(self._sources):
            self._raw.unregister(key)
        self._sources.clear()
        self._sockets = []


def _pollable(source: Source) -> zmq.Socket[bytes] | int:
    if isinstance(source, Socket):
        source.check_owner()
        return source.raw
    return source if isinstance(source, int) else source.fileno()
