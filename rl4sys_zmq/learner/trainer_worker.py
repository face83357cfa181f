"""A learner thread: one client's algorithm, fed through a PULL, answering through a PUSH, in wire messages only."""

from __future__ import annotations

import logging
import threading
import traceback

from rl4sys_zmq.errors import Closed
from rl4sys_zmq.learner.reporting import UpstreamSender, plain_text
from rl4sys_zmq.learner.train_loop import TrainLoop
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire.messages import Failed

__all__ = ["TrainerWorker"]

log = logging.getLogger(__name__)

QUEUE_MESSAGES = 64


class TrainerWorker(Worker):
    """Connects to the gateway's two pipeline ends, is told by `Assign` what to be, and learns until `Stop`.

    Nothing but frames goes in or out, so the same body can run in another process on other addresses.
    """

    def __init__(self, name: str, key: bytes, down: str, up: str) -> None:
        """Makes it; `start` starts it.

        Args:
            name: of the thread.
            key: put before every message upstream, so that the gateway knows who speaks.
            down: address of the gateway's PUSH.
            up: address of the gateway's PULL.
        """
        super().__init__(name)
        self._key = key
        self._down, self._up = down, up
        self._stopping = threading.Event()
        self._replaced = threading.Event()
        self._learning: TrainLoop | None = None

    def run(self) -> None:
        """The thread's body."""
        with Socket.pull(connect=self._down, hwm=QUEUE_MESSAGES) as down, Socket.push(connect=self._up) as up:
            upstream = UpstreamSender(up, self._key)
            try:
                try:
                    self._learn(down, upstream)
                except Closed:
                    raise
                except Exception as exc:  # noqa: BLE001 - the border of a client: it stops this client alone
                    upstream.say(
                        Failed(plain_text(f"{type(exc).__name__}: {exc}"[:1000]), plain_text(traceback.format_exc()[-8000:]))
                    )
            except Closed as exc:
                log.warning("%s ends without a last word: %s", self.name, exc)

    def _learn(self, down: Socket, upstream: UpstreamSender) -> None:
        learning = self._learning = TrainLoop(down, upstream, self._stopping, self._replaced)
        try:
            learning.run()
        finally:
            learning.close()

    def stop(self) -> None:
        """Ends the thread when it next finds nothing to read; the gateway's `Stop` message comes in order with the data."""
        self._stopping.set()
        if self._learning is not None:
            self._learning.excuse(replaced=self._replaced.is_set())

    def replace(self) -> None:
        """Another thread takes its place, which has the checkpoints from now on; this one ends as soon as it can."""
        self._replaced.set()
        self.stop()
