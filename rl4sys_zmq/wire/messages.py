"""Every message, as a value: a closed union, so that the type checker finds a forgotten one.

Three conversations use them: actor to learner and back (DEALER and ROUTER), learner to all actors (PUB), and between the
gateway and a learner thread (PUSH to PULL, both ways). The base class of a message says which way it goes: a match that handles
one direction refuses the others by their base class, and ends in `assert_never`.

A field named ``body`` travels as frames of its own; all other fields travel in the msgpack header. Sequence numbers count
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
"""Bytes of any length."""

Document = dict[str, Any]
"""A tree of JSON values (and numpy arrays); checked where it is used."""


class Verdict:
    """What became of a segment that was accepted or looked at; each is a counter on both sides."""

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
    """Opens or re-opens a session. Fields left empty mean: whatever the learner has.

    Attributes:
        client_id: the policy and its learner.
        actor_id: this actor.
        incarnation: of this start; a lower one than the learner knows is fenced off, or told to take a higher one.
        first_seq: the lowest sequence number that the actor still holds.
        held_generation: the generation of the policy it acts with; 0 for none.
        held_version: the version of that policy.
        algorithm_name: or empty.
        algorithm_parameters: as the user wrote them.
        algorithm_type: ``onpolicy``, ``offpolicy`` or empty; for people, nobody compares it (see `Welcome`).
        observation_space: JSON form, or empty.
        action_space: JSON form, or empty.
        submits: False for an evaluating actor, which only takes weights.
        library: name and version, for people.
        origin: the incarnation that began to number this actor's segments; 0: this one.
        journal_id: of the learner that last welcomed this origin; 0: none.
        spooled: True when numbering and segments outlive the actor's process.
        weights: what the actor's configuration says of ``wire_dtype`` and ``level``.
        welcomed: a learner has welcomed this start before; without a spool: this origin.
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
    welcomed: bool = False


@dataclass(frozen=True, slots=True)
class Submit(ToLearner):
    """Segments `first_seq`, `first_seq` + 1, ... of this actor's stream.

    Attributes:
        first_seq: the sequence number of the first (in the prefix).
        count: how many there are (in the prefix).
        want_steps: as in `Heartbeat`.
        layouts: what their columns look like (`rl4sys_zmq.wire.layout`).
        heads: 64 bytes for each (`rl4sys_zmq.wire.segments`).
        body: their columns.
        codings: how each frame of the body is coded (`rl4sys_zmq.wire.coding`); empty where none is.
        digests: the xxh3-64 of frames of the body, None where it is unknown. They do not travel; they spare `encode` a look.
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
    """I am alive, and would like to have submitted `want_steps` steps in all (in the units of `Ack.credit_steps`).

    The last word counts: an actor that wants less than before gives credit back.
    """

    KIND: ClassVar[int] = 3
    want_steps: int


@dataclass(frozen=True, slots=True)
class Fetch(ToLearner):
    """Asks for the current weights; what is held lets the learner answer with a diff."""

    KIND: ClassVar[int] = 4
    held_generation: int
    held_version: int


@dataclass(frozen=True, slots=True)
class StatusRequest(ToLearner):
    """Asks for the learner's status; needs no session."""

    KIND: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class Bye(ToLearner):
    """This incarnation sends nothing more."""

    KIND: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class Command(ToLearner):
    """Asks for something to be done to a client; needs no session. A `CommandDone` or a `Refused` answers.

    Attributes:
        command: ``restart``, ``give-up-pending``, ``forget`` or ``drop-actor``.
        client_id: whose.
        actor_id: of the actor that ``drop-actor`` is about; else empty.
    """

    KIND: ClassVar[int] = 7
    command: str
    client_id: str
    actor_id: str = ""


# ---- learner to actor


