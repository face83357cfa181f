"""The interface of an engine, which starts the worker that trains one client, and of the gateway that the engine works for.

A *worker* runs `LearnerThread`: in a thread or in a process, as the engine decides. The gateway and a worker exchange encoded
messages only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.names import check_name
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import AssignClient, ThreadFailed

if TYPE_CHECKING:
    from rl4sys_zmq.learner.engines.worker_link import WorkerLink

__all__ = ["Engine", "EngineEntry", "GatewayEndpoints", "LearnerThreadHandle", "WorkerAssignment"]


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


class LearnerThreadHandle(Protocol):
    """A handle to one worker: the thread or the process that trains one client. A restart of the client creates another."""

    @property
    def crash(self) -> str:
        """A description of how a worker process ended by itself, without reporting an error; empty in all other cases.

        A new worker can continue from the checkpoint.
        """

    @property
    def failure(self) -> ThreadFailed | None:
        """The error that the worker has reported at its end, if the report does not arrive as a message."""

    @property
    def silent_s(self) -> float:
        """The time since the last sign of life of a worker process, in seconds; 0 for a thread."""

    @property
    def alive(self) -> bool:
        """True while the thread can still train, write files or send messages."""

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue a message for the thread. Return False if its queue is full, or `end` was called before."""

    def end(self, *, replaced: bool) -> None:
        """Tell the thread to finish its queue and end. A second call can add ``replaced=True``.

        Args:
            replaced: True if another thread takes over the client, or the client was removed. This thread then writes no more
                checkpoints.
        """

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread. Any thread can call this.

        Args:
            timeout_s: Longest time to wait, in seconds; None for no limit.

        Returns:
            False if the learner thread is still alive after that time, else True.
        """

    def abort(self) -> bool:
        """End the worker by force if it is a process. Return True if it has ended. Any thread can call this."""

    def describe(self) -> dict[str, Any]:
        """Return the part of the learner's status about this worker, as JSON: ``engine``, and for a process ``pid``."""


class Engine(Protocol):
    """A way to run workers, such as threads or processes. Only the gateway thread uses it."""

    def start(self, assignment: WorkerAssignment) -> LearnerThreadHandle:
        """Start a worker that trains one client, without waiting for it.

        Raises:
            TransportError: If a socket cannot be bound, or no thread or process can be started. The gateway takes any other
                exception, except a ConfigError, as this one. The client then gets another worker after a pause, or fails after
                several attempts.
        """

    def wait_ready(self) -> None:
        """Wait until workers can be started. `Learner.start` calls this in its thread, while the gateway thread runs.

        Raises:
            ConfigError: If what the configuration asks for is impossible.
            TransportError: If what runs the workers cannot be reached.
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
