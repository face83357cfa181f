"""The interface through which the learner's core uses sockets, threads, clocks and disks.

The core is the learner's logic without I/O. The gateway thread (the learner's network thread) implements this interface with
real sockets and threads. The simulator in ``tests/simulation`` implements it without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import AssignClient, ThreadFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A source of the current time.

    Attributes:
        monotonic: Returns the time of a clock that never goes backwards, in seconds. Use it for durations.
        unix: Returns Unix time, in seconds. Use it for records.
    """

    monotonic: Callable[[], float]
    unix: Callable[[], float]


SYSTEM_CLOCK = Clock(monotonic=time.monotonic, unix=time.time)


class LearnerThreadHandle(Protocol):
    """A handle to one worker: the thread or the process that trains one client (a policy).

    A restart of the client creates a new one.
    """

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


class AbandonCheckpointsTask(Protocol):
    """A background task that renames the checkpoints of a removed client, after the client's learner threads have ended.

    The folders are renamed to ``NUMBER.abandoned``, so that no later start resumes from them.

    Attributes:
        done: True if the task has ended, with or without an error.
        problem: The text of the error; empty if there is none.
        count: The number of checkpoints that were renamed.
    """

    done: bool
    problem: str
    count: int

    def stop(self) -> None:
        """Cancel the task while it waits. The checkpoints then stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCallbacks:
    """The functions that the learner's core (its logic without I/O) calls to act on the outside world. No function blocks.

    The journal (the record of accepted segments) and the event sink are not part of this object; the core uses them directly.

    Attributes:
        clock: The clock for measured durations and for the time in records. Each input of the core carries its own time.
        send: Sends a message to one peer. Arguments: the peer's routing id, and the frames.
        publish: Sends a message to all subscribers of a topic. Arguments: the topic, and the frames.
        start_worker: Starts a learner thread (or process). Arguments: the first message that the thread will receive, and a key,
            which becomes the first frame of each message that the thread sends.
        poll_workers: Reads all messages that learner threads have sent so far, and passes them to the core.
        abandon_checkpoints: Starts a `AbandonCheckpointsTask`. Arguments: the client's id, its learner threads, and the folder of
            its checkpoints.
        offer_policy: Gives the inference service a new version of a client's policy. Returns True if the service has ever
            received a call for this client.
        forget_policy: Removes a client's policy from the inference service.
        status: Returns the status document of the learner.
        sender_host: Returns the IP address of the peer whose message is being handled; empty if it is unknown.
    """

    clock: Clock
    send: Callable[[bytes, Sequence[Frame]], SendResult]
    publish: Callable[[bytes, Sequence[Frame]], None]
    start_worker: Callable[[AssignClient, bytes], LearnerThreadHandle]
    poll_workers: Callable[[], None]
    abandon_checkpoints: Callable[[str, Sequence[LearnerThreadHandle], str], AbandonCheckpointsTask]
    offer_policy: Callable[[str, PolicySpec, PolicySnapshot], bool]
    forget_policy: Callable[[str], None]
    status: Callable[[], dict[str, Any]]
    sender_host: Callable[[], str] = lambda: ""
