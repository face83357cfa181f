"""The messages inside a learner: one dataclass for each kind. An actor never imports this module.

The gateway and a learner thread exchange them over PUSH and PULL. The base class of a message gives its direction. A field
named ``body`` holds the frames after the first one. Fields of messages in `rl4sys_zmq.wire.messages` mean the same here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl4sys_zmq.wire.batch import SegmentBatchReader
from rl4sys_zmq.wire.codec import decode_as, encode, kinds_of
from rl4sys_zmq.wire.frames import HEADER, HeaderLimits
from rl4sys_zmq.wire.messages import Document, Frame


class ToLearnerThread:
    """Messages from the gateway to a learner thread."""

    __slots__ = ()


class FromLearnerThread:
    """Messages from a learner thread to the gateway. They can be long, because some list the streams of all actors."""

    __slots__ = ()
    LIMITS: ClassVar[HeaderLimits] = HeaderLimits(1 << 26, 1 << 20)


class RemoteWorkerControl(ToLearnerThread):
    """Messages from the gateway to a remote worker itself, not to the learner thread that runs in the worker."""

    __slots__ = ()


class FromRemoteWorker(FromLearnerThread):
    """Messages from a remote worker itself, not from its learner thread, to the gateway."""

    __slots__ = ()
    LIMITS = HEADER


@dataclass(frozen=True, slots=True)
class AssignClient(ToLearnerThread):
    """The first message to a learner thread: the client that it trains, with all settings.

    Attributes:
        client_id, policy_id: The name of the client, and 8 bytes that identify its policy.
        generation: The generation of all versions that this thread publishes.
        algorithm_name, parameters, seed: The algorithm, its parameters, and the seed of its random numbers.
        observation_space, action_space, demonstrations: The spaces, and `DemonstrationsConfig` or nothing, in JSON form.
        max_policy_lag: Largest policy lag of a segment that is trained on unchanged; -1 for the algorithm's own limit.
        on_lag: Treatment of segments with a larger lag: ``drop`` or ``correct``.
        pacing_lag: Number of batches that actors can collect ahead of the training; -1 for the default of the algorithm's kind.
        publish_every_updates: Updates between two versions, or 0 for the algorithm's own number.
        checkpoints: Folder of this client's checkpoints. The thread resumes from the newest. If empty, no checkpoints are kept.
        checkpoint_every_s: Time between two checkpoints, in seconds.
        journal_id: Id of the learner's journal. The thread stores it in the checkpoints.
        wire_dtype, weights_level: The number format and the compression of published weights (`WeightsConfig`).
        max_magnitude, max_reward: Largest absolute values: of an observation or a raw action without bounds; of a reward.
        torch_threads: Number of threads of torch in the learner thread; 0 leaves it unchanged.
        init: File or folder with the weights with which a client without a checkpoint starts; empty for random weights.
        device: ``cpu``, ``cuda``, ``cuda:N`` or ``auto``.
        tf32: True to let GPUs multiply float32 matrices with the precision of TensorFloat-32.
        learners, max_parameters: Number of ranks, and the largest number of parameters of a policy.
    """

    KIND: ClassVar[int] = 32
    client_id: str
    policy_id: bytes
    generation: int
    algorithm_name: str
    parameters: Document
    observation_space: Document
    action_space: Document
    seed: int
    max_policy_lag: int
    on_lag: str
    pacing_lag: int
    publish_every_updates: int
    max_parameters: int
    checkpoints: str
    checkpoint_every_s: float
    journal_id: int
    wire_dtype: str = "fp32"
    weights_level: int = 1
    max_magnitude: float = 1e15
    max_reward: float = 1e12
    torch_threads: int = 0
    init: str = ""
    device: str = "cpu"
    tf32: bool = False
    learners: int = 1
    demonstrations: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeliverSegments(ToLearnerThread):
    """A message with segments of one actor, for training.

    Attributes:
        actor_id, origin: The stream of the segments.
        skip: Number of segments at the beginning of the message that the thread has received before.
        refused: Number of the remaining segments that the gateway has refused. The thread finds the same ones by the same
            check.
        body: The frames of the actor's `Submit`, as they were received.
        batch: The gateway's reader of the segments; None in another process, which reads `body` itself.
        joined: The number of messages that were joined to this one. It does not travel, like `batch`.
    """

    KIND: ClassVar[int] = 33
    actor_id: str
    origin: int
    skip: int
    refused: int
    body: tuple[Frame, ...]
    batch: SegmentBatchReader | None = field(default=None, repr=False, compare=False)
    joined: int = field(default=1, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class StopThread(ToLearnerThread):
    """A request to a learner thread to process the messages that it has received, and then to end."""

    KIND: ClassVar[int] = 34


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(ToLearnerThread):
    """A request to a learner thread to write a checkpoint now. The answer is `CheckpointResult`.

    Attributes:
        token: A number, which the answer repeats.
        partial: True to train first on the received data that does not fill a batch.
    """

    KIND: ClassVar[int] = 35
    token: int
    partial: bool


@dataclass(frozen=True, slots=True)
class StreamEnded(ToLearnerThread):
    """A report that the journal has no segments of a stream any more. Checkpoints then leave out the stream's mark.

    Attributes:
        actor_id, origin: The actor of the stream, and the incarnation that began it.
    """

    KIND: ClassVar[int] = 36
    actor_id: str
    origin: int


@dataclass(frozen=True, slots=True)
class ChangeParameters(ToLearnerThread):
    """New parameters of the algorithm, from the next update on.

    Attributes:
        parameters: All parameters of the algorithm by name, also unchanged ones.
    """

    KIND: ClassVar[int] = 37
    parameters: Document


@dataclass(frozen=True, slots=True)
class ChangeWeightsLevel(ToLearnerThread):
    """Another level of the encoding of weights, from the next version on.

    Attributes:
        level: 0: all weights. 1: the difference from the version before.
    """

    KIND: ClassVar[int] = 38
    level: int


@dataclass(frozen=True, slots=True)
class ThreadReady(FromLearnerThread):
    """The report of a learner thread that it has built its algorithm and restored its state. A `PolicyPublished` follows.

    Attributes:
        spec: The policy spec (`rl4sys_zmq.wire.specs`).
        kind: ``onpolicy`` or ``offpolicy``.
        rollout_length: Longest segment that an actor should send, in steps.
        max_policy_lag: Largest policy lag of a segment that is trained on unchanged, in versions; -1 for no limit.
        checkpoint: Number of the checkpoint that the thread resumed from; 0 if it resumed from none.
        marks: A list ``[actor_id, origin, next_seq, verdicts]`` for each stream. The restored state includes the segments below
            ``next_seq``; ``verdicts`` counts them by verdict.
        verdicts: Number of the client's segments in the restored state, by verdict.
        damaged: Names of newer checkpoints that failed verification.
        body: The blob of the spec (bytes such as an ONNX graph); no frame without a blob.
        steps: Number of environment steps that the restored state has observed.
        updates: Number of updates that led to the restored state.
        episodes: Number of episodes that ended in these steps.
        recent: A list ``[return, length]`` for each of the latest of these episodes, at most 100.
        devices: The device of each rank, such as ``cpu``.
    """

    KIND: ClassVar[int] = 48
    spec: Document
    kind: str
    rollout_length: int
    max_policy_lag: int
    checkpoint: int
    marks: list[Any]
    verdicts: Document
    damaged: list[Any]
    body: tuple[Frame, ...] = field(default=(), repr=False)
    steps: int = 0
    updates: int = 0
    episodes: int = 0
    recent: list[Any] = field(default_factory=list)
    devices: list[Any] = field(default_factory=lambda: ["cpu"])


@dataclass(frozen=True, slots=True)
class PolicyPublished(FromLearnerThread):
    """A new version of the policy for the actors.

    Attributes:
        version: Number of the version, without gaps. The first is 0 for a new policy, else the checkpoint's version.
        digest: Checksum (xxh3-64) of all weights.
        body: Three frames: all weights, the weights header, and the payload for the actors (a diff or all weights). The first
            frame has the float32 tensors in the order of the spec, then the bytes of the other tensors. If payload and first
            frame are equal, the payload is left out.
    """

    KIND: ClassVar[int] = 49
    version: int
    digest: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class SegmentVerdicts(FromLearnerThread):
    """The verdict of a learner thread for segments of one actor.

    Attributes:
        actor_id, origin: The stream.
        ranges: Pairs ``[first, end]`` of sequence numbers, ``end`` exclusive.
        verdict: One of the values of `Verdict`.
        reason: The reason for the verdict, for a person.
        replaces: The earlier verdict on the same segments; empty if they had none.
    """

    KIND: ClassVar[int] = 50
    actor_id: str
    origin: int
    ranges: list[Any]
    verdict: str
    reason: str = ""
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class DataDemand(FromLearnerThread):
    """The data that a learner thread has received so far, and the data that it can still use.

    Attributes:
        usable_steps: Number of steps that the thread can use in addition to those it has received.
        messages: Number of `DeliverSegments` that the thread has received. The gateway knows which segments they contained.
        min_version: Lowest policy version with which actors should start a segment.
    """

    KIND: ClassVar[int] = 51
    usable_steps: int
    messages: int
    min_version: int


@dataclass(frozen=True, slots=True)
class ThreadFailed(FromLearnerThread):
    """The last message of a learner thread that an exception has ended.

    Attributes:
        error: Class and message of the exception.
        trace: The traceback.
        crashed: True if a process that the learner thread needs has ended. The client then starts again from its checkpoint.
    """

    KIND: ClassVar[int] = 52
    error: str
    trace: str
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class TrainingMetrics(FromLearnerThread):
    """Metrics of a client's training, for TensorBoard and the learner's status.

    Attributes:
        step: Environment steps that the algorithm has observed so far: the x-axis.
        update: Number of updates so far.
        scalars: Numbers by TensorBoard tag.
        episodes: A list ``[step, return, length]`` for each of the latest episodes that ended since the last message.
        ended: Number of all episodes that have ended in these steps, also before a restart.
        lags: Steps observed since the last message, by their lag: one count for each bucket of the histogram. Empty if there
            are none.
        evaluations: A list ``[version, return, length]`` for each of the latest evaluations since the last message.
    """

    KIND: ClassVar[int] = 53
    step: int
    update: int
    scalars: Document
    episodes: list[Any]
    ended: int
    lags: list[Any]
    evaluations: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckpointResult(FromLearnerThread):
    """The report of a learner thread that it has written a checkpoint, or could not write one.

    Attributes:
        token: The token of the `SaveCheckpoint` request; 0 without a request.
        number: Number of the checkpoint; 0 if none was written.
        version: Policy version in the checkpoint.
        marks: A list ``[actor_id, origin, next_seq]`` for each stream. The checkpoint covers the segments below ``next_seq``,
            so the journal can drop them.
        duration_s: Time that writing took, in seconds.
        error: Reason why the checkpoint could not be written; empty if it was written.
    """

    KIND: ClassVar[int] = 54
    token: int
    number: int
    version: int
    marks: list[Any]
    duration_s: float
    error: str


@dataclass(frozen=True, slots=True)
class QuarantinedSegment(FromLearnerThread):
    """A quarantined segment, to be kept as a dead letter.

    Attributes:
        actor_id, origin, seq: The stream, and the segment's sequence number.
        reason: The fault in the segment, for a person.
        body: The frames of a `Submit` with only this segment.
    """

    KIND: ClassVar[int] = 55
    actor_id: str
    origin: int
    seq: int
    reason: str
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class OperatorAlarm(FromLearnerThread):
    """An alarm: a problem that stops nothing, but that an operator should see.

    Attributes:
        name: Kind of the alarm, by which the learner's status shows it.
        text: The problem in one line for a person, with the numbers.
        count: Number of occurrences that this message reports.
    """

    KIND: ClassVar[int] = 56
    name: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class GatewayAlive(RemoteWorkerControl):
    """A sign of life of the gateway for a remote worker: once a second, and at once after the last message of the worker.

    Attributes:
        messages: Number of messages that the gateway has received from this worker.
        sent: Number of messages that the gateway has sent to this worker before this one. If the worker has received fewer, the
            network has lost some, and the worker ends.
    """

    KIND: ClassVar[int] = 64
    messages: int
    sent: int


@dataclass(frozen=True, slots=True)
class EndRemoteWorker(RemoteWorkerControl):
    """A request to a remote worker to end at once, without a checkpoint: its client has another worker now, or none."""

    KIND: ClassVar[int] = 65


@dataclass(frozen=True, slots=True)
class CheckpointFound(RemoteWorkerControl):
    """The answer to `FindCheckpoint`.

    Attributes:
        number: Number of the client's newest intact checkpoint; 0 if there is none.
        next_number: Number for the next checkpoint that this worker writes.
        sizes: Size in bytes of each file that the worker needs from the checkpoint, by name.
        damaged: One text for each newer checkpoint that was damaged and has been put aside.
        careful: True if the worker before this one has ended without having been asked to. Segments could be the cause, so this
            worker waits for the answer to each `RecordSegmentsInTraining`.
        error: The reason why the checkpoints cannot be used; empty if they can.
        body: Two frames, either can be empty: the suspects as JSON, and the segments that the worker before this one had in
            training when it ended (`learner.training.suspects`).
    """

    KIND: ClassVar[int] = 66
    number: int
    next_number: int
    sizes: Document
    damaged: list[Any]
    careful: bool
    error: str
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class CheckpointPartReply(RemoteWorkerControl):
    """The answer to `FetchCheckpointPart`.

    Attributes:
        number, name, offset: The checkpoint, the file and the position of the part, as in `FetchCheckpointPart`.
        body: One frame with the bytes, at most 4 MiB.
    """

    KIND: ClassVar[int] = 67
    number: int
    name: str
    offset: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class CheckpointStored(RemoteWorkerControl):
    """The answer to each `CheckpointPart`.

    Attributes:
        number: Number of the checkpoint.
        done: True if the whole checkpoint is on the gateway's disk now. False if parts are missing, or after an error.
        error: The reason why the checkpoint was not stored; empty if there is no error. Its parts are discarded.
    """

    KIND: ClassVar[int] = 68
    number: int
    done: bool
    error: str


@dataclass(frozen=True, slots=True)
class TrainingRecorded(RemoteWorkerControl):
    """The answer to `RecordSegmentsInTraining`.

    Attributes:
        count: The number of the `RecordSegmentsInTraining` message.
    """

    KIND: ClassVar[int] = 69
    count: int


@dataclass(frozen=True, slots=True)
class WorkerAlive(FromRemoteWorker):
    """A sign of life of a remote worker, once a second.

    Attributes:
        host, pid: The worker's machine, and the id of its process there.
        busy_s: Time since the learner thread last looked for messages, in seconds.
        ending: True if this is the last message of the worker. It ends when `GatewayAlive` counts this message.
        sent: Number of messages that the worker has sent before this one. If the gateway has received fewer, it replaces the
            worker.
    """

    KIND: ClassVar[int] = 80
    host: str
    pid: int
    busy_s: float
    ending: bool
    sent: int


@dataclass(frozen=True, slots=True)
class WorkerLog(FromRemoteWorker):
    """A log record of a remote worker, for the learner's log.

    Attributes:
        name: Name of the logger.
        level: A number of Python's logging.
        text: The text, with a traceback if there is one.
    """

    KIND: ClassVar[int] = 81
    name: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class FindCheckpoint(FromRemoteWorker):
    """A request of a remote worker, at its start, for the state to continue from. The answer is `CheckpointFound`."""

    KIND: ClassVar[int] = 82


@dataclass(frozen=True, slots=True)
class FetchCheckpointPart(FromRemoteWorker):
    """A request of a remote worker for one part of a file of a checkpoint. The answer is `CheckpointPartReply`.

    Attributes:
        number, name: The checkpoint and the file.
        offset: Position of the part in the file, in bytes.
    """

    KIND: ClassVar[int] = 83
    number: int
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class RecordSegmentsInTraining(FromRemoteWorker):
    """A record of the segments that a remote worker trains on now. If they end the process, the next worker can find them.

    Attributes:
        count: Number of this message, from 1.
        body: Two frames: the suspects as JSON, empty if they have not changed, and the segments in training.
    """

    KIND: ClassVar[int] = 84
    count: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class CheckpointPart(FromRemoteWorker):
    """A part of one file of a checkpoint, to be stored on the gateway's disk. The answer is `CheckpointStored`.

    Attributes:
        number, name: The checkpoint and the file.
        offset: Position of the part in the file, in bytes. The parts of a file are sent in order.
        last: True for the last part of the last file.
        body: One frame with the bytes, at most 4 MiB; no frame for an empty file.
    """

    KIND: ClassVar[int] = 85
    number: int
    name: str
    offset: int
    last: bool
    body: tuple[Frame, ...]


ThreadMessage = (
    AssignClient
    | DeliverSegments
    | StopThread
    | ThreadReady
    | PolicyPublished
    | SegmentVerdicts
    | DataDemand
    | ThreadFailed
    | TrainingMetrics
    | SaveCheckpoint
    | StreamEnded
    | ChangeParameters
    | ChangeWeightsLevel
    | CheckpointResult
    | QuarantinedSegment
    | OperatorAlarm
    | GatewayAlive
    | EndRemoteWorker
    | CheckpointFound
    | CheckpointPartReply
    | CheckpointStored
    | TrainingRecorded
    | WorkerAlive
    | WorkerLog
    | FindCheckpoint
    | FetchCheckpointPart
    | RecordSegmentsInTraining
    | CheckpointPart
)

WorkerMessage = Sequence[Frame] | DeliverSegments
"""A message on its way to a worker. Segments are encoded only for a worker in another process."""

_KINDS: dict[int, type[ThreadMessage]] = kinds_of(ThreadMessage)


def frames_of(message: WorkerMessage) -> Sequence[Frame]:
    """Return the frames of a message to a worker."""
    return encode(message) if isinstance(message, DeliverSegments) else message


def decode_thread_message(frames: Sequence[Frame]) -> ThreadMessage:
    """Decode and check a message between the gateway and a learner thread or a remote worker."""
    return decode_as(_KINDS, frames, 1 << 32, True)
