"""Ports of the core that use threads: a learner thread with its pipeline, and the task that puts checkpoints aside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.checkpoints import CheckpointStore
from rl4sys_zmq.learner.client import QUEUE_MESSAGES
from rl4sys_zmq.learner.ports import WorkerPort
from rl4sys_zmq.learner.trainer_worker import TrainerWorker
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Frame, Stop

__all__ = ["AbandonCheckpoints", "WorkerPipe"]

LOOK_S = 0.05


class WorkerPipe:
    """A learner thread with the PUSH to it; implements `WorkerPort`.

    Only the gateway thread uses it, but any thread can call `alive` and `join`.
    """

    def __init__(self, client_id: str, key: bytes, up: str) -> None:
        """Bind the pipeline and start the thread.

        Args:
            client_id: The client.
            key: Precedes every message of the thread.
            up: The address of the gateway's PULL. The pipeline to the thread is bound to this address plus the key.

        Raises:
            TransportError: If the pipeline cannot be bound.
        """
        down = f"{up}-{key.hex()}"
        self._push: Socket | None = Socket.push(bind=down, hwm=QUEUE_MESSAGES)
        self._thread = TrainerWorker(f"rl4sys-learner-{client_id}", key, down, up)
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
        """Queue a message for the thread. Return False if the pipeline is full or closed."""
        return self._push is not None and bool(self._push.send(frames))

    def end(self, *, replaced: bool) -> None:
        """Tell the thread to finish its queue and end; with `replaced`, to end as soon as it can."""
        if self._push is not None:
            self._push.send(encode(Stop()))
            self._push.close()
            self._push = None
        if replaced:
            self._thread.replace()
        self._thread.stop()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread. Any thread can call this."""
        return self._thread.join(timeout_s)


class AbandonCheckpoints(Worker):
    """A thread that waits for the end of learner threads and then renames their checkpoints.

    It exists because the gateway thread must not access a disk.

    Attributes:
        done: True if the task has ended.
        problem: The error, or empty.
        count: The number of checkpoints that were put aside.
    """

    def __init__(self, client_id: str, workers: Sequence[WorkerPort], folder: Path, wake: Callable[[], None]) -> None:
        super().__init__(f"rl4sys-forget-{client_id}")
        self.done = False
        self.problem = ""
        self.count = 0
        self._workers, self._folder, self._wake = tuple(workers), folder, wake
        self._stopping = threading.Event()

    def run(self) -> None:
        """Wait for the learner threads, and put the checkpoints aside."""
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
        """Cancel the wait. The checkpoints stay as they are."""
        self._stopping.set()
