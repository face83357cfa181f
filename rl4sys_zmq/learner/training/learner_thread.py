"""The learner thread, which trains one client."""

from __future__ import annotations

import sys
import threading
import time
import traceback

from rl4sys_zmq.errors import Closed, ConfigError, RankLost
from rl4sys_zmq.learner.run.worker_storage import LocalStorage, WorkerStorage
from rl4sys_zmq.learner.training.reporting import GATEWAY_TIMEOUT_S, GatewaySender, plain_text
from rl4sys_zmq.learner.training.train_loop import LearnerThreadInbox, TrainLoop, WorkerQueue
from rl4sys_zmq.limits import NO_FRAME_LIMIT
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire.thread_messages import ThreadFailed

log = get_logger(__name__)

PULL_MESSAGES = 64
"""Largest number of messages that wait in the learner thread's PULL socket (its high-water mark)."""

LINGER_S = 5.0
"""Longest time for which a worker process still sends its last messages at its end, in seconds."""


class LearnerThread(Worker):
    """A worker's thread, which trains one client. In the learner's process, `queue` has the messages of the gateway.

    A worker process calls `run` in its main thread, with other addresses. `AssignClient` is the first message to the thread,
    and `StopThread` the last.
    """

    def __init__(
        self,
        name: str,
        key: bytes,
        down: str,
        up: str,
        *,
        remote: bool = False,
        storage: WorkerStorage | None = None,
        queue: WorkerQueue | None = None,
    ) -> None:
        super().__init__(name)
        self._storage = storage if storage is not None else LocalStorage()
        self.failure: ThreadFailed | None = None  # the error that has ended `run`, as it was sent to the gateway
        self._key = key
        self._remote = remote
        self._began = time.monotonic()
        self._down, self._up, self._queue = down, up, queue
        self._replaced = threading.Event()
        self._loop: TrainLoop | None = None

    def run(self) -> None:
        """Train until the message `StopThread` arrives or `stop` is called. If the algorithm raises, send `ThreadFailed`."""
        linger_s, patience_s = (LINGER_S, None) if self._remote else (0.0, GATEWAY_TIMEOUT_S)
        with (
            Socket.pull(connect=self._down, hwm=PULL_MESSAGES, max_frame_bytes=NO_FRAME_LIMIT) as down,
            Socket.push(connect=self._up, linger_s=linger_s) as up,
        ):
            upstream = GatewaySender(up, self._key, self._stop_asked, patience_s)
            try:
                try:
                    self._learn(down, upstream)
                except Closed:
                    raise
                except Exception as exc:  # noqa: BLE001 - an error of an algorithm stops its client only
                    text, trace = f"{type(exc).__name__}: {exc}", traceback.format_exc()[-8000:]
                    if isinstance(exc, ConfigError):  # the user's mistake: its text says everything
                        text, trace = str(exc), ""
                        if self._remote and exc.key == "algorithm_name":
                            text += "; a worker process finds only what the modules under `plugins` register"
                    self.failure = ThreadFailed(plain_text(text[:1000]), plain_text(trace), isinstance(exc, RankLost))
                    upstream.send(self.failure)
            except Closed as exc:
                log.warning("%s ends without a report to the gateway: %s", self.name, exc)

    def _learn(self, down: Socket, upstream: GatewaySender) -> None:
        inbox = LearnerThreadInbox(down, self._queue, self._stop_asked)
        learning = self._loop = TrainLoop(inbox, upstream, self._storage, self._stop_asked, self._replaced)
        try:
            learning.run()
        finally:
            learning.close(crashed=isinstance(sys.exception(), RankLost))

    @property
    def busy_s(self) -> float:
        """The time since the thread last looked for messages, in seconds. It is long while the algorithm is built or updates."""
        return time.monotonic() - (self._loop.turned_at if self._loop is not None else self._began)

    def expect_end(self) -> None:
        """Record that the thread was asked to end. Any thread can call this."""
        if self._loop is not None:
            self._loop.suspects.expect_end(disable=self._replaced.is_set())

    def stop(self) -> None:
        """Ask the thread to end as soon as no message waits in its PULL socket. Any thread can call this."""
        super().stop()
        self.expect_end()

    def replace(self) -> None:
        """Ask the thread to end without a checkpoint. Its client was removed, or another thread takes over the client."""
        self._replaced.set()
        self.stop()
