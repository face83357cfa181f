"""The ports of the learner's core: the interface through which it uses sockets, threads, clocks and disks.

The gateway thread implements the ports with sockets and threads. The simulator in ``tests/simulation`` has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.wire.messages import Frame

__all__ = ["SYSTEM_CLOCK", "Clock", "Ports", "WorkerPort", "AbandonTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A source of time.

    Attributes:
        monotonic: Returns monotonic time, in seconds.
        unix: Returns Unix time, in seconds.
    """

    monotonic: Callable[[], float]
    unix: Callable[[], float]


SYSTEM_CLOCK = Clock(monotonic=time.monotonic, unix=time.time)


class WorkerPort(Protocol):
    """One life of a client's learner thread."""

    @property
    def alive(self) -> bool:
        """True while it can still work, write files or send messages."""

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue a message for it, in order. Return False if its queue is full or it was told to end."""

    def end(self, *, replaced: bool) -> None:
        """Tell it to finish its queue and end. A second call can add `replaced`.

        Args:
            replaced: Another life replaces it: it ends as soon as it can and writes no more checkpoints.
        """

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end, and return False if it is still alive after `timeout_s` seconds. Any thread can call this."""


class AbandonTask(Protocol):
    """A task outside the core: wait for the end of a client's workers, then put its checkpoints aside.

    Attributes:
        done: True if the task has ended.
        problem: The error, or empty.
        count: The number of checkpoints that were put aside.
    """

    done: bool
    problem: str
    count: int

    def stop(self) -> None:
        """Cancel the task. The checkpoints stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All effects of the core on the outside, except those on the journal and the event sink. No function blocks.

    Attributes:
        clock: The clock. Inputs carry their own time; this one measures durations and stamps records.
        send: Sends a message to a peer.
        publish: Sends a message to the subscribers of a topic.
        start_worker: Starts a learner thread for a client. The thread puts the given key in front of its messages.
        poll_workers: Passes the messages that the workers have sent so far to the core, before it returns.
        abandon_checkpoints: Starts a task that waits for the end of a client's workers and puts aside the checkpoints in a
            folder.
        offer_policy: Gives the inference service a version; returns True if a caller has used that client's policy.
        forget_policy: Removes a client's policy from the inference service.
        status: Returns the document that answers a status request.
    """

    clock: Clock
    send: Callable[[bytes, Sequence[Frame]], SendResult]
    publish: Callable[[bytes, Sequence[Frame]], None]
    start_worker: Callable[[str, bytes], WorkerPort]
    poll_workers: Callable[[], None]
    abandon_checkpoints: Callable[[str, Sequence[WorkerPort], str], AbandonTask]
    offer_policy: Callable[[str, PolicySpec, PolicySnapshot], bool]
    forget_policy: Callable[[str], None]
    status: Callable[[], dict[str, Any]]
