"""The interface of an engine, which starts the worker that trains one client, and of the gateway that the engine works for.

A *worker* runs `LearnerThread`: in a thread or in a process, as the engine decides. The gateway (the learner's network thread)
and a worker exchange encoded messages only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rl4sys_zmq.learner.core_callbacks import LearnerThreadHandle
from rl4sys_zmq.names import check_name

__all__ = ["Engine", "EngineEntry", "GatewayEndpoints", "WorkerAssignment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """The task of one worker, which trains one client (a policy with its learner) until another worker replaces it.

    Attributes:
        client_id: The client.
        key: The fencing token: random bytes that are the first frame of each message of this worker. The gateway (the learner's
            network thread) ignores messages with the key of an earlier worker. It is a secret.
        ended: An engine whose workers are processes calls this once, from any thread, after the end of the worker. For other
            engines, the gateway looks once a second.
    """

    client_id: str
    key: bytes
    ended: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEndpoints:
    """The gateway (the learner's network thread), as an engine sees it. Only the gateway thread uses this object.

    Attributes:
        up: The inproc address of a PULL socket of the gateway, for workers in this process.
        listen: Binds a further PULL socket of the gateway to an address, and returns the bound address. Workers send their
            messages there.
    """

    up: str
    listen: Callable[[str], str]


class Engine(Protocol):
    """A way to run workers, such as threads or processes. Only the gateway thread (the learner's network thread) uses it."""

    def start(self, assignment: WorkerAssignment) -> LearnerThreadHandle:
        """Start a worker that trains one client, without waiting for it.

        Raises:
            TransportError: If a socket cannot be bound, or no process can be started.
        """

    def close(self) -> None:
        """Release what the engine itself holds, such as a folder. Call this after the end of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """The description of an engine in the registry. The import of its module must be fast and must not import torch.

    Attributes:
        name: The name for configurations, such as ``process``.
        factory: Creates the engine of one learner. It raises ConfigError if this machine does not support the engine.
        summary: One line of documentation.
        isolated: True if each worker has a process of its own.
    """

    name: str
    factory: Callable[[GatewayEndpoints], Engine]
    summary: str = ""
    isolated: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "engine")
