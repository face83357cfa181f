"""The closed union of all messages between actors, the learner and its learner threads.

There are three conversations: actor and learner (DEALER and ROUTER, both ways), learner to all actors (PUB), and gateway and
learner thread (PUSH and PULL, both ways). The base class of a message gives its direction. A `match` handles the messages of one
direction, refuses the others by their base class and ends in `assert_never`, so that the type checker finds a message that is not
handled.

A *stream* is the numbered segments of one actor for one client. Its *origin* is the incarnation (the number of a start of the
actor) that began the numbering. A *mark* is a sequence number: all segments below it are received, durable, trained or
checkpointed. A *generation* is the number of a learner thread; policy versions count within it.

A field named ``body`` travels as frames of its own. All other fields travel in the msgpack header. Sequence numbers count the
segments of one actor's stream, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NewType

__all__ = [
    "Ack",
    "Alarm",
    "Assign",
    "Beacon",
    "Block",
    "Bye",
    "Checkpointed",
    "Command",
    "CommandDone",
    "DeadLetter",
    "Deliver",
    "Demand",
    "Disposed",
    "Failed",
    "Fetch",
    "Forget",
    "Frame",
    "FromWorker",
    "Heartbeat",
    "Hello",
    "Message",
    "Metrics",
    "Published",
    "Ready",
    "Refused",
    "Save",
    "Status",
    "StatusRequest",
    "Stop",
    "Submit",
    "ToActor",
    "ToLearner",
    "ToWorker",
    "Verdict",
    "Weights",
    "Welcome",
]

Frame = bytes | memoryview
Block = NewType("Block", bytes)
"""Bytes of any length. A plain ``bytes`` field has exactly 8 bytes."""

Document = dict[str, Any]
"""A tree of JSON values and numpy arrays. It is checked where it is used."""


class Verdict:
    """The possible outcomes of a segment. Each is a counter on both sides."""

    TRAINED = "trained"
    STALE = "stale"
    QUARANTINED = "quarantined"
    REFUSED = "refused"
    DUPLICATE = "duplicate"
    ALL = (TRAINED, STALE, QUARANTINED, REFUSED, DUPLICATE)


class ToLearner:
    """A message from an actor or an operator to the learner."""

    __slots__ = ()


class ToActor:
    """A message from the learner to an actor or an operator."""

    __slots__ = ()


class ToWorker:
    """A message from the gateway to a learner thread."""

    __slots__ = ()


class FromWorker:
    """A message from a learner thread to the gateway."""

    __slots__ = ()


# ---- actor to learner


@dataclass(frozen=True, slots=True)
class Hello(ToLearner):
    """A request to open or reopen a session. An empty field accepts the learner's value.

    Attributes:
        client_id: The client that the actor acts for.
        actor_id: The sender.
        incarnation: The number of this start of the sender. If a higher one is on record, the learner refuses the sender as
            fenced, or reports the incarnation that it must exceed.
        first_seq: Lowest sequence number that the actor still holds.
        held_generation: Generation of the policy that the actor uses; 0 if it has none.
        held_version: Version of that policy.
        algorithm_name: Name of the algorithm, or empty.
        algorithm_parameters: Parameters of the algorithm, as the user wrote them.
        algorithm_type: ``onpolicy``, ``offpolicy`` or empty. Informative only; `Welcome` has the value in force.
        observation_space: The space in JSON form, or empty.
        action_space: The space in JSON form, or empty.
        submits: False for an evaluating actor, which only receives weights.
        library: Name and version of the sender's library. Informative only.
        origin: Incarnation that began the numbering of this actor's segments; 0 means this incarnation.
        journal_id: The journal of the learner that last welcomed this origin; 0 if none did.
        spooled: True if numbers and segments outlive the actor's process.
        weights: The actor's configuration of ``wire_dtype`` and ``level``.
        previously_welcomed: True if a learner has welcomed this incarnation before (without a spool: this origin).
    """

    KIND: ClassVar[int] = 1
    client_id: str
    actor_id: str
    incarnation: int
    first_seq: int
    held_generation: int
    held_version: int
    algorithm_name: str = ""
    algorithm_parameters: Document = field(default_factory=dict)
    algorithm_type: str = ""
    observation_space: Document = field(default_factory=dict)
    action_space: Document = field(default_factory=dict)
    submits: bool = True
    library: str = ""
    origin: int = 0
    journal_id: int = 0
    spooled: bool = False
    weights: Document = field(default_factory=dict)
    previously_welcomed: bool = False


@dataclass(frozen=True, slots=True)
class Submit(ToLearner):
    """Consecutive segments of this actor's stream, numbered from `first_seq`.

    Attributes:
        first_seq: Sequence number of the first segment. It travels in the prefix.
        count: Number of segments. It travels in the prefix.
        want_steps: Requested credit, as in `Heartbeat`.
        layouts: Descriptions of the columns (`rl4sys_zmq.wire.layout`).
        heads: One head of 64 bytes for each segment (`rl4sys_zmq.wire.segments`).
        body: The columns.
        codings: Coding of each frame of the body (`rl4sys_zmq.wire.coding`); empty if no frame is coded.
        digests: The xxh3-64 of each frame of the body, or None if it is unknown. They do not travel; they save `encode` from
            computing known digests again.
    """

    KIND: ClassVar[int] = 2
    first_seq: int
    count: int
    want_steps: int
    layouts: list[Any]
    heads: Block
    body: tuple[Frame, ...]
    codings: list[Any] = field(default_factory=list)
    digests: tuple[int | None, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Heartbeat(ToLearner):
    """A sign of life with the requested credit: the steps to have submitted in all, in the units of `Ack.credit_steps`.

    The newest value counts. An actor that requests less than before returns credit.
    """

    KIND: ClassVar[int] = 3
    want_steps: int


@dataclass(frozen=True, slots=True)
class Fetch(ToLearner):
    """A request for the current weights. With the version that the actor holds, the learner can answer with a diff."""

    KIND: ClassVar[int] = 4
    held_generation: int
    held_version: int


@dataclass(frozen=True, slots=True)
class StatusRequest(ToLearner):
    """A request for the learner's status. It needs no session."""

    KIND: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class Bye(ToLearner):
    """The end of this incarnation: it sends nothing more."""

    KIND: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class Command(ToLearner):
    """An operator's request to act on a client. It needs no session. The answer is `CommandDone` or `Refused`.

    Attributes:
        command: ``restart``, ``give-up-pending``, ``forget`` or ``drop-actor``.
        client_id: The client to act on.
        actor_id: The actor to drop, for ``drop-actor``; else empty.
    """

    KIND: ClassVar[int] = 7
    command: str
    client_id: str
    actor_id: str = ""


