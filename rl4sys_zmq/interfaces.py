"""The seams of the library. Each class defines one term; mypy checks the classes that implement it.

An actor asks a `Policy` for actions and sends segments (`rl4sys_zmq.values.Segment`) over a `ConnectingSocket`. The gateway
appends them to the `Journal`, acknowledges them, and sends them to the worker of the segment's client. An `Engine` has started
that worker. The worker trains an `Algorithm` and publishes its weights as versions of the policy
(`rl4sys_zmq.values.PolicySnapshot`). An `EventSink` records metrics and events, and a `RunLogger` shows them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

if TYPE_CHECKING:  # also numpy, which a sidecar does not import
    import numpy as np
    from numpy.typing import NDArray

    from rl4sys_zmq.delivery.journal import ClientRow, JournalEntry, JournalHealth, JournalPage, StreamRow
    from rl4sys_zmq.learner.engines.base import WorkerAssignment
    from rl4sys_zmq.learner.run.run_loggers import RunInfo
    from rl4sys_zmq.policies.base import Action
    from rl4sys_zmq.policies.sampler import RandomSource
    from rl4sys_zmq.transports.frames import Frame, Frames, SendResult
    from rl4sys_zmq.transports.monitor import MonitorEvent
    from rl4sys_zmq.values import PolicySnapshot, PolicySpec, Segment
    from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, ThreadFailed, TrainingMetrics, WorkerMessage

__all__ = ["Algorithm", "ConnectingSocket", "Engine", "EventSink", "Journal", "RunLogger", "WorkerHandle", "Policy"]


class Policy(Protocol):
    """An object with fixed weights that chooses actions. Threads share the object, each with its own `RandomSource`.

    A policy can have more methods: ``bind(rng, explore) -> Act``, a faster form of `act`, and the methods of `AssessingPolicy`
    and `ExtraColumnPolicy`.
    """

    @property
    def snapshot(self) -> PolicySnapshot:
        """The weights of this version, which do not change. The policy can use views of their buffer."""

    @property
    def generation(self) -> int:
        """The number of the worker that published the weights. Later workers of the client have higher numbers."""

    @property
    def version(self) -> int:
        """The version: the number of the publication within the generation."""

    def act(
        self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[Action, Action, float]:
        """Choose one action.

        Args:
            observation: ``[*obs]``, finite, or a tree of such arrays; the policy casts it to float32.
            mask: ``[n]`` for ``n`` discrete actions, nonzero for an allowed action; None allows all.
            rng: The source of random numbers.
            explore: True to sample, False for the most probable action.

        Returns:
            The raw action, which is trained on (an int64 scalar with the space's `start` added, or float32 ``[*shape]``); the
            action for the environment; and the log-probability of the raw action, NaN if the policy cannot choose.

        Raises:
            MaskError: If `mask` forbids every action.
        """

    def act_batch(
        self, observations: NDArray[Any], masks: NDArray[Any] | None, rng: RandomSource, explore: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
        """Choose ``N`` actions with one forward pass. Arguments and results are those of `act`, with an axis of ``N`` in front.

        The random draws differ from those of ``N`` calls of `act`.
        """


@runtime_checkable
class Algorithm(Protocol):
    """A learning rule for one policy. The learner thread calls `observe` with a segment, then `update` until it returns None.

    `rl4sys_zmq.algorithms` has the optional methods, such as those of `UndoableAlgorithm`.

    Attributes:
        kind: ``"onpolicy"`` if a segment is used by the next update only; ``"offpolicy"`` if its steps go into a replay.
        rollout_length: Largest number of steps that an actor should put into one segment.
        publish_every_updates: Number of updates between published versions. The configuration can override this number and
            `max_policy_lag`.
        max_policy_lag: Largest number of versions by which a segment can be behind the newest; None for no limit.
    """

    kind: ClassVar[str]
    rollout_length: int
    publish_every_updates: int
    max_policy_lag: int | None

    def spec(self) -> PolicySpec:
        """Return the specification from which actors build the policy. Every call returns the same specification."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Accept one segment for training. The caller has checked that it fits the spaces and that its numbers are finite.

        Log-probabilities of overridden actions (`Segment.source`) can be NaN or infinite. `correct` is True for a segment over
        the limit ``max_policy_lag``: the algorithm then corrects it by importance weights.
        """

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one update if there is enough data, and return its metrics by TensorBoard tag; otherwise return None.

        With `partial`, no more data will come for this batch. An on-policy algorithm then trains on what it has, at least one
        step.
        """

    def demand(self) -> int:
        """Return how many more steps, at least 0, actors may collect now for the next policy version."""

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the policy's weights: the tensors of ``spec().tensors``, by name, each in its dtype."""

    def state(self) -> dict[str, Any]:
        """Return copies of everything that is needed to continue exactly: tensors, optimizer, random state, replay, schedules.

        The state consists of dicts (keys: str or int), lists, tuples, torch tensors, numpy arrays, numbers, str, bytes, bool,
        None and `rl4sys_zmq.replay.StatePiece`. Segments that wait for an on-policy update are not part of the state: the
        journal delivers them again.
        """

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned under equal parameters, and drop waiting segments.

        The same further segments then give bit-identical weights.
        """


class Engine(Protocol):
    """A way to run workers, such as threads or processes. Only the gateway thread uses it."""

    def start(self, assignment: WorkerAssignment) -> WorkerHandle:
        """Start the worker of the client in `assignment`, without waiting for it.

        On a TransportError, the gateway tries again after a pause.
        """

    def wait_ready(self) -> None:
        """Wait until workers can be started. `Learner.start` calls this in its own thread.

        Raises:
            ConfigError, TransportError: If no worker can be started.
        """

    def close(self) -> None:
        """Release what the engine itself holds, such as a folder. Call this after the end of all workers."""


class WorkerHandle(Protocol):
    """The gateway's handle to one worker, which trains one client. A restart of the client creates a new one."""

    @property
    def crash(self) -> str:
        """The way in which a worker process ended by itself without reporting an error, as text; empty if it did not."""

    @property
    def failure(self) -> ThreadFailed | None:
        """The error that the worker reported at its end, unless the report arrives as a message."""

    @property
    def silent_s(self) -> float:
        """The time since the last sign of life of a worker process, in seconds; 0 for a thread."""

    @property
    def alive(self) -> bool:
        """True while the worker can still train, write files or send messages."""

    def send(self, message: WorkerMessage) -> bool:
        """Queue a message for the worker. Return False if the worker's queue is full, or `end` was called before."""

    def end(self, *, replaced: bool) -> None:
        """Tell the worker to finish its queue and end.

        With `replaced`, which a second call can add, the worker writes no more checkpoints.
        """

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, in any thread. Return False if the worker is still alive after `timeout_s` seconds."""

    def abort(self) -> bool:
        """End the worker by force if it is a process, in any thread. Return True if it has ended."""

    def describe(self) -> dict[str, Any]:
        """Return the part of the learner's status about this worker, as JSON: ``engine``, and for a process ``pid``."""


class Journal(Protocol):
    """The record of accepted segments. The learner acknowledges a segment after the journal has committed it.

    One thread makes all calls except `stop` and `join`. No call waits for a disk. The calls take effect in their order.

    Attributes:
        journal_id: The number of this journal, from 1 to 2^63 - 1. Sequence numbers of two journals cannot be compared.
        durable: True if the journal survives a restart of the learner.
    """

    journal_id: int
    durable: bool

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Append entries. Each entry advances its stream's sequence number, and the totals of stream and client."""

    def committed(self) -> list[JournalEntry | JournalPage]:
        """Return the entries that became durable and the pages that were read since the last call, in order."""

    def put_client(self, row: ClientRow) -> None:
        """Add the record of a client, or change the settings and the generation of a known one. Its totals stay the same."""

    def put_stream(self, row: StreamRow) -> None:
        """Add the record of a stream, or update it after the actor opened a session. Sequence numbers never decrease."""

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Remove a stream and its entries, but keep the totals. With `expires`, raise `ClientRow.expired` to `origin`."""

    def drop_client(self, client_id: str) -> None:
        """Remove all data of a client: its record, its streams and its entries."""

    def drop_entries(self, client_id: str) -> None:
        """Remove all entries of a client that were appended before this call. Totals and sequence numbers stay the same."""

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Release the streams of an actor that an operator dropped: any later start of an actor can use the id."""

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Count segments as accepted that an earlier journal acknowledged and this one lacks, and put `stream`."""

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Remove the entries whose segments are all below the mark of their stream.

        A stream's key in `marks` is (actor_id, origin).
        """

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Request stored entries of a client, from the first row after `after_row` on. `committed` returns the `JournalPage`.

        The page has the same `token`. Its entries have at most `max_bytes` bytes, but a longer first entry is alone in it.
        """

    def state(self) -> JournalHealth:
        """Return a report of the journal's condition."""

    def queued(self, client_id: str) -> int:
        """Return the number of a client's operations that are not done. At 0, all its entries are committed."""

    def stop(self) -> None:
        """Make the journal end after one attempt to commit all queued operations."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the journal to end. Return False if it has not ended after `timeout_s` seconds."""


class ConnectingSocket(Protocol):
    """A socket of an actor, in this process or in a sidecar. It carries frames, and knows neither messages nor arrays."""

    def send(self, frames: Frames) -> SendResult:
        """Queue one message, as a whole or not at all, without blocking."""

    def recv(self, max_frames: int = ...) -> list[Frame] | None:
        """Receive one message without blocking. Return None if no message is waiting."""

    def subscribe(self, prefix: bytes) -> None:
        """Subscribe to all messages whose first frame starts with `prefix`. Only for a SUB socket."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Cancel one earlier `subscribe` of the same prefix."""

    def events(self) -> list[MonitorEvent]:
        """Return the events of a DEALER's connection since the last call; empty if a sidecar holds the socket."""

    def close(self) -> None:
        """Close the socket. Messages that are still queued are discarded."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class EventSink(Protocol):
    """A record of metrics and events for people to read. No method blocks."""

    def metrics(self, client_id: str, metrics: TrainingMetrics) -> None:
        """Record the training metrics of a client: numbers by name, and the episodes that ended."""

    def event(self, name: str, /, **fields: Any) -> None:
        """Record an event, such as the start of the learner. The fields are JSON values."""

    def dead_letter(self, client_id: str, letter: QuarantinedSegment) -> None:
        """Record a quarantined segment."""

    def forget(self, client_id: str) -> None:
        """Release everything that belongs to a removed client, such as open files."""


class RunLogger(Protocol):
    """A place that shows the figures of a learner's run, such as W&B. The option ``loggers`` names the class.

    Each logger has a thread, which creates it without arguments and makes all calls. A call can block or raise: the learner goes
    on, counts the errors, and drops what the thread is too slow for.
    """

    def open(self, run: RunInfo) -> None:
        """Begin the run or, after a restart of the learner, continue it. If this raises, no other call follows."""

    def scalars(self, client_id: str, step: int, values: Mapping[str, float], at_unix_s: float) -> None:
        """Record figures of a client by tag. `step` is the number of environment steps; it decreases after a rollback."""

    def event(self, name: str, fields: Mapping[str, Any], at_unix_s: float) -> None:
        """Record an event of the run, such as ``alarm``. ``client_ready`` has the ``parameters`` of a client's algorithm."""

    def artefact(self, client_id: str, path: Path, at_unix_s: float) -> None:
        """Keep a copy of a policy's folder: ``best`` after a better evaluation, ``final`` at the end of the learner."""

    def close(self) -> None:
        """End the run. This is the last call, except after a kill."""