@dataclass(frozen=True, slots=True)
class Welcome(ToActor):
    """Answers `Hello`.

    Attributes:
        policy_id: 8 bytes, in the header of each of this policy's weight updates.
        topic: 8 bytes: with a kind byte before it, the topic of this client on the PUB. It changes when a right is taken away.
        journal_id: of this learner's journal, which is its memory of who sent what.
        gap: how many segments the actor was told to forget that this journal does not know.
        generation: of the learner's policy.
        version: its current version.
        digest: of that version's flat bytes.
        spec: the policy (`rl4sys_zmq.wire.specs`).
        pub: URI of the PUB; a ``*`` as the host means the host that was dialled.
        received: the next sequence number expected.
        durable: everything below may be forgotten by the actor.
        accepted_steps: the steps accepted in this stream so far: where `Ack.credit_steps` counts from.
        algorithm_name: of the client.
        algorithm_type: ``onpolicy`` or ``offpolicy``.
        rollout_length: at most how many steps to put into a segment, unless the actor is configured otherwise.
        max_policy_lag: segments that lag by more versions are not trained as they are; -1 for no limit.
        on_lag: ``drop`` or ``correct``.
        max_message_bytes: a longer message is refused.
        max_segment_steps: a longer segment is refused.
        heartbeat_s: the longest silence that either side should keep, in seconds.
        weights: ``wire_dtype`` and ``level`` of the client; each update's header says its own dtype.
        inference: URI of the service that chooses actions; like `pub`.
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


@dataclass(frozen=True, slots=True)
class Ack(ToActor):
    """Cumulative marks and the credit, for one stream.

    Attributes:
        generation: of the client's policy; an ack of another life of the learner thread means nothing.
        received: the next sequence number expected; all below have been accepted.
        durable: all below are in the journal.
        trained: all below have been disposed of.
        checkpointed: all below are covered by a checkpoint.
        accepted_steps: the steps of all segments below `received`, in the units of `credit_steps`.
        credit_steps: a segment may leave while the steps accepted and in flight are fewer than this.
        credit_items: the first sequence number that may not leave yet.
        credit_bytes: a segment may leave while fewer bytes than this are in flight beyond `received`.
        min_version: the least version to start a segment with (within the current generation).
        verdicts: how many segments of this stream met each verdict.
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
    """A message (or a handshake) is refused.

    Attributes:
        code: a `Refusal`.
        field: the configuration field that differs, or empty.
        reason: one line for a person, with the numbers.
        expected_seq: with code ``gap``: what to send next.
        incarnation: with code ``fenced``: the one on record, if the actor may take one above it; else 0.
    """

    KIND: ClassVar[int] = 19
    code: str
    field: str
    reason: str
    expected_seq: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Weights(ToActor):
    """Answers `Fetch`: updates to apply in order; pairs of frames (weights header, payload)."""

    KIND: ClassVar[int] = 20
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Status(ToActor):
    """Answers `StatusRequest`."""

    KIND: ClassVar[int] = 21
    report: Document


@dataclass(frozen=True, slots=True)
class Beacon(ToActor):
    """The state of one policy, sent on the PUB each second: the loss of the last message is invisible otherwise.

    Attributes:
        generation: of the policy.
        version: the newest.
        digest: of it.
        alarms: how many alarms of each kind the client has raised since the learner's start.
    """

    KIND: ClassVar[int] = 22
    generation: int
    version: int
    digest: int
    alarms: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommandDone(ToActor):
    """Answers `Command`, when what was done will outlast the process.

    Attributes:
        text: for a person, one line or two.
        figures: the same in numbers, by name.
    """

    KIND: ClassVar[int] = 23
    text: str
    figures: Document


# ---- gateway to learner thread


