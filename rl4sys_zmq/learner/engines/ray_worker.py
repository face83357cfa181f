"""The Ray actor that trains one client: the worker of the engine ``ray``, in a process of its own on a node of the cluster.

The driver process (`ray_driver`) creates it and calls its methods. Ray's own channel carries only these calls. Segments, weights
and checkpoints do not pass through Ray.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.packets import END, REPLACE, STOP, ProcessStart
from rl4sys_zmq.learner.learner_thread import LearnerThread
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.transports.context import context, open_sockets
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.messages import ThreadFailed
from rl4sys_zmq.wire.prefix import MAJOR, MINOR

__all__ = ["RayWorker", "own_versions"]

log = logging.getLogger(__name__)

MAX_LOG_CHARS = 16_000
MAX_RECORDS = 1000
"""Largest number of log records that wait for the next call of `RayWorker.look`. Of more, the oldest are dropped."""


def own_versions() -> dict[str, str]:
    """Return the versions that must be equal in the learner and in each of its workers, by name."""
    return {"rl4sys-zmq": package_version(), "wire": f"{MAJOR}.{MINOR}"}


class _RecordKeeper(logging.Handler):
    """A log handler that keeps records as ``[name, level, text]`` until they are fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.records: collections.deque[list[Any]] = collections.deque(maxlen=MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append([record.name, record.levelno, self.format(record)[:MAX_LOG_CHARS]])


class RayWorker:
    """The object inside a Ray actor. Ray calls its methods in several threads, so that `run` does not block the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: list[str] = []
        self._learner: LearnerThread | None = None
        self._log = _RecordKeeper()

    def describe(self) -> dict[str, Any]:
        """Return the node, the host and the process of this actor, and its versions (`own_versions`)."""
        import ray

        return {
            "node": ray.get_runtime_context().get_node_id(),
            "host": ray.util.get_node_ip_address(),
            "pid": os.getpid(),
            "versions": own_versions(),
        }

    def run(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Train the client until the gateway (the learner's network thread) ends the worker, or the algorithm raises.

        Args:
            fields: The fields of `ProcessStart`.

        Returns:
            The result of `look`, with the ``error`` that ended the training and its ``trace``; empty texts without an error.
        """
        start = ProcessStart(**fields)
        sys.path += [entry for entry in start.path if entry not in sys.path]
        root = logging.getLogger()
        root.addHandler(self._log)
        logging.getLogger("rl4sys_zmq").setLevel(start.log_level)
        logging.captureWarnings(True)
        try:
            import_plugins(start.plugins)
        except ConfigError as exc:
            return self.look() | {"error": str(exc), "trace": ""}
        name = f"rl4sys-learner-{start.client_id}"
        learner = LearnerThread(name, bytes.fromhex(start.key), start.down, start.up, remote=True)
        with self._lock:
            self._learner = learner
            commands, self._commands = self._commands, []
        for command in commands:
            self.command(command)
        learner.run()
        if not open_sockets():
            context().term()  # this sends the last messages
        failure = learner.failure or ThreadFailed("", "")
        return self.look() | {"error": failure.error, "trace": failure.trace}

    def command(self, command: str) -> None:
        """Follow a command of the learner: one of `END`, `STOP` and `REPLACE`, as for a worker process."""
        with self._lock:
            learner = self._learner
            if learner is None:
                self._commands.append(command)
                return
        if command == END:
            learner.expect_end()
        elif command == STOP:
            learner.stop()
        elif command == REPLACE:
            learner.replace()

    def look(self) -> dict[str, Any]:
        """Return a sign of life: the time since the training last looked for messages, in seconds, and new log records."""
        learner = self._learner
        records = [self._log.records.popleft() for _ in range(len(self._log.records))]
        return {"busy_s": 0.0 if learner is None else learner.busy_s, "records": records}
