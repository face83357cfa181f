"""The engine ``ray``: each client is trained in an actor of a Ray cluster, on any of its nodes.

This module and the gateway do not import Ray. A separate process, the *driver* (`ray_driver`), is connected to Ray. It creates
the actors and watches them. A thread of the learner (`ray_connection`) starts the driver, and exchanges packets with it.

Ray places a worker, and reports its end. It does not restart it: a worker that Ray revived would have the key of a worker that
was replaced. The learner starts another one with a new key, as for a process.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl4sys_zmq.config import ResourcesConfig
from rl4sys_zmq.config.learner import ray_address
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.client import QUEUE_MESSAGES
from rl4sys_zmq.learner.engines.base import EngineEntry, GatewayEndpoints, WorkerAssignment
from rl4sys_zmq.learner.engines.packets import END, REPLACE, STOP, ProcessStart
from rl4sys_zmq.learner.engines.ray_connection import RayConnectionThread, RayWorkerRecord
from rl4sys_zmq.learner.engines.ray_packets import COMMAND, LOCAL
from rl4sys_zmq.learner.engines.ray_resources import placement_problem, ray_amounts
from rl4sys_zmq.plugins import imported_plugins
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Frame, StopThread, ThreadFailed

__all__ = ["ENTRY", "RayEngine", "RayWorkerHandle"]

REPLACED_KILL_S = 5.0
"""Time that a replaced worker has to end by itself, in seconds. Then it is ended by force."""

ABORT_WAIT_S = 2.0
LINGER_S = 30.0


class RayEngine:
    """The engine that trains each client (a policy with its learner) in an actor of a Ray cluster. See the module's text."""

    def __init__(self, gateway: GatewayEndpoints) -> None:
        """Start the thread that connects to Ray, without waiting for it.

        Raises:
            ConfigError: If Ray is not installed, or the environment variable ``RAY_ADDRESS`` is invalid.
            TransportError: If the sockets cannot be bound.
        """
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("engine: ray needs ray, which is not installed: pip install 'rl4sys-zmq[ray]'", key="engine")
        self._config, self._resumed = gateway.config, gateway.resumed
        given = os.environ.get("RAY_ADDRESS")
        address = self._config.ray_address or (check_value("RAY_ADDRESS", given, ray_address) if given else LOCAL)
        self._placed: set[str] = set(gateway.resumed)
        self._numbers = itertools.count(1)
        self._folder = Path(tempfile.mkdtemp(prefix="rl4sys-ray-"))
        self._up = gateway.listen(f"ipc://{self._folder}/up")
        self._connection = RayConnectionThread(address)
        self._connection.start()

    def start(self, assignment: WorkerAssignment) -> RayWorkerHandle:
        """Start a worker that trains one client, as soon as there is a connection to Ray and a node for it."""
        client_id = assignment.client_id
        number = next(self._numbers)
        down = f"ipc://{self._folder}/{number}"
        start = ProcessStart(
            client_id=client_id,
            key=assignment.key.hex(),
            down=down,
            up=self._up,
            plugins=imported_plugins(),
            path=[entry or os.getcwd() for entry in sys.path],
            log_level=logging.getLogger("rl4sys_zmq").getEffectiveLevel(),
        )
        worker = RayWorkerRecord(
            number=number,
            client_id=client_id,
            wanted=ray_amounts(self._resources(client_id)),
            waits=client_id in self._placed,
            start=asdict(start),
            ended=assignment.ended,
        )
        handle = RayWorkerHandle(worker, self._connection, down)
        self._placed.add(client_id)
        return handle

    def wait_ready(self) -> None:
        """Wait until the driver is connected to Ray, and check the resources of the clients in the configuration.

        Raises:
            ConfigError: If no node has the resources of a client. A client of an earlier run waits for a node instead.
            TransportError: If the cluster cannot be reached, or has another version of Ray or of Python.
        """
        self._connection.wait_connected()
        for client_id, entry in self._config.clients.items():
            if (entry.engine or self._config.engine).lower() == ENTRY.name and client_id not in self._resumed:
                problem = placement_problem(ray_amounts(self._resources(client_id)), self._connection.nodes)
                if problem:
                    key = f"clients.{client_id}.resources"
                    raise ConfigError(f"{key}: {problem}; change the resources, or add a node to the cluster", key=key)

    def close(self) -> None:
        """End the driver, and with it a local Ray."""
        self._connection.stop()
        self._connection.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _resources(self, client_id: str) -> ResourcesConfig:
        return self._config.client(client_id).resources or ResourcesConfig()


