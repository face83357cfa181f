"""The learner thread: runs one client's algorithm, reads messages from a PULL, and sends messages through a PUSH."""

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
    """A learner thread. It connects to the gateway, is configured by an `Assign` message, and trains until `Stop`.

    It exchanges only wire messages with the gateway, so the same code can run in another process with other addresses.
    """

    def __init__(self, name: str, key: bytes, down: str, up: str) -> None:
        """Create the thread object. `start` starts the thread.

        Args:
            name: Name of the thread.
            key: Precedes every message to the gateway, and identifies the sender.
            down: Address of the gateway's PUSH.
            up: Address of the gateway's PULL.
        """
        super().__init__(name)
        self._key = key
        self._down, self._up = down, up
        self._stopping = threading.Event()
        self._replaced = threading.Event()
        self._loop: TrainLoop | None = None

    def run(self) -> None:
        """Train until `Stop` or `stop`. Report any error of the algorithm to the gateway in `Failed`."""
        with Socket.pull(connect=self._down, hwm=QUEUE_MESSAGES) as down, Socket.push(connect=self._up) as up:
            upstream = UpstreamSender(up, self._key)
            try:
                try:
                    self._learn(down, upstream)
                except Closed:
                    raise
                except Exception as exc:  # noqa: BLE001 - an error of an algorithm stops its client only
                    upstream.send(
                        Failed(plain_text(f"{type(exc).__name__}: {exc}"[:1000]), plain_text(traceback.format_exc()[-8000:]))
                    )
            except Closed as exc:
                log.warning("%s ends without a report to the gateway: %s", self.name, exc)

    def _learn(self, down: Socket, upstream: UpstreamSender) -> None:
        learning = self._loop = TrainLoop(down, upstream, self._stopping, self._replaced)
        try:
            learning.run()
        finally:
            learning.close()

    def stop(self) -> None:
        """End the thread when it next has nothing to read. `Stop`, in contrast, is queued after the data."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.expect_end(replaced=self._replaced.is_set())

    def replace(self) -> None:
        """End the thread as soon as it can, without a checkpoint: another thread writes the client's checkpoints now."""
        self._replaced.set()
        self.stop()
