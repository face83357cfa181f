"""A TCP proxy that simulates an unreliable network: delay, throttling, corruption, cut connections and lost bytes."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import Closed, TransportError
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.transports import Address, Wakeup

T = TypeVar("T")

_JOIN_S = 10.0
_BUFFER_BYTES = 256 * 1024
_CHUNK_BYTES = 16 * 1024
_ACCEPT_BURST = 64
_TICK_S = 0.02  # a throttled link moves at most the bytes of this time at once


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """The faults that a `ChaosProxy` injects. The defaults inject no faults.

    A chunk is what the proxy reads at once, at most 16 KiB.

    Attributes:
        latency_s: Delay of each chunk, in seconds.
        rate_bytes_s: Limit on the bytes per second in each direction of a connection. 0: no limit.
        cut_probability: Probability that a chunk is forwarded only in part and the connection is then closed (a cut).
        reset: True if a cut closes connections with RST, False if with FIN.
        half_open: True if a cut closes only the connection to the upstream, so that the peer does not notice.
        corrupt_probability: Probability that one bit of a chunk is flipped.
    """

    latency_s: float = 0.0
    rate_bytes_s: float = 0.0
    cut_probability: float = 0.0
    reset: bool = True
    half_open: bool = False
    corrupt_probability: float = 0.0


@dataclass(slots=True, eq=False)
class _ProxyDirection:
    """One direction of a connection, with the bytes that were read from `source` and wait to be sent to `sink`."""

    name: str
    source: socket.socket
    sink: socket.socket
    chunks: deque[tuple[float, bytes, bool]] = field(default_factory=deque)  # (due time, bytes, True to cut after them)
    size: int = 0
    free_at: float = 0.0  # time when the throttled link has carried everything so far
    ended: bool = False


class _ProxyConnection:
    """A pair of connections: a peer's connection to the proxy, and the proxy's connection to the upstream."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.connected = False
        self.holed = False  # it has lost bytes
        self.half = False  # the server's side is closed; the client's side is still open
        self.flows = (_ProxyDirection("up", client, server), _ProxyDirection("down", server, client))


