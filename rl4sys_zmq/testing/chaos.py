"""A bad network on demand: a TCP proxy that delays, throttles, corrupts, cuts and swallows, from a seed."""

from __future__ import annotations

import random

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.testing.chaos_loop import ChaosLoop, Faults
from rl4sys_zmq.transports import Address

__all__ = ["ChaosProxy", "Faults"]

_JOIN_S = 10.0


class ChaosProxy(Resource):
    """Stands between those who dial `address` and `upstream`; carries bytes both ways, and misbehaves as told.

    All work is done in one thread. Every method may be called from any thread and takes effect before it returns.
    `counters` counts what was done: ``connections``, ``refused`` (the upstream did not answer), ``bytes.up``, ``bytes.down``,
    ``cuts``, ``half_open``, ``corrupted``, ``swallowed_bytes``.

    Attributes:
        address: what to dial instead of the upstream.
        counters: what it did.
    """

    def __init__(
        self,
        upstream: Address | str,
        *,
        seed: int,
        faults: Faults | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        """Starts it.

        Args:
            upstream: the tcp address that it carries to; nobody need be there yet.
            seed: of all that is random.
            faults: what it does to bytes at first; nothing if None.
            listen: host and port; 0 for a free one. A learner tells its actors the port of its weights and not the host: proxies
                with the ports of the ROUTER and the PUB on another loopback address (127.0.0.2) stand before both.
        """
        target = Address.parse(upstream)
        if target.scheme != "tcp" or target.is_fresh:
            raise TransportError(f"{target.uri} cannot be proxied; name a tcp address with its port")
        self.counters = Counters()
        self._loop = ChaosLoop(target, random.Random(seed), faults or Faults(), self.counters, listen)
        self.address = self._loop.address
        self._loop.start()

    @property
    def faults(self) -> Faults:
        """What happens to bytes from now on. Assign another value at any time."""
        return self._loop.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._loop.call(lambda: setattr(self._loop, "faults", faults))

    def pause(self) -> None:
        """Carries nothing more and reads nothing; senders fill their buffers. Nothing is lost."""
        self._loop.call(lambda: setattr(self._loop, "paused", True))

    def resume(self) -> None:
        """Goes on where `pause` stopped."""
        self._loop.call(lambda: setattr(self._loop, "paused", False))

    def cut(self) -> int:
        """Ends all connections with RST, now; returns how many there were."""
        return self._loop.call(self._loop.cut_all)

    def black_hole(self, on: bool) -> None:
        """While on, swallows all bytes and answers no one, though it accepts connections.

        When it goes off, connections that have lost bytes are reset: TCP would not carry on with a hole in the stream.
        """
        self._loop.call(lambda: self._loop.set_black_hole(on))

    def close(self) -> None:
        """Ends all connections and the thread.

        Raises:
            WorkerDied: when the thread had died of an exception.
        """
        self._loop.stop()
        self._loop.join(_JOIN_S)
        self._loop.raise_if_dead()
