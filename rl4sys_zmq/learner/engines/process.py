"""The engine ``process``: each client is trained in a process of its own, on the learner's machine.

The processes use several cores, and a crash in native code costs one client a restart, and the others nothing.

Messages travel through ipc sockets in a folder that only this user can access, so they need no encryption. A worker process has
an ipc address of its own from which it receives messages, so that it cannot receive those of its successor. All processes send
to one address, and the gateway recognizes the newest worker of a client by its secret key.

A socketpair connects the gateway's process and the worker process, with the packets in `packets`. When the gateway's process
ends, the socketpair closes, and the worker process ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import select
import shutil
import socket
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from rl4sys_zmq.child_process import end_text, module_path, start_error_text, start_with_socket
from rl4sys_zmq.delivery.credit import QUEUE_MESSAGES
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.learner.engines import packets
from rl4sys_zmq.learner.engines.base import (
    REPLACED_KILL_S,
    EngineEntry,
    GatewayEndpoints,
    WorkerAssignment,
    WorkerProcessHandle,
)
from rl4sys_zmq.learner.engines.remote_start import ProcessStart
from rl4sys_zmq.liveness import WORKER_REPORT_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.transports import Socket, make_socket_folder
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import StopThread, ThreadFailed, WorkerMessage, frames_of

log = get_logger(__name__)

LINGER_S = 30.0
LOOK_S = 0.05
PACKETS_PER_LOOK = 64
LAST_PACKETS = 4096  # after the end of a process. The socketpair holds fewer.

_MODULE = "rl4sys_zmq.learner.engines.worker"


class ProcessEngine:
    """The engine that trains each client in a process of its own."""

    def __init__(self, gateway: GatewayEndpoints) -> None:
        if not hasattr(socket, "SOCK_SEQPACKET") or not sys.executable:
            raise ConfigError("engine: process needs Linux and a Python interpreter (sys.executable); use thread", key="engine")
        self._folder = make_socket_folder()
        self._numbers = itertools.count(1)
        try:
            self._up = gateway.listen(f"ipc://{self._folder}/up")
        except BaseException:
            self.close()
            raise

    def start(self, assignment: WorkerAssignment) -> LocalWorkerHandle:
        return LocalWorkerHandle(assignment, self._up, f"ipc://{self._folder}/{next(self._numbers)}")

    def wait_ready(self) -> None:
        """Return at once: a process can be started now."""

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


ENTRY = EngineEntry(
    name="process", factory=ProcessEngine, summary="a process of its own, on the learner's machine", isolated=True
)


class LocalWorkerHandle(WorkerProcessHandle):
    """A handle to a worker process on the learner's machine. It implements `WorkerHandle`.

    Only the gateway uses the PUSH socket, which sends messages to the process. The thread of this object starts the process,
    reads its packets, and waits for its end. On Linux, the kernel kills the process if this thread ends first, for example
    with the learner. After the end of the process, the thread kills the rest of its process group.
    """

    def __init__(self, assignment: WorkerAssignment, up: str, down: str) -> None:
        super().__init__("rl4sys-process", assignment)
        self._start = ProcessStart.of(assignment, down=down, up=up, path=module_path())
        self._lock = threading.Lock()
        self._pid: int | None = None  # None before the process is created
        self._alive_at = math.inf
        self._busy_s = 0.0  # since the process last looked for messages, as of its last sign of life
        self._pair: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._push: Socket | None = Socket.push(bind=down, hwm=QUEUE_MESSAGES, linger_s=LINGER_S)
        try:
            self._pair, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._pair.setblocking(False)
            self.start()
        except BaseException as exc:
            self._push.close()
            self._close_pair()
            if isinstance(exc, OSError | RuntimeError):
                raise TransportError(f"engine process: no process can be started: {start_error_text(exc)}") from exc
            raise

    def send(self, message: WorkerMessage) -> bool:
        """Queue a message. Return False if the queue is full, the process is not connected so far, or `end` was called."""
        return self._push is not None and bool(self._push.send(frames_of(message)))

    def end(self, *, replaced: bool) -> None:
        if self._push is not None:
            queued = bool(self._push.send(encode(StopThread())))
            self._push.close()  # libzmq still sends what is queued
            self._push = None
            self._tell(packets.END if queued else packets.STOP)
        if replaced:
            self._tell(packets.REPLACE)
            self.kill_within(REPLACED_KILL_S)

    @property
    def silent_s(self) -> float:
        return 0.0 if self.over else max(0.0, time.monotonic() - self._alive_at)

    def describe(self) -> dict[str, Any]:
        signs = {"busy_s": round(self._busy_s, 3), "silent_s": round(self.silent_s, 3)}
        return {"engine": ENTRY.name, "pid": self._pid, **signs}

    def _tell(self, command: str) -> None:
        """Send a command to the process. Do nothing if it has ended."""
        with self._lock:
            if self._pair is not None:
                try:
                    self._pair.send(packets.encode_packet(command), socket.MSG_NOSIGNAL)
                except OSError as exc:  # it has ended, or is stopped and has many unread commands
                    log.debug("%s: %s cannot be sent: %s", self.name, command, exc)

    def stop(self) -> None:
        """Kill the process. Any thread can call this."""
        with self._lock:
            super().stop()
            self._kill()

    def _kill(self) -> None:
        """Kill the process and the other processes of its process group. The caller holds the lock."""
        if self._pid is not None:
            self._process.kill_group()

    def _close_pair(self) -> None:
        with self._lock:
            pair, self._pair = self._pair, None
        for end in (pair, self._theirs):
            if end is not None:
                end.close()

    def run(self) -> None:
        try:
            code = self._watch_process()
            if code and self.failure is None:
                self.crash = f"its process {self._pid} has ended: {end_text(code)}"
        except Exception as exc:  # the gateway must get the end of the process in any case
            if self._pid is None:
                self.crash = f"no process can be started: {start_error_text(exc)}"
            else:
                log.exception("process %d, which trained client %s, was killed", self._pid, self._start.client_id)
                self.crash = (
                    f"its process {self._pid} was killed, because of an error in the learner: {type(exc).__name__}: {exc}"
                )
        finally:
            self.over = True
            self._close_pair()
            self._assignment.ended()

    def _watch_process(self) -> int:
        """Start the process, read its packets, and return its exit code after its end."""
        with self._lock:
            if self._stop_asked.is_set():
                return 0
            pair, theirs = self._pair, self._theirs
            assert pair is not None and theirs is not None
            pair.send(json.dumps(asdict(self._start)).encode())
            self._process = start_with_socket(theirs, "-m", _MODULE)
            self._pid = self._process.pid
        try:
            theirs.close()
            log.info("client %s is trained by process %d", self._start.client_id, self._pid)
            self._follow(pair, self._pid)
            self._read(pair, LAST_PACKETS)
        except BaseException:
            with self._lock:
                self._kill()
            raise
        finally:
            self._process.look(0)
            with self._lock:
                code = self._process.end(0.0)
        return code

    def _follow(self, pair: socket.socket, pid: int) -> None:
        """Read the packets of the process until it has ended, and kill it if it has not ended at the deadline."""
        with contextlib.ExitStack() as stack:
            poll = select.poll()
            poll.register(pair, select.POLLIN)
            wait_s = LOOK_S
            with contextlib.suppress(AttributeError, OSError):  # a kernel before 5.3, or a filter of system calls
                death = os.pidfd_open(pid)
                stack.callback(os.close, death)
                poll.register(death, select.POLLIN)
                wait_s = WORKER_REPORT_S
            is_open = True
            while self._process.look() is None:
                poll.poll(math.ceil(wait_s * 1000))
                if is_open and not self._read(pair, PACKETS_PER_LOOK):
                    is_open = False
                    poll.unregister(pair)
                if time.monotonic() >= self._kill_at:
                    with self._lock:
                        self._kill()

    def _read(self, pair: socket.socket, most: int) -> bool:
        """Handle up to `most` packets that have arrived. Return False if the process has closed its end."""
        with contextlib.suppress(EOFError):
            for kind, fields in itertools.islice(packets.read_packets(pair), most):
                if kind == packets.LOG:
                    get_logger(fields["name"]).log(fields["level"], "process %d: %s", self._pid, fields["text"])
                elif kind == packets.TURN:
                    self._alive_at, self._busy_s = time.monotonic(), float(fields["busy_s"])
                elif kind == packets.FAILED:
                    self.failure = ThreadFailed(**fields)
            return True
        return False
