"""The engine ``thread``: each client is trained in a thread of the learner's process. It is the default."""

from __future__ import annotations

from typing import Any

from rl4sys_zmq.delivery.credit import QUEUE_MESSAGES
from rl4sys_zmq.learner.engines.base import EngineEntry, GatewayEndpoints, WorkerAssignment
from rl4sys_zmq.learner.training.learner_thread import LearnerThread
from rl4sys_zmq.learner.training.train_loop import WorkerQueue
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import StopThread, WorkerMessage


class ThreadEngine:
    """The engine that trains each client in a thread of the learner's process."""

    def __init__(self, gateway: GatewayEndpoints) -> None:
        self._up = gateway.up

    def start(self, assignment: WorkerAssignment) -> InProcessLearnerThread:
        return InProcessLearnerThread(assignment, self._up)

    def wait_ready(self) -> None:
        """Return at once: a thread can always be started."""

    def close(self) -> None:
        """Do nothing: this engine holds nothing itself."""


ENTRY = EngineEntry(name="thread", factory=ThreadEngine, summary="a thread of the learner's process")


class InProcessLearnerThread(LearnerThread):
    """A learner thread in the learner's process, and the gateway's handle to it. It implements `WorkerHandle`.

    A PUSH socket wakes the thread. Only the gateway calls the methods, but any thread can call `alive`, `join` and `abort`.
    """

    crash = ""  # if a thread crashes, the learner's process ends with it
    silent_s = 0.0  # a thread stops only together with its process

    def __init__(self, assignment: WorkerAssignment, up: str) -> None:
        down = f"{up}-{assignment.key.hex()}"
        self.queue = WorkerQueue()
        super().__init__(f"rl4sys-learner-{assignment.client_id}", assignment.key, down, up, queue=self.queue)
        self._push: Socket | None = Socket.push(bind=down)
        try:
            self.start()
        except BaseException:
            self._push.close()
            raise

    def send(self, message: WorkerMessage) -> bool:
        if self._push is None or len(self.queue.messages) >= QUEUE_MESSAGES:
            return False
        self.queue.messages.append(message)
        if not self.queue.awake:
            self.queue.awake = True
            self._push.send([b""])
        return True

    def end(self, *, replaced: bool) -> None:
        if self._push is not None:
            self.send(encode(StopThread()))
            self._push.close()
            self._push = None
        if replaced:
            self.replace()
        self.stop()

    def abort(self) -> bool:
        """Return True if the thread has ended. A thread cannot be ended by force."""
        return not self.alive

    def describe(self) -> dict[str, Any]:
        return {"engine": ENTRY.name}
