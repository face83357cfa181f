"""The interface through which the learner's core uses sockets, threads and clocks. The gateway and the simulator implement it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl4sys_zmq.interfaces import WorkerHandle
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import AssignClient

if TYPE_CHECKING:
    from rl4sys_zmq.learner.gateway.client import ClientState


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCallbacks:
    """The functions that the learner's core calls to act on the outside world. No function blocks.

    Attributes:
        monotonic: Returns the time for durations, in seconds. It never goes backwards.
        unix: Returns the Unix time for records, in seconds.
        send: Sends frames to the peer with a routing id.
        publish: Sends frames to all subscribers of a topic.
        start_worker: Starts a worker. Arguments: the worker's first message, and the first frame of all its messages.
        poll_workers: Passes all messages that workers have sent so far to the core.
        abandon_checkpoints: Renames the checkpoints of a removed client to ``NUMBER.abandoned``, after the end of its workers.
            Arguments: client's id, workers, folder of checkpoints. Returns a future for the number of renamed checkpoints.
        offer_policy: Gives the inference service and the evaluator the newest version of a client's policy. Returns True if the
            service has ever received a call for this client.
        forget_policy: Removes a client's policy from the inference service.
        status: Returns the status document of the learner.
        history: Returns the records of the learner's history from a number on, as `History.since` does.
        sender_host: Returns the IP address of the peer whose message is being handled; empty if it is unknown.
    """

    monotonic: Callable[[], float]
    unix: Callable[[], float]
    send: Callable[[bytes, Sequence[Frame]], SendResult]
    publish: Callable[[bytes, Sequence[Frame]], object]
    start_worker: Callable[[AssignClient, bytes], WorkerHandle]
    poll_workers: Callable[[], None]
    abandon_checkpoints: Callable[[str, Sequence[WorkerHandle], str], Future[int]]
    offer_policy: Callable[[ClientState], bool]
    forget_policy: Callable[[str], None]
    status: Callable[[], dict[str, Any]]
    history: Callable[[int, Callable[[str], bool]], tuple[bytes, int]]
    sender_host: Callable[[], str] = lambda: ""
