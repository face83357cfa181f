"""The learner's connection to Ray: the thread that runs the driver process, and the workers as this thread knows them."""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl4sys_zmq.child_process import child_environment, end_text
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.learner.engines.packets import LOG, MAX_PACKET_BYTES, TURN, decode_packet, encode_packet
from rl4sys_zmq.learner.engines.ray_packets import CONNECTED, ENDED, KILL, LOCAL, PLACE, PLACED, REFUSED, WAITING
from rl4sys_zmq.learner.engines.ray_resources import nodes_text
from rl4sys_zmq.liveness import WORKER_RESTART
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.wire.messages import ThreadFailed

__all__ = ["CONNECT_S", "RayConnectionThread", "RayWorkerRecord"]

log = logging.getLogger(__name__)

CONNECT_S = 60.0
"""Longest time to connect to a cluster, or to start a local Ray, in seconds."""

CLOSE_S = 5.0
"""Longest time in which the driver ends the local Ray that it has started, in seconds. Then it is killed."""

LOOK_S = 0.1
_PROGRAM = "from rl4sys_zmq.learner.engines.ray_driver import main; main()"
_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""A Ray that the learner starts sends no statistics to Ray's authors, unless the environment says so."""


@dataclass(slots=True, kw_only=True, eq=False)
class RayWorkerRecord:
    """One worker of the engine ``ray``, as the learner knows it. The connection's thread changes it; any thread can read it.

    Attributes:
        number: The number of the worker in packets.
        client_id: The client that it trains.
        wanted: The resources that it needs, by Ray's names.
        waits: True if it waits until the cluster has a node with these resources. If False, it fails if there is none.
        start: The data with which it starts, as JSON.
        ended: Is called once, after its end.
        sent: True if the present driver has been told to place it.
        node: The Ray node on which it runs; empty until then, as are `host` and `pid`.
        host: The address of this node.
        pid: Its process id on that node.
        waiting: A text about what it waits for; empty if it does not wait.
        busy_s: The time since it last looked for messages, in seconds, as of its last sign of life.
        alive_at: The time of its last sign of life, on the monotonic clock; infinite until the first.
        kill_at: The time at which it is ended by force, on the monotonic clock.
        crash: A description of how it ended by itself; empty in all other cases.
        failure: The error that it has reported at its end.
        over: Is set after its end.
    """

    number: int
    client_id: str
    wanted: Mapping[str, float]
    waits: bool
    start: Mapping[str, Any]
    ended: Callable[[], None]
    sent: bool = False
    node: str = ""
    host: str = ""
    pid: int | None = None
    waiting: str = ""
    busy_s: float = 0.0
    alive_at: float = math.inf
    kill_at: float = math.inf
    crash: str = ""
    failure: ThreadFailed | None = None
    over: threading.Event = field(default_factory=threading.Event)


