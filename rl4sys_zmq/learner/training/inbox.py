"""The messages from the gateway to a learner thread, and the wait for them."""

from __future__ import annotations

from collections import deque

from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.wire.thread_messages import DeliverSegments, ThreadMessage, WorkerMessage, decode_thread_message


class WorkerQueue:
    """The messages to a learner thread in the gateway's process, oldest first. The gateway appends, the thread pops.

    Attributes:
        awake: False while the thread waits. Who appends a message then sets this to True, and wakes the thread.
    """

    __slots__ = ("awake", "messages")

    def __init__(self) -> None:
        self.messages: deque[WorkerMessage] = deque()
        self.awake = True


class LearnerThreadInbox:
    """The messages to one learner thread. In the gateway's process they are in a `WorkerQueue`, and the PULL socket only wakes.

    Elsewhere, they come encoded through the socket.
    """

    def __init__(self, pull: Socket, queue: WorkerQueue | None) -> None:
        self._pull, self._queue = pull, queue
        self._poller = Poller()
        self._poller.register(pull)

    def read(self) -> ThreadMessage | None:
        """Return the next message, or None if there is none."""
        if self._queue is None:
            message: WorkerMessage | None = self._pull.recv(MAX_MESSAGE_FRAMES)
        else:
            message = self._queue.messages.popleft() if self._queue.messages else None
        return message if message is None or isinstance(message, DeliverSegments) else decode_thread_message(message)

    def wait(self, timeout_s: float) -> None:
        """Wait until there is a message, or for `timeout_s` seconds."""
        queue = self._queue
        if queue is None:
            self._poller.poll(timeout_s)
            return
        queue.awake = False  # before the look, so that no message can come unnoticed between the two
        if not queue.messages and self._poller.poll(timeout_s):
            self._pull.recv()
        queue.awake = True
