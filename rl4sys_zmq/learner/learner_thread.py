"""Learner threads, their sockets to the gateway (the learner's network thread), and a thread that renames checkpoints.

A learner thread trains the policy of one client. It receives messages from the gateway through a PULL socket and sends messages
through a PUSH socket.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rl4sys_zmq.errors import CheckpointError, Closed, ConfigError
from rl4sys_zmq.learner.checkpoints import CheckpointStore
from rl4sys_zmq.learner.client import QUEUE_MESSAGES
from rl4sys_zmq.learner.core_callbacks import LearnerThreadHandle
from rl4sys_zmq.learner.reporting import GatewaySender, plain_text
from rl4sys_zmq.learner.train_loop import TrainLoop
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Frame, StopThread, ThreadFailed

__all__ = ["AbandonCheckpointsThread", "LearnerThread", "InProcessLearnerThread"]


log = logging.getLogger(__name__)

PULL_MESSAGES = 64
"""Largest number of messages that wait in the learner thread's PULL socket (its high-water mark)."""


class LearnerThread(Worker):
    """A learner thread, which trains the policy of one client.

    The thread exchanges only encoded messages with the gateway (the learner's network thread), so the same code can run in
    another process with other addresses. `AssignClient` is the first message to the thread, and `StopThread` the last.
    """

    def __init__(self, name: str, key: bytes, down: str, up: str) -> None:
        """Create the thread object. `start` starts the thread.

        Args:
            name: Name of the thread.
            key: Bytes that identify the thread: the first frame of each message to the gateway.
            down: Address of the gateway's PUSH socket, from which the thread receives messages.
            up: Address of the gateway's PULL socket, to which the thread sends messages.
        """
        super().__init__(name)
        self._key = key
        self._down, self._up = down, up
        self._stopping = threading.Event()
        self._replaced = threading.Event()
        self._loop: TrainLoop | None = None

    def run(self) -> None:
        """Train until the message `StopThread` arrives or `stop` is called. If the algorithm raises, send `ThreadFailed`."""
        with Socket.pull(connect=self._down, hwm=PULL_MESSAGES) as down, Socket.push(connect=self._up) as up:
            upstream = GatewaySender(up, self._key)
            try:
                try:
                    self._learn(down, upstream)
                except Closed:
                    raise
                except Exception as exc:  # noqa: BLE001 - an error of an algorithm stops its client only
                    text, trace = f"{type(exc).__name__}: {exc}", traceback.format_exc()[-8000:]
                    if isinstance(exc, ConfigError):  # the user's mistake: its text says everything
                        text, trace = str(exc), ""
                    upstream.send(ThreadFailed(plain_text(text[:1000]), plain_text(trace)))
            except Closed as exc:
                log.warning("%s ends without a report to the gateway: %s", self.name, exc)

    def _learn(self, down: Socket, upstream: GatewaySender) -> None:
        learning = self._loop = TrainLoop(down, upstream, self._stopping, self._replaced)
        try:
            learning.run()
        finally:
            learning.close()

    def stop(self) -> None:
        """Ask the thread to end as soon as no message waits in its PULL socket. Any thread can call this."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.expect_end(replaced=self._replaced.is_set())

    def replace(self) -> None:
        """Ask the thread to end without a checkpoint. Its client was removed, or another thread takes over the client."""
        self._replaced.set()
        self.stop()


LOOK_S = 0.05


class InProcessLearnerThread:
    """A handle to a learner thread (which trains one client), with the PUSH socket that sends messages to the thread.

    It implements `LearnerThreadHandle`. Only the gateway (the learner's network thread) uses this object, except that any
    thread can call `alive` and `join`.
    """

    def __init__(self, client_id: str, key: bytes, up: str) -> None:
        """Bind the PUSH socket, and start the learner thread.

        Args:
            client_id: The client that the thread trains.
            key: Bytes that identify the thread. They are the first frame of each message that the thread sends.
            up: The address of the gateway's PULL socket, to which the thread sends messages. The address of the PUSH socket
                consists of `up`, ``-``, and the key in hexadecimal.

        Raises:
            TransportError: If the address of the PUSH socket cannot be bound.
        """
        down = f"{up}-{key.hex()}"
        self._push: Socket | None = Socket.push(bind=down, hwm=QUEUE_MESSAGES)
        self._thread = LearnerThread(f"rl4sys-learner-{client_id}", key, down, up)
        try:
            self._thread.start()
        except BaseException:
            self._push.close()
            raise

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.alive

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue a message for the thread. Return False if the queue is full, or `end` was called before."""
        return self._push is not None and bool(self._push.send(frames))

    def end(self, *, replaced: bool) -> None:
        """Tell the thread to process its queued messages and end.

        Args:
            replaced: True if another thread takes over the client, or the client was removed. This thread then writes no more
                checkpoints.
        """
        if self._push is not None:
            self._push.send(encode(StopThread()))
            self._push.close()
            self._push = None
        if replaced:
            self._thread.replace()
        self._thread.stop()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread. Return False if it still runs after `timeout_s` seconds. Any thread can call this."""
        return self._thread.join(timeout_s)


class AbandonCheckpointsThread(Worker):
    """A thread that renames the checkpoints of a removed client, after the client's learner threads have ended.

    The folders are renamed to ``NUMBER.abandoned``, so that no later start resumes from them. A separate thread does this,
    because the gateway (the learner's network thread) must not wait for a disk. This class implements `AbandonCheckpointsTask`.

    Attributes:
        done: True if the task has ended, with or without an error.
        problem: The text of the error; empty if there is none.
        count: The number of checkpoints that were renamed.
    """

    def __init__(self, client_id: str, workers: Sequence[LearnerThreadHandle], folder: Path, wake: Callable[[], None]) -> None:
        super().__init__(f"rl4sys-forget-{client_id}")
        self.done = False
        self.problem = ""
        self.count = 0
        self._workers, self._folder, self._wake = tuple(workers), folder, wake
        self._stopping = threading.Event()

    def run(self) -> None:
        """Wait for the end of the learner threads, and rename the checkpoints. This is the body of the thread."""
        try:
            ended = [False]
            while not all(ended) and not self._stopping.is_set():
                ended = [worker.join(LOOK_S) for worker in self._workers]
            if self._stopping.is_set():
                self.problem = "the learner was closed before its checkpoints were put aside"
                return
            self.count = len(CheckpointStore(self._folder).abandon_after(0))
        except CheckpointError as exc:
            self.problem = str(exc)
        finally:
            self.done = True
            self._wake()

    def stop(self) -> None:
        """Cancel the task while it waits. The checkpoints then stay as they are."""
        self._stopping.set()
