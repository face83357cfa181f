"""A relay in front of a publisher that loses, duplicates, reorders or damages single messages."""

from __future__ import annotations

import threading

from harness.chaos_frames import ChaosFrames
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.transports import Address, Poller, Socket, Wakeup, read_subscription

__all__ = ["ChaosPub"]

_HWM = 10_000
"""High-water mark of both sockets. It is high so that messages are lost only by chance."""
_START_S = 10.0


class ChaosPub(Resource):
    """A relay that subscribes to `upstream` for its own subscribers and passes messages through a `ChaosFrames`.

    Attributes:
        address: Address to connect to instead of the upstream.
        counters: Counters of the `ChaosFrames`.
    """

    def __init__(self, upstream: Address | str, chaos: ChaosFrames, *, listen: Address | str = "tcp://127.0.0.1:0") -> None:
        self.counters: Counters = chaos.counters
        self._loop = _Loop(Address.parse(upstream), Address.parse(listen), chaos)
        self._loop.start()
        try:
            self.address = self._loop.started()
        except BaseException:
            self._loop.stop()
            self._loop.join(_START_S)
            raise

    def close(self) -> None:
        self._loop.stop()
        self._loop.join(_START_S)
        self._loop.raise_if_dead()


class _Loop(Worker):
    """The relay's thread."""

    def __init__(self, upstream: Address, listen: Address, chaos: ChaosFrames) -> None:
        super().__init__("rl4sys-chaos-pub")
        self._upstream, self._listen, self._chaos = upstream, listen, chaos
        self._wakeup = Wakeup()
        self._bound = threading.Event()
        self._address = ""
        self._stopping = False

    def started(self) -> str:
        """Wait until the relay is bound. Return its address."""
        if not self._bound.wait(_START_S):
            raise TransportError(f"the relay did not bind {self._listen.uri} within {_START_S:.0f} s")
        if self.error is not None:
            raise TransportError(f"the relay cannot bind {self._listen.uri}: {self.error}") from self.error
        return self._address

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()

    def on_death(self, error: BaseException) -> None:
        self._bound.set()

    def run(self) -> None:
        with (
            self._wakeup,
            Socket.xpub(self._listen, hwm=_HWM) as down,
            Socket.sub(self._upstream, hwm=_HWM) as up,
            Poller() as poller,
        ):
            for source in (self._wakeup, down, up):
                poller.register(source)
            self._address = down.bound.uri
            self._bound.set()
            while not self._stopping:
                poller.poll(None)
                self._wakeup.clear()
                while (notice := down.recv()) is not None:
                    self._follow(up, read_subscription(notice))
                while (message := up.recv()) is not None:
                    for arriving in self._chaos(message):
                        down.send(arriving)

    @staticmethod
    def _follow(up: Socket, notice: tuple[bool, bytes] | None) -> None:
        if notice is not None:
            came, topic = notice
            (up.subscribe if came else up.unsubscribe)(topic)
