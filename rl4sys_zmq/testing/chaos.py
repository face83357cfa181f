"""A TCP proxy that simulates an unreliable network: delay, throttling, corruption, cut connections and lost bytes."""

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
    """A TCP proxy between `address` and `upstream` that carries bytes both ways and injects faults.

    All work is done in one thread. Every method can be called from any thread and takes effect before it returns. The random
    choices come from a seed. The counters are ``connections``, ``refused`` (the upstream did not answer), ``bytes.up``,
    ``bytes.down``, ``cuts``, ``half_open``, ``corrupted`` and ``swallowed_bytes``.

    Attributes:
        address: Address to connect to instead of the upstream.
        counters: Counts of the faults and of the traffic.
    """

    def __init__(
        self,
        upstream: Address | str,
        *,
        seed: int,
        faults: Faults | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        """Start the proxy.

        Args:
            upstream: The tcp address to forward to. It need not be bound yet.
            seed: Seed of all random choices.
            faults: Initial faults; none if None.
            listen: Host and port to listen on; port 0 for a free one. A learner has two sockets, the ROUTER and the PUB, and an
                actor connects to the PUB at the host that it knows and the port that the learner sends. To put a proxy before
                each socket, let both listen at another loopback address (127.0.0.2) with the port of the learner's socket.
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
        """The faults that apply from now on. They can be replaced at any time."""
        return self._loop.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._loop.call(lambda: setattr(self._loop, "faults", faults))

    def pause(self) -> None:
        """Stop reading and forwarding. Senders fill their buffers. Nothing is lost."""
        self._loop.call(lambda: setattr(self._loop, "paused", True))

    def resume(self) -> None:
        """Continue after `pause`."""
        self._loop.call(lambda: setattr(self._loop, "paused", False))

    def cut(self) -> int:
        """Reset all connections now (RST). Return their number."""
        return self._loop.call(self._loop.cut_all)

    def black_hole(self, on: bool) -> None:
        """While on, accept connections and discard all bytes.

        When switched off, connections that lost bytes are reset, since TCP cannot continue with a gap in the stream.
        """
        self._loop.call(lambda: self._loop.set_black_hole(on))

    def close(self) -> None:
        """End all connections and the thread.

        Raises:
            WorkerDied: If the thread ended with an exception.
        """
        self._loop.stop()
        self._loop.join(_JOIN_S)
        self._loop.raise_if_dead()
