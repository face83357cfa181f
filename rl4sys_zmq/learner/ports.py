"""The ports of the learner's core: the narrow calls through which it reaches sockets, threads, clocks and disks.

The gateway thread gives the core ports with sockets and threads behind them; the simulator gives it ports of its own.
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
        monotonic: Return seconds that only grow.
        unix: Return Unix time, in seconds.
    """

    monotonic: Callable[[], float]
    unix: Callable[[], float]


SYSTEM_CLOCK = Clock(monotonic=time.monotonic, unix=time.time)


class WorkerPort(Protocol):
    """One life of a client's learner thread."""

    @property
    def alive(self) -> bool:
        """Whether it may still work, write files or speak."""

    def send(self, frames: Sequence[Frame]) -> bool:
        """Queue a message for it, in order; return False if its queue is full, or if it was told to end."""

    def end(self, *, replaced: bool) -> None:
        """Tell it to finish what it has been given and to end. A second call may add `replaced`.

        Args:
            replaced: Another life takes its place: it ends as soon as it can, and writes no more checkpoints.
        """

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; return False if it has not come after `timeout_s` seconds. From any thread."""


class AbandonTask(Protocol):
    """A task outside the core: wait for the end of a client's workers, then put their checkpoints aside.

    Attributes:
        done: It has ended.
        problem: What went wrong; empty if nothing did.
        count: How many checkpoints were put aside.
    """

    done: bool
    problem: str
    count: int

    def stop(self) -> None:
        """Give up; the checkpoints stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything that the core does to the world outside, apart from the journal and the sink of events.

    Attributes:
        clock: The time. Inputs carry their own; this one measures durations and stamps what is made in between.
        send: Send a message to an actor, by its peer, without waiting.
        publish: Send a message to the subscribers of a topic, without waiting.
        start_worker: Start a learner thread for a client, which puts the given key before all that it says.
        hear_workers: Hand in what the workers have said so far, at once.
        abandon_checkpoints: Wait for the end of a client's workers elsewhere, then abandon the checkpoints in a folder.
        offer_policy: Give the inference service a version; return whether callers act by that client's policy.
        forget_policy: Take a client's policy out of the inference service.
        status: Return the document that answers a status request.
    """

    clock: Clock
    send: Callable[[bytes, Sequence[Frame]], SendResult]
    publish: Callable[[bytes, Sequence[Frame]], None]
    start_worker: Callable[[str, bytes], WorkerPort]
    hear_workers: Callable[[], None]
    abandon_checkpoints: Callable[[str, Sequence[WorkerPort], str], AbandonTask]
    offer_policy: Callable[[str, PolicySpec, PolicySnapshot], bool]
    forget_policy: Callable[[str], None]
    status: Callable[[], dict[str, Any]]