@dataclass(frozen=True, slots=True)
class Assign(ToWorker):
    """The first message to a learner thread: which client it serves, and how.

    Attributes:
        generation: of all versions that it will publish.
        algorithm_name: a registered name.
        parameters: of the algorithm.
        observation_space: JSON form.
        action_space: JSON form.
        seed: of the algorithm.
        max_policy_lag: or -1 for the algorithm's own.
        on_lag: ``drop`` or ``correct``.
        pacing_lag: how many batches actors may collect ahead.
        publish_every_updates: or 0 for the algorithm's own.
        max_parameters: a larger policy is refused.
        checkpoints: the folder of this client's checkpoints, where the newest is taken up again; empty: none are kept.
        checkpoint_every_s: how often to write one.
        journal_id: noted in the checkpoints.
        wire_dtype: ``fp32``, ``bf16`` or ``grid``: what weights are on their way to the actors.
        weights_level: of the coder of diffs.
        max_magnitude: of an observation or a raw action, where the space has no bound of its own.
        max_reward: the greatest absolute value of a reward.
        torch_threads: how many threads torch shall compute with in this process; 0: as the process has it.
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
    """Segments accepted from one actor: the frames of its `Submit`, as they came.

    Attributes:
        actor_id: whose.
        origin: which numbering of it.
        skip: how many of the message's first segments were delivered before.
        refused: how many of the others are refused as items.
        body: the frames of the `Submit`.
    """

    KIND: ClassVar[int] = 33
    actor_id: str
    origin: int
    skip: int
    refused: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Stop(ToWorker):
    """Finish what is in hand, then end."""

    KIND: ClassVar[int] = 34


@dataclass(frozen=True, slots=True)
class Save(ToWorker):
    """Write a checkpoint now, and answer with `Checkpointed`.

    Attributes:
        token: comes back in the answer.
        partial: train on what waits for a full batch first.
    """

    KIND: ClassVar[int] = 35
    token: int
    partial: bool


@dataclass(frozen=True, slots=True)
class Forget(ToWorker):
    """Nothing of this stream is in the journal any more: checkpoints need not carry its mark."""

    KIND: ClassVar[int] = 36
    actor_id: str
    origin: int


# ---- learner thread to gateway


@dataclass(frozen=True, slots=True)
class Ready(FromWorker):
    """The algorithm is built. The first `Published` (version 0) follows.

    Attributes:
        spec: the policy (`rl4sys_zmq.wire.specs`).
        kind: ``onpolicy`` or ``offpolicy``.
        rollout_length: at most how many steps an actor should put into a segment.
        max_policy_lag: the limit that is in force, -1 for none.
        checkpoint: the number of the checkpoint that was taken up; 0 for none.
        marks: what that state has disposed of: ``[actor_id, origin, next_seq, verdicts]`` of each stream.
        verdicts: the client's totals in that state.
        damaged: the names of newer checkpoints that did not verify.
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


@dataclass(frozen=True, slots=True)
class Published(FromWorker):
    """A new version.

    Attributes:
        version: 0 first, then one more each time.
        digest: xxh3-64 of the flat bytes.
        body: the state, float32 in manifest order; then the header and the payload of what goes out, a diff or the whole. The
            payload is left out where it is the state.
    """

    KIND: ClassVar[int] = 49
    version: int
    digest: int
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Disposed(FromWorker):
    """What became of segments of one actor: ``ranges`` of ``[first, end)`` with one `verdict`.

    Attributes:
        actor_id: whose.
        origin: which numbering of it.
        ranges: of sequence numbers.
        verdict: that they met.
        reason: for a person.
        but: the verdict that they had met before, and that is taken back; empty for segments that were pending.
    """

    KIND: ClassVar[int] = 50
    actor_id: str
    origin: int
    ranges: list[Any]
    verdict: str
    reason: str = ""
    but: str = ""


@dataclass(frozen=True, slots=True)
class Demand(FromWorker):
    """The data that a learner thread has taken and can use.

    Attributes:
        usable_steps: how many more steps it can use, beyond those that it has taken.
        messages: how many `Deliver` messages it has taken since its start. The gateway knows what was in them.
        min_version: the least version to collect with.
    """

    KIND: ClassVar[int] = 51
    usable_steps: int
    messages: int
    min_version: int


@dataclass(frozen=True, slots=True)
class Failed(FromWorker):
    """The learner thread stops on this exception."""

    KIND: ClassVar[int] = 52
    error: str
    trace: str


@dataclass(frozen=True, slots=True)
class Metrics(FromWorker):
    """Scalars for people.

    Attributes:
        step: environment steps that the algorithm has observed so far: the x-axis.
        update: updates so far.
        scalars: by TensorBoard tag.
        episodes: ``[step, return, length]`` of the latest episodes that ended since the last message.
        ended: how many ended in all.
    """

    KIND: ClassVar[int] = 53
    step: int
    update: int
    scalars: Document
    episodes: list[Any]
    ended: int


@dataclass(frozen=True, slots=True)
class Checkpointed(FromWorker):
    """A checkpoint is on the disk, or could not be written.

    Attributes:
        token: of the `Save` that asked for it; 0 when nobody did.
        number: of the checkpoint; 0 when there is none.
        version: of the policy in it.
        marks: ``[actor_id, origin, next_seq]`` of each stream: what is below needs no journal any more.
        duration_s: how long it took.
        error: why it could not be written, or empty.
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
    """A segment that was quarantined, for a person to look at: its `Submit` alone, as frames in the body."""

    KIND: ClassVar[int] = 55
    actor_id: str
    origin: int
    seq: int
    reason: str
    body: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Alarm(FromWorker):
    """Something went wrong that stops nothing, and that people should know of.

    Attributes:
        name: the kind.
        text: one line for a person, with the numbers.
        count: how many.
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
