"""The learner's connection to Ray: the thread that runs the driver process, and the workers as this thread knows them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rl4sys_zmq.child_process import module_path, start_error_text
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.learner.engines.packets import MAX_PACKET_BYTES, encode_packet
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.liveness import WORKER_RESTART
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.remote.ray_process import (
    CLOSE_S,
    CONNECT_S,
    CONNECTED,
    ENDED,
    KILL,
    LOCAL,
    PLACE,
    PLACED,
    WAITING,
    DriverProcess,
    described_cluster,
    nodes_text,
)
from rl4sys_zmq.resource import Worker

log = get_logger(__name__)

LOOK_S = 0.1
_PROGRAM = "from rl4sys_zmq.remote.ray_driver import main; main()"


class RayProcess:
    """One worker of the engine ``ray``, as the learner knows it. It implements `RemoteProcess`.

    The connection's thread changes it. Any thread can read it, and call `kill`.
    """

    def __init__(
        self, number: int, client_id: str, wanted: Mapping[str, float], start: RemoteWorkerStart, *, waits: bool
    ) -> None:
        self.number, self.client_id, self.wanted, self.start, self.waits = number, client_id, wanted, start, waits
        self.sent = False  # the present driver has been told to place it
        self.unwanted = False  # it was killed, and the driver was not told so far
        self.node = ""  # on which it runs
        self.waiting = ""  # what it waits for
        self._end = self._error = ""
        self._over = threading.Event()

    def wait(self, timeout_s: float) -> str | None:
        if not self._over.wait(timeout_s):
            return None
        if self._error:
            raise ConfigError(self._error, key="engine")
        return self._end

    def kill(self) -> None:
        self.unwanted = True

    def describe(self) -> dict[str, Any]:
        return {"node": self.node, "waiting": self.waiting}

    def order(self, host: str) -> bytes:
        """Return the packet that tells the driver to place the worker. The worker reaches the learner at `host`."""
        down, up = (address.replace("//0.0.0.0:", f"//{host}:", 1) for address in (self.start.down, self.start.up))
        return encode_packet(
            PLACE,
            number=self.number,
            client_id=self.client_id,
            wanted=self.wanted,
            waits=self.waits,
            path=module_path(),
            start=replace(self.start, down=down, up=up).to_json(),
        )

    def ended(self, end: str, error: str) -> None:
        self._end, self._error, self.waiting = end, error, ""
        self._over.set()


class RayDriverThread(Worker):
    """The thread that runs a driver process, and starts another one when the driver ends. A driver's workers end with it."""

    def __init__(self, address: str) -> None:
        super().__init__("rl4sys-ray")
        self.nodes: list[dict[str, Any]] = []  # `alive_nodes` at the time of the last connection
        self._address, self._described = address, described_cluster(address)
        self._lock = threading.Lock()
        self._workers: list[RayProcess] = []
        self._host = ""
        self._over = False
        self._settled = threading.Event()
        self._problem = ""

    def wait_connected(self) -> None:
        if not self._settled.wait(CONNECT_S):
            self._problem = f"no answer within {CONNECT_S:g} s"
        if self._problem:
            raise TransportError(f"ray_address: {self._described} cannot be used: {self._problem}")

    def add(self, worker: RayProcess) -> None:
        """Place a worker as soon as there is a connection. Any thread can call this."""
        with self._lock:
            if not self._over:
                self._workers.append(worker)
                return
        worker.ended(self._problem, "")

    def on_death(self, error: BaseException) -> None:
        self._problem = self._problem or repr(error)
        self._end_workers(last=True)

    def run(self) -> None:
        """Run drivers, one after the other, until `stop`. If the first one cannot connect, no other follows."""
        attempts = 0
        while not self._stop_asked.is_set():
            connected = False
            try:
                connected = self._run_driver()
            except (OSError, subprocess.SubprocessError) as exc:
                self._problem = f"no driver process can be started: {start_error_text(exc)}"
            except Exception as exc:  # the workers must get their end, and another driver, in any case
                log.exception("%s: the connection to the driver process has failed", self._described)
                self._problem = f"an error in the learner: {type(exc).__name__}: {exc}"
            if self._stop_asked.is_set() or not self._settled.is_set():
                break
            self._end_workers(last=False)
            attempts = 0 if connected else attempts + 1
            log.warning("%s: %s; the learner tries again", self._described, self._problem)
            self._stop_asked.wait(WORKER_RESTART.pause_s(attempts))
        self._end_workers(last=True)

    def _run_driver(self) -> bool:
        """Start a driver process and follow it until its end. Return True if it was connected."""
        self._problem = ""
        driver = DriverProcess(_PROGRAM, self._address)
        try:
            while not self._stop_asked.is_set():
                for kind, fields in driver.exchange(LOOK_S):
                    self._on_packet(driver, kind, fields)
                self._order(driver)
        except EOFError:
            pass
        finally:
            driver.close(CLOSE_S)
        self._problem = driver.problem
        return driver.connected

    def _order(self, driver: DriverProcess) -> None:
        with self._lock:
            workers = list(self._workers)
        for worker in workers:
            if worker.unwanted and not worker.sent:
                self._on_end(worker, "", "")
            elif worker.unwanted:
                worker.unwanted = False
                driver.outbox.append(encode_packet(KILL, number=worker.number))
            elif driver.connected and not worker.sent:
                worker.sent, order = True, worker.order(self._host)
                if len(order) > MAX_PACKET_BYTES:
                    problem = f"the start data of a worker have {len(order)} bytes, with sys.path and the plugins"
                    self._on_end(worker, "", f"{problem}; at most {MAX_PACKET_BYTES} are possible: shorten sys.path")
                    continue
                driver.outbox.append(order)

    def _on_packet(self, driver: DriverProcess, kind: str, fields: dict[str, Any]) -> None:
        if kind == CONNECTED:
            self.nodes, self._host = fields["nodes"], fields["host"]
            started = "has started a local Ray" if self._address == LOCAL else "is connected to the Ray cluster"
            text = "the learner %s %s at %s: driver process %d on node %s (%s); nodes: %s"
            about = fields["version"], fields["address"], driver.pid, fields["node"], self._host, nodes_text(self.nodes)
            log.info(text, started, *about)
            self._settled.set()
            return
        with self._lock:
            worker = next((one for one in self._workers if one.number == fields["number"]), None)
        if worker is None:
            return
        if kind == PLACED:
            worker.node, worker.waiting = fields["node"], ""
            text = "client %s, generation %d, is trained by process %d on %s, node %s of the Ray cluster"
            log.info(text, worker.client_id, worker.start.generation, fields["pid"], fields["host"], worker.node)
        elif kind == WAITING:
            worker.waiting = fields["text"]
            log.warning("client %s waits for a worker: %s", worker.client_id, worker.waiting)
        elif kind == ENDED:
            self._on_end(worker, fields["end"], fields["error"])

    def _on_end(self, worker: RayProcess, end: str, error: str) -> None:
        with self._lock:
            self._workers.remove(worker)
        worker.ended(end, error)

    def _end_workers(self, *, last: bool) -> None:
        """Report to the learner that the workers of a driver have ended, because the driver has ended.

        With `last`, the learner starts no other driver. Then the workers that wait for a node end too, and so does each worker
        that is added later.
        """
        with self._lock:
            self._over = last
            workers = list(self._workers)
        for worker in workers:
            if last or worker.sent:
                self._on_end(worker, self._problem, "")
            else:
                worker.waiting = self._problem
        if last:
            self._settled.set()
