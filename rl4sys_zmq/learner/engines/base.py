"""The registry of engines, the data with which an engine starts a worker, and the base class of handles to worker processes.

A *worker* runs `LearnerThread`: in a thread or in a process, as the engine decides. The gateway and a worker exchange encoded
messages, but a thread gets segments as the gateway has read them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import Engine
from rl4sys_zmq.names import check_name
from rl4sys_zmq.plugins import Registry
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.wire.thread_messages import AssignClient, ThreadFailed

if TYPE_CHECKING:
    from rl4sys_zmq.learner.engines.worker_link import RemoteWorkerLink

__all__ = ["EngineEntry", "GatewayEndpoints", "WorkerAssignment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """The task of one worker, which trains one client until another worker replaces it.

    Attributes:
        key: The fencing token: random bytes that are the first frame of each message of this worker. The gateway ignores
            messages with the key of an earlier worker. It is a secret.
        engine: The name of the engine, as in the configuration.
        assign: The first message that the worker receives, with the client's configuration and the worker's generation.
        ended: An engine whose workers are processes calls this once, from any thread, after the end of the worker. For other
            engines, the gateway checks once a second if the worker has ended.
    """

    client_id: str
    key: bytes
    engine: str
    assign: AssignClient
    ended: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEndpoints:
    """The addresses and functions of the gateway that engines need. Only the gateway thread uses this object.

    Attributes:
        config: The learner's configuration.
        resumed: The ids of the clients that were in the run directory at the start of the learner.
        up: The inproc address of a PULL socket of the gateway, for workers in this process.
        listen: Binds a further PULL socket of the gateway to an address, and returns the bound address. Workers send their
            messages to this socket.
        connect_worker: Binds the two sockets of a worker on another machine, with CURVE and a fresh key pair that is accepted
            for this worker only. Arguments: the assignment; the address to bind, such as ``tcp://0.0.0.0:0``; and the host name
            at which the worker reaches this machine, or "" for the host in the address. Returns the connection; its `start` has
            the data for `run_remote_worker`.
    """

    config: LearnerConfig
    resumed: Collection[str]
    up: str
    listen: Callable[[str], str]
    connect_worker: Callable[[WorkerAssignment, str, str], RemoteWorkerLink]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """The description of an engine in the registry. The import of a module with an entry must be fast, without torch.

    Attributes:
        name: The name for configurations, such as ``process``.
        factory: Creates the engine of one learner. It raises ConfigError if this machine does not support the engine.
        summary: One line of documentation.
        reserves: True if the engine uses the option ``resources`` of a client.
        isolated: True if each worker has a process of its own.
    """

    name: str
    factory: Callable[[GatewayEndpoints], Engine]
    summary: str = ""
    reserves: bool = False
    isolated: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "engine")


REPLACED_KILL_S = 5.0
"""Time that a replaced worker process has to end by itself. Then it is killed."""

ABORT_WAIT_S = 2.0


class WorkerProcessHandle(Worker):
    """The base class of handles to worker processes. A handle is also the thread that starts the process and waits for its end.

    This class has a part of the methods of `WorkerHandle`, which any thread can call. `stop` kills the process.

    Attributes:
        over: True after the end of the process. `crash` and `failure` are then final.
    """

    def __init__(self, name: str, assignment: WorkerAssignment) -> None:
        super().__init__(f"{name}-{assignment.client_id}")
        self.over = False
        self.crash = ""
        self.failure: ThreadFailed | None = None
        self._assignment = assignment
        self._kill_at = math.inf

    @property
    def alive(self) -> bool:
        return not self.over

    def kill_within(self, seconds: float) -> None:
        """Kill the process if it still runs after so many `seconds`."""
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def abort(self) -> bool:
        self.stop()
        return self.join(ABORT_WAIT_S)


ENGINES = Registry(
    EngineEntry,
    {
        "thread": "rl4sys_zmq.learner.engines.thread:ENTRY",
        "process": "rl4sys_zmq.learner.engines.process:ENTRY",
        "ray": "rl4sys_zmq.remote.ray_engine:ENTRY",
    },
    noun="engine",
    group="rl4sys_zmq.engines",
    key="engine",
    fold=str.lower,
)
"""The registry of all engines, by name.

To add an engine to this package, write a module that contains an `EngineEntry`, and add the location of the entry here.
"""


def check_engines(config: LearnerConfig) -> None:
    entries = {name: ENGINES.get(name) for name in config.engines}
    if config.resources is not None and not any(entry.reserves for entry in entries.values()):
        raise ConfigError(f"resources: the engine {config.engine} does not reserve resources; use engine ray", key="resources")
    for client_id, client in config.clients.items():
        engine = client.engine or config.engine
        if client.resources is not None and not entries[engine].reserves:
            key = f"clients.{client_id}.resources"
            raise ConfigError(f"{key}: the engine {engine} does not reserve resources; use engine ray", key=key)
    if config.ray_address is not None and all(entry.name != "ray" for entry in entries.values()):
        raise ConfigError("ray_address: no client has the engine ray; use engine ray", key="ray_address")