class ChaosThread(Worker):
    """The thread that does the work of a `ChaosProxy`: it forwards bytes, injects the faults, and owns all sockets."""

    def __init__(
        self, upstream: Address, rng: random.Random, faults: NetworkFaults, counters: Counters, listen: tuple[str, int]
    ) -> None:
        super().__init__("rl4sys-chaos")
        self._upstream = upstream
        self._rng = rng
        self._counters = counters
        self.faults = faults
        self.paused = False
        self._holed = False
        self._stopping = False
        self._now = 0.0  # of this turn of the loop, so that all checks use the same time
        self._links: set[_ProxyConnection] = set()
        self._commands: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup()
        self._listener = socket.create_server(listen, backlog=256)
        self._listener.setblocking(False)
        self.address = f"tcp://{listen[0]}:{self._listener.getsockname()[1]}"

    def call(self, command: Callable[[], T]) -> T:
        """Run a function in the proxy's thread, wait, and return its result. Any other thread can call this."""
        done = threading.Event()
        result: list[T] = []

        def run() -> None:
            result.append(command())
            done.set()

        self._commands.append(run)
        self._wakeup.set()
        while not done.wait(0.05):
            if not self.alive and not done.is_set():
                raise Closed("the chaos proxy is closed")
        return result[0]

    def stop(self) -> None:
        """Ask the thread to end, without waiting for its end."""
        self._stopping = True
        self._wakeup.set()

    # ---- in the thread

    def run(self) -> None:
        """Forward bytes until `stop`."""
        self._watch(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        try:
            while not self._stopping:
                ready = self._selector.select(self._patience_s())
                self._now = time.monotonic()
                self._wakeup.clear()
                while self._commands:
                    self._commands.popleft()()
                for key, mask in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _ProxyConnection) and key.data in self._links:
                        self._serve(key.data, key.fileobj, mask)
                for link in list(self._links):
                    self._carry(link)
        finally:
            self.cut_all()
            self._selector.close()
            self._listener.close()
            self._wakeup.close()

    def cut_all(self) -> int:
        """Reset every connection, and return their number."""
        links = list(self._links)
        for link in links:
            self._end(link, reset=True)
        self._counters.add("cuts", len(links))
        return len(links)

    def set_black_hole(self, on: bool) -> None:
        """Begin (`on` is True) or stop to discard all bytes. At the stop, reset the connections that have lost bytes."""
        self._holed = on
        for link in list(self._links):
            if not on and link.holed:
                self._end(link, reset=True)
            elif not on:
                self._interest(link)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_BURST):
            try:
                client, _ = self._listener.accept()
            except OSError:  # no more, or the client disconnected meanwhile
                return
            server = socket.socket(socket.AF_INET6 if self._upstream.is_v6 else socket.AF_INET)
            for side in (client, server):
                side.setblocking(False)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connect_ex((self._upstream.host, self._upstream.port))  # the result is known when it becomes writable
            link = _ProxyConnection(client, server)
            self._links.add(link)
            self._counters.add("connections")
            self._interest(link)

    def _serve(self, link: _ProxyConnection, side: object, mask: int) -> None:
        """Read from one side of a connection, or finish the connection to the upstream. `mask` has the side's ready events."""
        if side is link.server and not link.connected:
            if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._counters.add("refused")
                self._end(link, reset=True)
                return
            link.connected = True
        if mask & selectors.EVENT_READ:
            flow = link.flows[0] if side is link.client else link.flows[1]
            try:
                data = flow.source.recv(self._chunk_bytes())
            except BlockingIOError:
                return
            except OSError:
                self._end(link, reset=True)
                return
            self._enqueue(link, flow, data)

    def _enqueue(self, link: _ProxyConnection, flow: _ProxyDirection, data: bytes) -> None:
        """Queue bytes that were read. At random, flip a bit of them, or plan a cut. Empty bytes mark the end of a side."""
        if not data:
            flow.ended = True
            if link.half or self._holed:
                self._end(link, reset=False)
            return
        if link.half or self._holed:
            link.holed = True
            self._counters.add("swallowed_bytes", len(data))
            return
        faults, cut = self.faults, False
        if self._rng.random() < faults.corrupt_probability:
            at = self._rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << self._rng.randrange(8)]) + data[at + 1 :]
            self._counters.add("corrupted")
        if self._rng.random() < faults.cut_probability:
            data, cut = data[: self._rng.randrange(len(data))], True
        start = max(self._now, flow.free_at)
        flow.free_at = start + (len(data) / faults.rate_bytes_s if faults.rate_bytes_s else 0.0)
        flow.chunks.append((flow.free_at + faults.latency_s, data, cut))
        flow.size += len(data)

    def _carry(self, link: _ProxyConnection) -> None:
        """Write the bytes whose delay has passed, then update the events to wait for."""
        if not self.paused and not self._holed and link.connected:
            for flow in link.flows:
                if not self._write(link, flow):
                    return
        self._interest(link)

    def _write(self, link: _ProxyConnection, flow: _ProxyDirection) -> bool:
        """Write the bytes of one direction whose delay has passed. Return False if this closed the connection."""
        while flow.chunks and flow.chunks[0][0] <= self._now and not link.half:
            due, data, cut = flow.chunks[0]
            try:
                sent = flow.sink.send(data) if data else 0
            except BlockingIOError:
                return True
            except OSError:
                self._end(link, reset=True)
                return False
            flow.size -= sent
            self._counters.add(f"bytes.{flow.name}", sent)
            if sent < len(data):
                flow.chunks[0] = (due, data[sent:], cut)
                return True
            flow.chunks.popleft()
            if cut:
                return self._cut(link)
        if flow.ended and not flow.chunks:
            self._end(link, reset=False)
            return False
        return True

    def _cut(self, link: _ProxyConnection) -> bool:
        self._counters.add("cuts")
        if not self.faults.half_open:
            self._end(link, reset=self.faults.reset)
            return False
        self._counters.add("half_open")
        link.half = True
        for flow in link.flows:
            flow.chunks.clear()
            flow.size = 0
        self._shut(link.server, reset=self.faults.reset)
        return True

    # ---- waiting and ending

    def _interest(self, link: _ProxyConnection) -> None:
        """Update the events to wait for: reads while the buffer has room, writes if the delay of queued bytes has passed."""
        swallowing = link.half or self._holed
        for flow, back in (link.flows, link.flows[::-1]):
            side, mask = flow.source, 0
            if side is link.server and link.half:
                continue
            if swallowing or (not self.paused and flow.size < _BUFFER_BYTES and not flow.ended):
                mask |= selectors.EVENT_READ
            if side is link.server and not link.connected:
                mask = selectors.EVENT_WRITE
            elif not self.paused and link.connected and back.chunks and back.chunks[0][0] <= self._now:
                mask |= selectors.EVENT_WRITE
            self._watch(side, mask, link)

    def _watch(self, side: socket.socket, mask: int, link: _ProxyConnection | None) -> None:
        known = self._selector.get_map().get(side.fileno()) if side.fileno() >= 0 else None
        if known is None:
            if mask:
                self._selector.register(side, mask, link)
        elif not mask:
            self._selector.unregister(side)
        elif known.events != mask:
            self._selector.modify(side, mask, link)

    def _patience_s(self) -> float | None:
        if self.paused:
            return None
        dues = [flow.chunks[0][0] for link in self._links for flow in link.flows if flow.chunks and link.connected]
        later = [due for due in dues if due > self._now]  # chunks that are already due wait for room, not for time
        return max(0.0, min(later) - time.monotonic()) if later else None

    def _chunk_bytes(self) -> int:
        rate = self.faults.rate_bytes_s
        return max(1, min(_CHUNK_BYTES, int(rate * _TICK_S))) if rate else _CHUNK_BYTES

    def _end(self, link: _ProxyConnection, *, reset: bool) -> None:
        self._links.discard(link)
        self._shut(link.client, reset=reset)
        self._shut(link.server, reset=reset)

    def _shut(self, side: socket.socket, *, reset: bool) -> None:
        if side.fileno() < 0:
            return
        self._watch(side, 0, None)
        if reset:
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.close()


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
