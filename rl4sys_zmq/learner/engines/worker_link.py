"""The gateway's connections to workers on other machines.

A connection has two sockets over tcp with CURVE: a PUSH to the worker and a PULL from it. Both accept only the key pair that
was made for this worker. So no other worker receives its segments, and an earlier worker of the client sends nothing in its
name.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.credit import QUEUE_MESSAGES
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.learner.engines.base import WorkerAssignment
from rl4sys_zmq.learner.engines.checkpoint_thread import (
    MAX_WAITING,
    CheckpointThread,
    RemoteWorkerFiles,
    StorageAnswer,
    StorageRequest,
)
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.limits import MAX_REPORT_FRAMES
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.security.authenticator import RemoteWorkerAuthenticator
from rl4sys_zmq.security.keys import KeyPair, new_key_pair
from rl4sys_zmq.transports import Address, Poller, Socket, TooManyFrames
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.frames import KIND_AT, PREFIX_BYTES
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import (
    CheckpointPart,
    CheckpointStored,
    EndRemoteWorker,
    FetchCheckpointPart,
    FindCheckpoint,
    GatewayAlive,
    RecordSegmentsInTraining,
    StopThread,
    ThreadFailed,
    WorkerAlive,
    WorkerLog,
    decode_thread_message,
)

MAX_LOGS = 1000
MESSAGES_PER_TURN = 256
LINGER_S = 5.0
_OWN = frozenset(
    {cls.KIND for cls in (WorkerAlive, WorkerLog, FindCheckpoint, FetchCheckpointPart, CheckpointPart, RecordSegmentsInTraining)}
)


class RemoteWorkerLink(Resource):
    """The gateway's connection to one remote worker. Only the gateway thread uses it, unless a method says otherwise.

    Attributes:
        sign: The last sign of life of the worker; None before the first. Any thread can read the attributes.
        sign_at: The time of the last sign, on the monotonic clock.
        failed: True if the worker has reported the error that ends it.
        lost: A text about messages that were lost on the way; empty if there are none.
        logs: Log records of the worker, oldest first. Another thread can pop them.
        finished: Any thread can set it to True after the end of the worker. The gateway then closes the connection.
    """

    def __init__(
        self, assignment: WorkerAssignment, bind: str, advertise: str, access: RemoteWorkerAuthenticator, links: RemoteWorkerLinks
    ) -> None:
        self.sign: WorkerAlive | None = None
        self.sign_at = 0.0
        self.failed = self.finished = False
        self.lost = ""
        self.logs: deque[WorkerLog] = deque(maxlen=MAX_LOGS)
        self._key = assignment.key
        self._access, self._counters, self._storage = access, links.counters, links.storage
        self._received = self._sent = 0
        self._control: deque[list[Frame]] = deque()
        self._ended = False
        assign = assignment.assign
        self._files = RemoteWorkerFiles(assign, self.control) if assign.checkpoints else None
        self._push: Socket | None = Socket.push(
            bind=bind, hwm=QUEUE_MESSAGES, linger_s=LINGER_S, secure=access.secure, watch=True
        )
        try:
            self.pull = Socket.pull(bind=bind, secure=access.secure, watch=True)
        except BaseException:
            self._push.close()
            raise
        public, secret, gateway_public = access.keys
        self.start = RemoteWorkerStart.of(
            assignment,
            engine=assignment.engine,
            generation=assign.generation,
            down=_advertised(self._push.bound, advertise),
            up=_advertised(self.pull.bound, advertise),
            public=public,
            secret=secret,
            gateway_public=gateway_public,
        )

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue a message. Return False if the queue is full, the worker is not connected, or `end` was called."""
        return not self._ended and self.flush() and self._try(frames)

    def control(self, message: StorageAnswer | EndRemoteWorker | StopThread) -> None:
        """Queue a message that is not for the learner thread, such as an answer about a checkpoint."""
        self._control.append(encode(message))
        self.flush()

    def end(self, *, replaced: bool) -> None:
        if not self._ended:
            self._ended = True
            if self._files is not None and not (self.finished or self.failed):  # it has not ended by itself
                self._storage.excuse(self._files)
            self.control(StopThread())
        if replaced and self._files is not None:
            self._files.fenced = True
        if replaced and self._push is not None:
            self._access.revoke()
            self._control.clear()
            self.control(EndRemoteWorker())
            self._push.close()  # libzmq still sends what is queued
            self._push = None

    def flush(self) -> bool:
        """Send the messages that `control` has queued, as far as the socket takes them. Return True if none is left."""
        while self._control:
            if not self._try(self._control[0]):
                return False
            self._control.popleft()
        return True

    def _try(self, frames: Sequence[Frame]) -> bool:
        """Send a message and count it. Return False if it cannot be sent now."""
        sent = self._push is not None and bool(self._push.send(frames))
        self._sent += sent
        return sent

    def receive(self, *, all_of_them: bool) -> Iterator[list[Frame]]:
        """Yield the arrived messages of the worker's learner thread, and handle its other messages here.

        One call reads at most `MESSAGES_PER_TURN` messages, unless `all_of_them` is True.
        """
        for _ in itertools.count() if all_of_them else range(MESSAGES_PER_TURN):
            try:
                frames = self.pull.recv(MAX_REPORT_FRAMES)
            except TooManyFrames as exc:
                self._counters.add(f"worker_messages_refused.{exc.code.value}")
                continue
            if frames is None:
                return
            if len(frames) < 2 or frames[0] != self._key or len(frames[1]) < PREFIX_BYTES:
                self._counters.add("worker_messages_refused.key")
                continue
            self._received += 1
            kind = frames[1][KIND_AT]
            if kind not in _OWN:
                self.failed = self.failed or kind == ThreadFailed.KIND
                yield frames
                continue
            try:
                self._handle(frames[1:])
            except ProtocolError as exc:
                self._counters.add(f"worker_messages_refused.{exc.code.value}")

    def _handle(self, frames: Sequence[Frame]) -> None:
        message = decode_thread_message(frames)
        if isinstance(message, WorkerAlive):
            self.sign_at, self.sign = time.monotonic(), message
            lost = message.sent + 1 - self._received
            if lost and not self.lost:
                self.lost = f"{lost} of its messages were lost on the way; is the network unstable?"
            if message.ending:
                self._say_alive()
        elif isinstance(message, WorkerLog):
            self.logs.append(message)
        elif self._push is None:
            self._counters.add("worker_messages_fenced")
        elif not isinstance(message, StorageRequest) or self._files is None:
            self._counters.add("worker_messages_refused.direction")
        elif not self._storage.request(self._files, message):
            self._counters.add("worker_messages_refused.quota")
            self.control(CheckpointStored(0, False, f"{MAX_WAITING} requests wait; send no more before an answer"))

    def each_second(self) -> None:
        """Send a sign of life to the worker, and count the connections that were refused."""
        self._say_alive()
        for socket in (self._push, self.pull):
            for event in socket.events() if socket is not None else ():
                if event.name.startswith("handshake_failed"):
                    self._counters.add("worker_connections_refused")

    def _say_alive(self) -> None:
        if self.flush():
            self._try(encode(GatewayAlive(self._received, self._sent)))

    def finish(self) -> None:
        """Remove the unfinished checkpoint of an ended worker from the disk. Do not call this in the gateway thread."""
        if self._files is not None:
            self._storage.finish(self._files)

    def close(self) -> None:
        """Close the two sockets. No key of this worker is accepted any more."""
        if self._push is not None:
            self._push.close()
            self._push = None
        self.pull.close()
        self._access.close()


