"""The interface through which the learner's core uses sockets, threads, clocks and disks.

The core is the learner's logic without I/O. The gateway thread (the learner's network thread) implements this interface with
real sockets and threads. The simulator in ``tests/simulation`` implements it without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl4sys_zmq.interfaces import LearnerThreadHandle
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import AssignClient


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

    The journal and the event sink are not part of this object; the core uses them directly.

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