# ---- learner to actor


@dataclass(frozen=True, slots=True)
class Welcome(ToActor):
    """The answer to an accepted `Hello`.

    Attributes:
        policy_id: 8 bytes, repeated in the header of each weight update of this policy.
        topic: 8 bytes. After a kind byte, they are this client's topic on the PUB. They change when a user loses a right.
        journal_id: The learner's journal.
        gap: Number of segments that were acknowledged as durable and that this journal does not know.
        generation: Generation of the learner's policy.
        version: Current version of that policy.
        digest: Digest of that version's flat bytes.
        spec: The policy spec (`rl4sys_zmq.wire.specs`).
        pub: URI of the PUB. A ``*`` as the host stands for the host that the actor connected to.
        received: Next sequence number that the learner expects.
        durable: The actor can discard all segments below this number.
        accepted_steps: Steps accepted in this stream so far, from which `Ack.credit_steps` counts.
        algorithm_name: Name of the client's algorithm.
        algorithm_type: ``onpolicy`` or ``offpolicy``.
        rollout_length: Longest segment in steps, unless the actor configures its own.
        max_policy_lag: Largest lag, in versions, of a segment that is trained on unchanged; -1 for no limit.
        on_lag: ``drop`` or ``correct``, for segments beyond that lag.
        max_message_bytes: Longest message that the learner accepts.
        max_segment_steps: Longest segment that the learner accepts, in steps.
        heartbeat_s: Longest silence that either side should keep, in seconds.
        weights: ``wire_dtype`` and ``level`` of the client. The header of each update has its own dtype.
        inference: URI of the inference service, in the form of `pub`; empty if there is none.
        body: The blob of the spec, if it has one and the actor does not hold a version of this generation.
    """

    KIND: ClassVar[int] = 17
    policy_id: bytes
    topic: bytes
    journal_id: int
    gap: int
    generation: int
    version: int
    digest: int
    spec: Document
    pub: str
    received: int
    durable: int
    accepted_steps: int
    algorithm_name: str
    algorithm_type: str
    rollout_length: int
    max_policy_lag: int
    on_lag: str
    max_message_bytes: int
    max_segment_steps: int
    heartbeat_s: float
    weights: Document = field(default_factory=dict)
    inference: str = ""
    body: tuple[Frame, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Ack(ToActor):
    """Cumulative marks and credit of one stream.

    Attributes:
        generation: Generation of the client's policy. The actor ignores an ack of another generation.
        received: Next expected sequence number. All segments below it are accepted.
        durable: All segments below it are in the journal.
        trained: All segments below it have a verdict.
        checkpointed: All segments below it are covered by a checkpoint.
        accepted_steps: Steps of all segments below `received`, in the units of `credit_steps`.
        credit_steps: A segment can be sent while the steps accepted and in flight are fewer than this.
        credit_items: First sequence number that must not be sent yet.
        credit_bytes: A segment can be sent while fewer bytes than this are in flight beyond `received`.
        min_version: Lowest version to begin a segment with, within the current generation.
        verdicts: Number of this stream's segments, by verdict.
    """

    KIND: ClassVar[int] = 18
    generation: int
    received: int
    durable: int
    trained: int
    checkpointed: int
    accepted_steps: int
    credit_steps: int
    credit_items: int
    credit_bytes: int
    min_version: int
    verdicts: Document


@dataclass(frozen=True, slots=True)
class Refused(ToActor):
    """The answer to a message or handshake that is not accepted.

    Attributes:
        code: A `Refusal`.
        field: The configuration field that differs, or empty.
        reason: One line for a person, with the numbers.
        expected_seq: With the code ``gap``, the sequence number to send next.
        incarnation: With the code ``fenced``, the incarnation on record if the actor is allowed to take a higher one; else 0.
    """

    KIND: ClassVar[int] = 19
    code: str
    field: str
    reason: str
    expected_seq: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Weights(ToActor):
    """The answer to `Fetch`: updates to apply in order, as pairs of frames (weights header, payload)."""

    KIND: ClassVar[int] = 20
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Status(ToActor):
    """The answer to `StatusRequest`."""

    KIND: ClassVar[int] = 21
    report: Document


@dataclass(frozen=True, slots=True)
class Beacon(ToActor):
    """The newest version of one policy, sent on the PUB each second. It shows an actor that it lost the last update.

    Attributes:
        generation: Generation of the policy.
        version: The newest version.
        digest: Digest of that version.
        alarms: Number of alarms that the client has raised since the learner's start, by kind.
    """

    KIND: ClassVar[int] = 22
    generation: int
    version: int
    digest: int
    alarms: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommandDone(ToActor):
    """The answer to a `Command` that was carried out. It is sent when the result will outlast the process.

    Attributes:
        text: One or two lines for a person.
        figures: The same in numbers, by name.
    """

    KIND: ClassVar[int] = 23
    text: str
    figures: Document


# ---- gateway to learner thread


@dataclass(frozen=True, slots=True)
class Assign(ToWorker):
    """The first message to a learner thread. It assigns a client to the thread: the policy to train, with all settings.

    Attributes:
        client_id: The client.
        policy_id: As in `Welcome`.
        generation: Number of this learner thread. All policy versions that it publishes have this generation.
        algorithm_name: Registered name of the algorithm.
        parameters: Parameters of the algorithm.
        observation_space: The space in JSON form.
        action_space: The space in JSON form.
        seed: Seed of the algorithm.
        max_policy_lag: Limit on the lag, or -1 for the algorithm's own.
        on_lag: ``drop`` or ``correct``.
        pacing_lag: Number of batches that actors can collect ahead.
        publish_every_updates: Updates between two versions, or 0 for the algorithm's own number.
        max_parameters: Largest number of parameters of a policy.
        checkpoints: Folder of this client's checkpoints. The thread resumes from the newest. If empty, no checkpoints are kept.
        checkpoint_every_s: Time between two checkpoints, in seconds.
        journal_id: Recorded in the checkpoints.
        wire_dtype: ``fp32``, ``bf16`` or ``grid``: the form of weights on their way to the actors.
        weights_level: Level of the weight coder.
        max_magnitude: Largest absolute value of an observation or a raw action whose space has no bounds.
        max_reward: Largest absolute value of a reward.
        torch_threads: Number of threads that torch uses in this process; 0 leaves it unchanged.
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
    pacing_lag: float
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


@dataclass(frozen=True, slots=True)
class Deliver(ToWorker):
    """Segments that were accepted from one actor.

    Attributes:
        actor_id: The actor.
        origin: Origin of the stream.
        skip: Number of segments at the beginning of the message that were delivered before.
        refused: Number of the other segments that are refused one by one.
        body: The frames of the `Submit`, as they were received.
    """

    KIND: ClassVar[int] = 33
    actor_id: str
    origin: int
    skip: int
    refused: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Stop(ToWorker):
    """A request to finish the work in hand and end."""

    KIND: ClassVar[int] = 34


@dataclass(frozen=True, slots=True)
class Save(ToWorker):
    """A request to write a checkpoint now. The answer is `Checkpointed`.

    Attributes:
        token: Number that the answer repeats.
        partial: True to train first on data that waits for a full batch.
    """

    KIND: ClassVar[int] = 35
    token: int
    partial: bool


@dataclass(frozen=True, slots=True)
class Forget(ToWorker):
    """The end of a stream: the journal has none of its segments, so checkpoints no longer need its mark."""

    KIND: ClassVar[int] = 36
    actor_id: str
    origin: int


# ---- learner thread to gateway


@dataclass(frozen=True, slots=True)
class Ready(FromWorker):
    """The algorithm is built. The first `Published` (version 0) follows.

    Attributes:
        spec: The policy spec (`rl4sys_zmq.wire.specs`).
        kind: ``onpolicy`` or ``offpolicy``.
        rollout_length: Longest segment that an actor should send, in steps.
        max_policy_lag: The limit in force; -1 for none.
        checkpoint: Number of the checkpoint that the thread resumed from; 0 for none.
        marks: ``[actor_id, origin, next_seq, verdicts]`` of each stream: the segments that this state includes.
        verdicts: The client's totals in that state.
        damaged: Names of newer checkpoints that failed verification.
        body: The blob of the spec, if it has one.
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


@dataclass(frozen=True, slots=True)
class Published(FromWorker):
    """A new version of the policy.

    Attributes:
        version: Version number, from 0, without gaps.
        digest: The xxh3-64 of the state.
        body: The state (the float32 tensors in manifest order, then the bytes of the other tensors), then the header and the
            payload to send to the actors: a diff or the whole state. The payload is left out where it equals the state.
    """

    KIND: ClassVar[int] = 49
    version: int
    digest: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Disposed(FromWorker):
    """A verdict on segments of one actor.

    Attributes:
        actor_id: The actor.
        origin: Origin of the stream.
        ranges: Ranges ``[first, end)`` of sequence numbers.
        verdict: Verdict on these segments.
        reason: Text for a person.
        replaces: The earlier verdict that this one replaces; empty for segments that were pending.
    """

    KIND: ClassVar[int] = 50
    actor_id: str
    origin: int
    ranges: list[Any]
    verdict: str
    reason: str = ""
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Demand(FromWorker):
    """The data that a learner thread has taken and can still use.

    Attributes:
        usable_steps: Number of steps that it can use beyond those it has taken.
        messages: Number of `Deliver` messages taken since its start. The gateway knows their contents.
        min_version: Lowest version to collect with.
    """

    KIND: ClassVar[int] = 51
    usable_steps: int
    messages: int
    min_version: int


@dataclass(frozen=True, slots=True)
class Failed(FromWorker):
    """The exception that ended the learner thread."""

    KIND: ClassVar[int] = 52
    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class Metrics(FromWorker):
    """Scalars for monitoring.

    Attributes:
        step: Environment steps that the algorithm has observed so far: the x-axis.
        update: Number of updates so far.
        scalars: Values by TensorBoard tag.
        episodes: ``[step, return, length]`` of the latest episodes that ended since the last message.
        ended: Number of all episodes that ended since the last message.
    """

    KIND: ClassVar[int] = 53
    step: int
    update: int
    scalars: Document
    episodes: list[Any]
    ended: int


@dataclass(frozen=True, slots=True)
class Checkpointed(FromWorker):
    """The result of writing a checkpoint.

    Attributes:
        token: Token of the `Save`; 0 if no `Save` asked for it.
        number: Number of the checkpoint; 0 if there is none.
        version: Version of the policy in it.
        marks: ``[actor_id, origin, next_seq]`` of each stream. The journal can drop everything below them.
        duration_s: Time that writing took, in seconds.
        error: Reason that it could not be written, or empty.
    """

    KIND: ClassVar[int] = 54
    token: int
    number: int
    version: int
    marks: list[Any]
    duration_s: float
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetter(FromWorker):
    """A quarantined segment, for a person to inspect. The body is the frames of a `Submit` with this segment alone."""

    KIND: ClassVar[int] = 55
    actor_id: str
    origin: int
    seq: int
    reason: str
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Alarm(FromWorker):
    """A problem that stops nothing and that an operator should see.

    Attributes:
        name: Kind of the alarm.
        text: One line for a person, with the numbers.
        count: Number of occurrences.
    """

    KIND: ClassVar[int] = 56
    name: str
    text: str
    count: int


Message = (
    Hello
    | Submit
    | Heartbeat
    | Fetch
    | StatusRequest
    | Bye
    | Command
    | Welcome
    | Ack
    | Refused
    | Weights
    | Status
    | Beacon
    | CommandDone
    | Assign
    | Deliver
    | Stop
    | Ready
    | Published
    | Disposed
    | Demand
    | Failed
    | Metrics
    | Save
    | Forget
    | Checkpointed
    | DeadLetter
    | Alarm
)