class RemoteWorkerLinks:
    """The connections of one gateway to its remote workers. Only the gateway thread uses this object, except for `join`."""

    def __init__(self, counters: Counters, poller: Poller, wake: Callable[[], None]) -> None:
        self.counters = counters
        self.storage = CheckpointThread(wake)
        self._poller = poller
        self._keys: KeyPair | None = None  # until the first worker
        self._links: list[RemoteWorkerLink] = []

    def open(self, assignment: WorkerAssignment, bind: str, advertise: str = "") -> RemoteWorkerLink:
        """Bind the two sockets of a worker, with a fresh key pair. See `GatewayEndpoints.connect_worker`."""
        if self._keys is None:
            keys = new_key_pair()
            self.storage.start()  # if this raises, the next call tries again
            self._keys = keys
        access = RemoteWorkerAuthenticator(self._keys)
        try:
            link = RemoteWorkerLink(assignment, bind, advertise, access, self)
        except BaseException:
            access.close()
            raise
        self._links.append(link)
        self._poller.register(link.pull)
        return link

    def serve(self) -> Iterator[list[Frame]]:
        """Yield the messages of all learner threads that have arrived, send queued messages, and close ended connections."""
        self.storage.deliver_answers()
        for link in list(self._links):
            finished = link.finished  # before the last messages are read
            yield from link.receive(all_of_them=finished)
            link.flush()  # what found no room before
            if finished and link in self._links:
                self._links.remove(link)
                self._poller.unregister(link.pull)
                link.close()

    def each_second(self) -> None:
        self.storage.raise_if_dead()
        for link in self._links:
            link.each_second()

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()

    def join(self, timeout_s: float) -> bool:
        """End the checkpoint thread after its last request. Return False if it still runs after `timeout_s`."""
        self.storage.stop()
        return self.storage.join(timeout_s)


def _advertised(address: Address, host: str) -> str:
    return Address(address.scheme, host, address.port).uri if host else address.uri
