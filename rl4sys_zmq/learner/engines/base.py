"""The interface of an engine, which starts the worker that trains one client, and of the gateway that the engine works for.

A *worker* runs `LearnerThread`: in a thread or in a process, as the engine decides. The gateway and a worker exchange encoded
messages, but a thread gets segments as the gateway has read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.interfaces import Engine
from rl4sys_zmq.names import check_name
from rl4sys_zmq.wire.thread_messages import AssignClient

if TYPE_CHECKING:
    from rl4sys_zmq.learner.engines.worker_link import WorkerLink

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
            engines, the gateway looks once a second.
    """

    client_id: str
    key: bytes
    engine: str
    assign: AssignClient
    ended: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEndpoints:
    """The gateway, as an engine sees it. Only the gateway thread uses this object.

    Attributes:
        config: The learner's configuration.
        resumed: The clients that were in the run directory at the start of the learner.
        up: The inproc address of a PULL socket of the gateway, for workers in this process.
        listen: Binds a further PULL socket of the gateway to an address, and returns the bound address. Workers send their
            messages there.
        connect_worker: Binds the two sockets of a worker on another machine, with CURVE and a fresh key pair that is accepted
            for this worker only. Arguments: the assignment; the address to bind, such as ``tcp://0.0.0.0:0``; and the host name
            at which the worker reaches this machine, or "" for the host in the address. Returns the connection; its `start` has
            the data for `run_remote_worker`.
    """

    config: LearnerConfig
    resumed: Collection[str]
    up: str
    listen: Callable[[str], str]
    connect_worker: Callable[[WorkerAssignment, str, str], WorkerLink]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """The description of an engine in the registry. The import of its module must be fast and must not import torch.

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
