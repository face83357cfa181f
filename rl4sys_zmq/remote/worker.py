"""The program of a worker on another machine than the learner.

An engine calls `run_remote_worker` in a process of its own on that machine. The calling thread runs the same code as a learner
thread. A second thread, the *connection*, has the two sockets to the gateway. It passes messages on to the learner thread and
back, sends signs of life and log records, and ends the process when the gateway is lost.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rl4sys_zmq.delivery.credit import QUEUE_MESSAGES
from rl4sys_zmq.errors import ConfigError, ProtocolError
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.learner.training.learner_thread import PULL_MESSAGES, LearnerThread
from rl4sys_zmq.learner.training.reporting import plain_text
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.liveness import WORKER_REPORT_S, SilenceTimer
from rl4sys_zmq.logs import ForwardingHandler, get_logger
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.remote.worker_side_storage import WorkerSideStorage
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Poller, Socket, Wakeup
from rl4sys_zmq.transports.network import curve
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.frames import KIND_AT, PREFIX_BYTES
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import (
    CheckpointFound,
    CheckpointPartReply,
    CheckpointStored,
    EndRemoteWorker,
    GatewayAlive,
    StopThread,
    ThreadFailed,
    ThreadMessage,
    TrainingRecorded,
    WorkerAlive,
    WorkerLog,
    decode_thread_message,
)

log = get_logger(__name__)

LAST_MESSAGES_S = 5.0
"""Longest wait at the end until the gateway has received the last messages."""

ORPHAN_S = 2.0
"""Time that the algorithm has to end after the loss of the gateway or a replacement. Then the process is ended."""

TURN_MESSAGES = 256
"""Messages that the connection passes on in one direction before it looks at the other one."""

MAX_LOGS = 1000
MAX_LOG_CHARS = 16_000
_RETRY_S = 0.005
_PAUSED_S = 2.0
_ANSWERS = (CheckpointFound, CheckpointPartReply, CheckpointStored, TrainingRecorded)
_OWN = frozenset({cls.KIND for cls in (GatewayAlive, EndRemoteWorker, *_ANSWERS)})


def run_remote_worker(start: str, *, end_process: Callable[[int], object] = os._exit) -> str:
    """Train one client of a learner on another machine, until the learner ends this worker or is lost.

    Call this in a process that has no other work, with the text that `RemoteWorkerStart.to_json` has returned on the learner's
    machine. The process needs no access to the learner's files. It imports the plugins, so they must be installed on this
    machine. `end_process` ends the process if the algorithm does not end in time.
    """
    try:
        data = RemoteWorkerStart.from_json(start)
    except ConfigError as exc:
        return str(exc)
    worker = _GatewayConnection(data, end_process)
    handler = ForwardingHandler(worker.post_log, MAX_LOG_CHARS)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(data.log_level)
    try:
        return worker.train()
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


class _GatewayConnection(Worker):
    """The network thread of a remote worker, with the two sockets to the gateway."""

    def __init__(self, start: RemoteWorkerStart, end_process: Callable[[int], object]) -> None:
        super().__init__("rl4sys-gateway-link")
        self.lost = ""  # why the connection has ended
        self._start_data, self._end_process = start, end_process
        self._key = bytes.fromhex(start.key)
        inner = f"inproc://rl4sys-worker-{start.key}"
        self._inner_down, self._inner_up = f"{inner}-down", f"{inner}-up"
        self._storage = WorkerSideStorage(self._post)
        self._learner = LearnerThread(
            f"rl4sys-learner-{start.client_id}",
            self._key,
            self._inner_down,
            self._inner_up,
            remote=True,
            storage=self._storage,
        )
        self._wakeup = Wakeup()
        self._open = threading.Event()
        self._finishing = False
        self._posted: deque[ThreadMessage] = deque()
        self._sign_due = self._ending = False
        self._logs: deque[ThreadMessage] = deque(maxlen=MAX_LOGS)
        self._out: deque[Sequence[Frame]] = deque()
        self._in: deque[Sequence[Frame]] = deque()
        self._sent = self._arrived = self._received = 0
        self._exit_at: float | None = None

    def train(self) -> str:
        """Run the learner thread's code in this thread. Return the error that ended it."""
        self.start()
        self._open.wait()
        try:
            error = self._prepare()
            if error:
                self._post(ThreadFailed(plain_text(error), ""))
            elif not self.lost:
                self._learner.run()
                error = self._learner.failure.error if self._learner.failure is not None else ""
        finally:
            self.stop()
            self.join()
            self._wakeup.close()
        return error or self.lost

    def _prepare(self) -> str:
        if self._start_data.version_error:
            return self._start_data.version_error
        try:
            import_plugins(self._start_data.plugins)
        except ConfigError as exc:
            return str(exc)
        return ""

    def _post(self, message: ThreadMessage) -> None:  # any thread can call this
        self._posted.append(message)
        self._wakeup.set()

    def post_log(self, name: str, level: int, text: str) -> None:
        """Queue a log record for the gateway. If too many wait, the oldest is dropped. Any thread can call this."""
        self._logs.append(WorkerLog(plain_text(name), level, plain_text(text)))
        self._wakeup.set()

    def stop(self) -> None:
        self._finishing = True
        self._wakeup.set()

    def run(self) -> None:
        """Pass messages on until the learner thread has ended and the gateway has received the last messages."""
        start = self._start_data
        secure = curve((start.public, start.secret, start.gateway_public))
        try:
            with (
                Socket.push(bind=self._inner_down, hwm=QUEUE_MESSAGES) as to_learner,
                Socket.pull(bind=self._inner_up, hwm=PULL_MESSAGES) as from_learner,
                Socket.pull(connect=start.down, secure=secure) as down,
                Socket.push(connect=start.up, hwm=PULL_MESSAGES, secure=secure) as up,
                Poller() as poller,
            ):
                self._open.set()
                poller.register(self._wakeup)
                self._loop(poller, down, to_learner, from_learner, up)
        finally:
            self._open.set()

    def on_death(self, error: BaseException) -> None:
        """End the learner thread after an error of this thread, and the process if that takes too long."""
        self._give_up(f"the connection failed: {error!r}")
        deadline = threading.Event()
        while not self._finishing and not deadline.wait(_RETRY_S):
            if self._exit_at is not None and time.monotonic() >= self._exit_at:
                self._end_process(1)
                return

    def _loop(self, poller: Poller, down: Socket, to_learner: Socket, from_learner: Socket, up: Socket) -> None:
        now = time.monotonic()
        silence = SilenceTimer(self._start_data.gateway_silence_s, now)
        report = SilenceTimer(WORKER_REPORT_S, now - WORKER_REPORT_S)
        end_at: float | None = None
        stalled: dict[Socket, bool] = {down: True, from_learner: True}
        while True:
            for socket, waiting in ((down, bool(self._in)), (from_learner, bool(self._out))):
                if stalled[socket] is not waiting:  # what cannot be passed on is not read either
                    stalled[socket] = waiting
                    (poller.unregister if waiting else poller.register)(socket)
            poller.poll(_RETRY_S if self._in or self._out else max(0.0, report.deadline - now))
            before, now = now, time.monotonic()
            self._wakeup.clear()
            finishing = self._finishing  # before the last messages of the learner thread are read
            if self._read_gateway(down, to_learner) or self._in or now - before > _PAUSED_S:
                silence.restart(now)  # while the learner thread's queue is full, nothing can be read
            elif silence.expired(now) and not self.lost:
                self._give_up(f"no message from the gateway for {silence.after_s:g} s; this worker ends")
            if report.expired(now):
                report.restart(now)
                self._sign_due = True
            idle = self._write_gateway(from_learner, up)
            if self._exit_at is not None and now >= self._exit_at and not finishing:
                self._end_process(1)
            if finishing and idle:
                if self.lost or (end_at is not None and (self._received >= self._sent or now >= end_at)):
                    return
                if end_at is None:
                    end_at = now + LAST_MESSAGES_S
                    self._sign_due = self._ending = True

    def _alive(self) -> WorkerAlive:
        """Return a sign of life, which has the number of messages sent so far. Send it before any further message."""
        self._sign_due = False
        return WorkerAlive(platform.node(), os.getpid(), self._learner.busy_s, self._ending, self._sent)

    def _read_gateway(self, down: Socket, to_learner: Socket) -> bool:
        """Pass messages of the gateway on while the learner thread's queue has room. Return True if one has arrived."""
        arrived = False
        for _ in range(TURN_MESSAGES):
            while self._in:
                if not to_learner.send(self._in[0]) and not self._finishing:
                    return arrived
                self._in.popleft()
            frames = down.recv(MAX_MESSAGE_FRAMES)
            if frames is None:
                return arrived
            arrived = True
            self._arrived += 1
            kind = frames[0][KIND_AT] if len(frames[0]) >= PREFIX_BYTES else -1
            if kind in _OWN:
                self._on_gateway(frames)
                continue
            if kind == StopThread.KIND:
                self._learner.expect_end()
            self._in.append(frames)
        return arrived

    def _on_gateway(self, frames: Sequence[Frame]) -> None:
        try:
            message = decode_thread_message(frames)
        except ProtocolError as exc:
            self._give_up(f"a message of the gateway is invalid: {exc}")
            return
        if isinstance(message, GatewayAlive):
            self._received = message.messages
            lost = message.sent + 1 - self._arrived
            if lost:
                self._give_up(f"{lost} messages of the gateway were lost on the way; is the network unstable?")
        elif isinstance(message, EndRemoteWorker):
            self._give_up("another worker has replaced this one, or its client was removed")
        elif isinstance(message, _ANSWERS):
            self._storage.deliver(message)

    def _write_gateway(self, from_learner: Socket, up: Socket) -> bool:
        """Send queued messages to the gateway. Return True if none is left in the queues."""
        for _ in range(TURN_MESSAGES):
            while self._out:
                if not self.lost:
                    if not up.send(self._out[0]):
                        return False
                    self._sent += 1
                self._out.popleft()
            frames = from_learner.recv(MAX_MESSAGE_FRAMES) if not self._sign_due else None
            if frames is not None:
                self._out.append(frames)
            elif self._sign_due:
                self._out.append([self._key, *encode(self._alive())])
            elif waiting := self._posted or self._logs:
                self._out.append([self._key, *encode(waiting.popleft())])
            else:
                return True
        return False

    def _give_up(self, reason: str) -> None:
        """End the learner thread without a checkpoint, and the whole process if that takes too long."""
        if not self.lost:
            self.lost = reason
            log.warning("client %s: %s", self._start_data.client_id, reason)
            self._storage.give_up(reason)
            self._learner.replace()
            self._exit_at = time.monotonic() + ORPHAN_S