class RayConnectionThread(Worker):
    """The thread that runs the driver process, which is connected to Ray, and starts another one when it ends.

    All workers of a driver end with it.

    Attributes:
        nodes: The nodes of the cluster at the time of the last connection: ``node``, ``host`` and ``resources`` of each.
    """

    def __init__(self, address: str) -> None:
        """Create the thread object. `start` starts the thread.

        Args:
            address: ``local``, ``auto``, or the ``HOST:PORT`` of the head node.
        """
        super().__init__("rl4sys-ray")
        self.nodes: list[dict[str, Any]] = []
        self._address = address
        self._lock = threading.Lock()
        self._workers: dict[int, RayWorkerRecord] = {}
        self._outbox: deque[bytes] = deque()
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._connected = False
        self._problem = ""
        self._process: subprocess.Popen[bytes] | None = None

    # ---- for other threads

    def wait_connected(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed.

        Raises:
            TransportError: If it has failed.
        """
        if not self._settled.wait(CONNECT_S):
            self._problem = f"no answer within {CONNECT_S:g} s"
        if self._problem:
            raise TransportError(f"ray_address: {self._described} cannot be used: {self._problem}")

    def add(self, worker: RayWorkerRecord) -> None:
        """Place a worker as soon as there is a connection. Any thread can call this."""
        with self._lock:
            self._workers[worker.number] = worker

    def tell(self, worker: RayWorkerRecord, kind: str, **fields: object) -> None:
        """Send a packet about a worker to the driver. Any thread can call this, also after the worker's end."""
        with self._lock:
            if not worker.sent:
                worker.kill_at = 0.0  # there is nothing to end but this record
            elif worker.number in self._workers:
                self._outbox.append(encode_packet(kind, number=worker.number, **fields))

    def kill(self, worker: RayWorkerRecord) -> None:
        """End a worker by force. Any thread can call this, also after the worker's end."""
        worker.kill_at = 0.0

    def stop(self) -> None:
        """End the driver, and so all workers and a local Ray. Any thread can call this."""
        self._stopping.set()

    def on_death(self, error: BaseException) -> None:
        """Record the end of all workers, after this thread has failed."""
        self._problem = self._problem or repr(error)
        self._stopping.set()
        self._forget_driver()
        self._settled.set()

    # ---- the thread

    def run(self) -> None:
        """Run drivers, one after the other, until `stop`. After the first connection, failed ones are repeated."""
        attempts = 0
        while not self._stopping.is_set():
            connected = False
            try:
                connected = self._run_driver()
            except OSError as exc:
                self._problem = f"no driver process can be started: {exc.strerror}; raise the limit of open files (ulimit -n)"
            finally:
                self._forget_driver()
            if not self._settled.is_set():
                self._settled.set()
                return
            attempts = 0 if connected else attempts + 1
            if not self._stopping.is_set():
                log.warning("%s: %s; the learner tries again", self._described, self._problem)
            self._stopping.wait(WORKER_RESTART.pause_s(attempts))

    @property
    def _described(self) -> str:
        return "the local Ray" if self._address == LOCAL else f"the Ray cluster at {self._address}"

    def _run_driver(self) -> bool:
        """Start a driver process and follow it until its end. Return True if it was connected."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._problem, self._connected = "", False
        with ours:
            with theirs:
                ours.setblocking(False)
                process = self._process = _spawn(theirs, self._address)
            deadline = time.monotonic() + CONNECT_S
            try:
                poll = select.poll()
                poll.register(ours, select.POLLIN)
                while not self._stopping.is_set():
                    poll.poll(LOOK_S * 1000)
                    if not self._read(ours):
                        break
                    self._send(ours)
                    if not self._connected and time.monotonic() > deadline:
                        self._problem = f"no answer within {CONNECT_S:g} s"
                        process.kill()
                        break
            finally:
                ours.close()  # the driver ends
                try:
                    process.wait(CLOSE_S)
                except subprocess.TimeoutExpired:
                    log.warning(
                        "%s: the driver process %d did not end within %g s; it is killed", self._described, process.pid, CLOSE_S
                    )
                    process.kill()
                    process.wait()
        self._problem = self._problem or f"the driver process ended with {end_text(process.returncode)}"
        return self._connected

    def _send(self, pair: socket.socket) -> None:
        """Send waiting packets, place new workers, and end those whose time is over."""
        now = time.monotonic()
        with self._lock:
            for worker in self._workers.values() if self._connected else ():
                if not worker.sent:
                    worker.sent = True
                    fields = {
                        "client_id": worker.client_id,
                        "wanted": worker.wanted,
                        "start": worker.start,
                        "waits": worker.waits,
                    }
                    self._outbox.append(encode_packet(PLACE, number=worker.number, **fields))
                if now >= worker.kill_at:
                    worker.kill_at = math.inf
                    self._outbox.append(encode_packet(KILL, number=worker.number))
            with contextlib.suppress(BlockingIOError):
                while self._outbox:
                    pair.send(self._outbox[0], socket.MSG_NOSIGNAL)
                    self._outbox.popleft()

    def _read(self, pair: socket.socket) -> bool:
        """Handle the packets that have arrived. Return False if the driver has ended."""
        while True:
            try:
                data = pair.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            kind, fields = decode_packet(data)
            if kind == CONNECTED:
                self._on_connected(**fields)
            elif kind == REFUSED:
                self._problem = fields["error"]
            else:
                worker = self._workers.get(fields.pop("number"))
                if worker is not None:
                    self._on_worker(worker, kind, fields)

    def _on_connected(self, *, address: str, host: str, node: str, nodes: list[dict[str, Any]], version: str) -> None:
        self._connected, self.nodes = True, nodes
        started = "has started a local Ray" if self._address == LOCAL else "is connected to the Ray cluster"
        words = "the learner %s %s at %s: driver process %d on node %s (%s); nodes: %s"
        assert self._process is not None
        log.info(words, started, version, address, self._process.pid, node, host, nodes_text(nodes))
        self._settled.set()

    def _on_worker(self, worker: RayWorkerRecord, kind: str, fields: dict[str, Any]) -> None:
        if kind == PLACED:
            worker.node, worker.host, worker.pid, worker.waiting = fields["node"], fields["host"], fields["pid"], ""
            worker.alive_at = time.monotonic()
            words = "client %s is trained by process %d on %s, node %s of the Ray cluster"
            log.info(words, worker.client_id, worker.pid, worker.host, worker.node)
        elif kind == WAITING:
            worker.waiting = fields["text"]
            log.warning("client %s waits for a worker: %s", worker.client_id, worker.waiting)
        elif kind == TURN:
            worker.alive_at, worker.busy_s = time.monotonic(), float(fields["busy_s"])
        elif kind == LOG:
            text = "process %d on %s: %s"
            logging.getLogger(fields["name"]).log(fields["level"], text, worker.pid, worker.host, fields["text"])
        elif kind == ENDED:
            if fields["error"]:
                worker.failure = ThreadFailed(fields["error"], fields["trace"])
            self._end(worker, fields["crash"])

    def _end(self, worker: RayWorkerRecord, crash: str) -> None:
        if crash:
            place = f"process {worker.pid} on {worker.host}" if worker.pid is not None else "its Ray worker"
            worker.crash = f"{place} has ended: {crash}"
        with self._lock:
            self._workers.pop(worker.number, None)
        worker.over.set()
        worker.ended()

    def _forget_driver(self) -> None:
        """Record the end of all workers that the driver had placed. The others wait for the next driver."""
        with self._lock:
            self._outbox.clear()
            workers = list(self._workers.values())
        for worker in workers:
            if worker.sent or self._stopping.is_set() or not self._settled.is_set():
                self._end(worker, self._problem)
            elif worker.waiting != self._problem:
                worker.waiting = self._problem
        self._connected = False


def _spawn(theirs: socket.socket, address: str) -> subprocess.Popen[bytes]:
    number = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, str(number), address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # Ray writes messages of its own there
        stderr=subprocess.DEVNULL,
        pass_fds=(number,),
        close_fds=True,
        start_new_session=True,
        env={**_NO_STATISTICS, **child_environment()},
    )
