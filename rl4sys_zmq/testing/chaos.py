"""A TCP proxy that simulates an unreliable network: delay, throttling, corruption, cut connections and lost bytes."""

from __future__ import annotations

import random

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.testing.chaos_loop import ChaosThread, NetworkFaults
from rl4sys_zmq.transports import Address

_JOIN_S = 10.0


class ChaosProxy(Resource):
    """A TCP proxy for tests that forwards bytes in both directions and injects faults.

    Peers connect to `address`, and the proxy connects to `upstream`. One thread does all work. Any thread can call every
    method; a method returns when its effect has begun. Random choices come from a seed.

    Attributes:
        address: Address to connect to instead of the upstream.
        counters: ``connections``, ``refused`` (connections to `upstream` that failed), ``bytes.up``, ``bytes.down``, ``cuts``,
            ``half_open``, ``corrupted`` (chunks), and ``swallowed_bytes``.
    """

    def __init__(
        self,
        upstream: Address | str,
        *,
        seed: int,
        faults: NetworkFaults | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        """Start the proxy.

        Args:
            upstream: The tcp address to forward to. It can be bound later.
            seed: Seed of all random choices.
            faults: The faults at the beginning. None: no faults.
            listen: Host and port to listen on. Port 0: any free port. A learner has two sockets, ROUTER and PUB. An actor takes
                the port of the PUB from the learner, but the host from its own configuration. To put a proxy before each
                socket, let both proxies listen at 127.0.0.2, with the ports of the learner's sockets.
        """
        target = Address.parse(upstream)
        if target.scheme != "tcp" or target.is_fresh:
            raise TransportError(f"{target.uri} cannot be proxied; name a tcp address with its port")
        self.counters = Counters()
        self._loop = ChaosThread(target, random.Random(seed), faults or NetworkFaults(), self.counters, listen)
        self.address = self._loop.address
        self._loop.start()

    @property
    def faults(self) -> NetworkFaults:
        """The current faults. Assign another `NetworkFaults` object to change them at any time."""
        return self._loop.faults

    @faults.setter
    def faults(self, faults: NetworkFaults) -> None:
        self._loop.call(lambda: setattr(self._loop, "faults", faults))

    def pause(self) -> None:
        """Stop reading and forwarding. The buffers of the senders fill up, and no bytes are lost."""
        self._loop.call(lambda: setattr(self._loop, "paused", True))

    def resume(self) -> None:
        """Continue to read and forward bytes after `pause`."""
        self._loop.call(lambda: setattr(self._loop, "paused", False))

    def cut(self) -> int:
        """Reset all connections now (RST), and return the number of connections."""
        return self._loop.call(self._loop.cut_all)

    def black_hole(self, on: bool) -> None:
        """Switch a mode on or off in which the proxy accepts connections and discards all bytes.

        When the mode is switched off, connections that lost bytes are reset, because TCP cannot continue with a gap.
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