ENTRY = EngineEntry(name="ray", factory=RayEngine, summary="an actor of a Ray cluster, on any of its nodes", reserves=True)


class RayWorkerHandle:
    """A handle to a worker in a Ray cluster, with the PUSH socket that sends messages to it.

    It implements `LearnerThreadHandle`. Only the gateway (the learner's network thread) uses this object, except that any
    thread can call `alive`, `join` and `abort`.
    """

    def __init__(self, worker: RayWorkerRecord, connection: RayConnectionThread, down: str) -> None:
        self._worker, self._connection = worker, connection
        self._push: Socket | None = Socket.push(bind=down, hwm=QUEUE_MESSAGES, linger_s=LINGER_S)
        connection.add(worker)

    @property
    def alive(self) -> bool:
        """True from the creation of this object to the end of the worker."""
        return not self._worker.over.is_set()

    @property
    def crash(self) -> str:
        """A description of how the worker ended by itself, without reporting an error; empty in all other cases."""
        return self._worker.crash

    @property
    def failure(self) -> ThreadFailed | None:
        """The error that ended the worker, if it has reported one."""
        return self._worker.failure

    @property
    def silent_s(self) -> float:
        """The time since the last sign of life of the worker, in seconds; 0 until the first, and after its end."""
        return max(0.0, time.monotonic() - self._worker.alive_at) if self.alive else 0.0

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue a message for the worker.

        Return False if the queue is full, the worker is not connected so far, or `end` was called before.
        """
        return self._push is not None and bool(self._push.send(frames))

    def end(self, *, replaced: bool) -> None:
        """Tell the worker to train on its queued messages and end.

        Args:
            replaced: True if another worker takes over the client, or the client was removed. This worker then writes no more
                checkpoints, and is ended by force if it has not ended after `REPLACED_KILL_S` seconds.
        """
        if self._push is not None:
            queued = bool(self._push.send(encode(StopThread())))
            self._push.close()
            self._push = None
            self._connection.tell(self._worker, COMMAND, command=END if queued else STOP)
        if replaced:
            self._connection.tell(self._worker, COMMAND, command=REPLACE)
            self._worker.kill_at = min(self._worker.kill_at, time.monotonic() + REPLACED_KILL_S)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the worker. Return False if it still runs after `timeout_s` seconds. Any thread can call this."""
        return self._worker.over.wait(timeout_s)

    def abort(self) -> bool:
        """End the worker by force. Return True if it has ended. Any thread can call this."""
        self._connection.kill(self._worker)
        return self.join(ABORT_WAIT_S)

    def describe(self) -> dict[str, Any]:
        """Return the part of the learner's status about this worker, as JSON.

        It has the name of the engine; the Ray ``node``, its ``host`` and the process id (None until the worker is placed);
        ``waiting``, a text about what the worker waits for; the time since it last looked for messages (``busy_s``), and the
        time since its last sign of life (``silent_s``), both in seconds.
        """
        worker = self._worker
        return {
            "engine": ENTRY.name,
            "node": worker.node,
            "host": worker.host,
            "pid": worker.pid,
            "waiting": worker.waiting,
            "busy_s": round(worker.busy_s, 3),
            "silent_s": round(self.silent_s, 3),
        }
