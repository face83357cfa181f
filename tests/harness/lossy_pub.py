"""A relay in front of a publisher that loses single messages. A TCP proxy that loses bytes loses the connection."""

import random
import threading

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Poller, Socket, Wakeup, read_subscription

HWM = 10_000
"""The high-water mark of both sockets: messages are lost only by chance."""
START_S = 10.0


class LossyPub(Worker):
    """A thread that subscribes to `upstream` for its own subscribers, and drops a share of the messages."""

    def __init__(self, upstream: Address, listen: Address, *, seed: int, loss: float) -> None:
        super().__init__("rl4sys-lossy-pub")
        self.counters = Counters()
        self._upstream, self._listen, self._rng, self._loss = upstream, listen, random.Random(seed), loss
        self._wakeup, self._bound, self._over = Wakeup(), threading.Event(), threading.Event()
        self.start()
        assert self._bound.wait(START_S)

    def run(self) -> None:
        with Socket.xpub(self._listen, hwm=HWM) as down, Socket.sub(self._upstream, hwm=HWM) as up, Poller() as poller:
            for source in (self._wakeup, down, up):
                poller.register(source)
            self._bound.set()
            while not self._over.is_set():
                poller.poll(None)
                self._wakeup.clear()
                while (notice := down.recv()) is not None:
                    if (read := read_subscription(notice)) is not None:
                        (up.subscribe if read[0] else up.unsubscribe)(read[1])
                while (message := up.recv()) is not None:
                    if self._rng.random() < self._loss:
                        self.counters.add("dropped")
                    else:
                        down.send(message)

    def stop(self) -> None:
        self._over.set()
        self._wakeup.set()

    def close(self) -> None:
        self.stop()
        assert self.join(START_S)
        self._wakeup.close()
        self.raise_if_dead()
