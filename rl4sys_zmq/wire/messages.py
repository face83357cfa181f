"""The messages between a learner and its actors, relays and operators: one dataclass for each kind.

The base class of a message gives its direction, and `Message` is the union of all messages. Code that receives messages of one
direction uses a `match` statement with a case for each of them. It refuses those of the other direction by their base class and
ends in `assert_never`, so that the type checker reports a message without a case.

A field named ``body`` holds the frames after the first one. The other fields are in the msgpack header of the first frame,
unless their description says otherwise.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, NewType

from rl4sys_zmq.immutable import immutable

Frame = bytes | memoryview
AnyBytes = NewType("AnyBytes", bytes)
"""The type of a field with bytes of any length. A field of the type ``bytes`` has exactly 8 bytes."""

Document = dict[str, Any]
"""The type of a field with nested JSON values and numpy arrays. The code that uses the field checks its contents."""


class Verdict:
    """The possible results for a segment that an actor sent.

    ``evaluated``: the segment has the return of an evaluation episode, which was counted. ``overridden``: the host did other
    actions than the policy's, so an on-policy algorithm leaves the segment out. ``duplicate``: the segment had been received
    before, so this delivery was skipped. `FINAL` has the verdicts on accepted segments.
    """

    TRAINED = "trained"
    STALE = "stale"
    QUARANTINED = "quarantined"
    REFUSED = "refused"
    DUPLICATE = "duplicate"
    EVALUATED = "evaluated"
    OVERRIDDEN = "overridden"
    RARE = (EVALUATED, OVERRIDDEN)
    FINAL = (TRAINED, STALE, QUARANTINED, *RARE)
    ALL = (*FINAL, REFUSED, DUPLICATE)


class ToLearner:
    """Messages from an actor, a relay or an operator to the learner. A relay receives some of them too, from its children."""

    __slots__ = ()


class ToActor:
    """Messages from the learner, or from a relay, to an actor, a relay or an operator."""

    __slots__ = ()


@immutable
class Hello(ToLearner):
    """A request of an actor to open or reopen its session. An empty field means that the actor accepts the learner's value.

    Attributes:
        incarnation: Number of this start of the actor. If a higher number is on record, the learner answers with `Refused` and
            the code ``fenced``.
        first_seq: Lowest sequence number of the segments that the actor still holds.
        held_generation: Generation of the policy that the actor uses; 0 if it has none.
        held_version: Version of that policy.
        algorithm_parameters: Parameters of the algorithm, as the user wrote them.
        algorithm_type: ``onpolicy``, ``offpolicy`` or empty. Informative only; `Welcome` has the value that is used.
        observation_space, action_space: The spaces in JSON form, or empty.
        submits: False for an actor that only receives weights.
        library: Name and version of the sender's library. Informative only.
        origin: The incarnation that began the numbering of the segments; 0 means this incarnation.
        journal_id: Id of the learner's journal in the last `Welcome` for this origin; 0 before the first `Welcome`.
        spooled: True if the actor's segments and their numbers survive the end of its process.
        weights: The actor's settings for the number format (``wire_dtype``) and compression (``level``) of the weights.
        previously_welcomed: True if this incarnation has received a `Welcome` before.
        relay: URI of the first relay in the actor's own configuration, or empty. The learner then publishes tags
            (`Welcome.tag_key`).
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
    relay: str = ""


@immutable
class Submit(ToLearner):
    """Segments of an actor with consecutive sequence numbers.

    Attributes:
        first_seq: Sequence number of the first segment. It is in the prefix, not in the header.
        count: Number of segments. Like `first_seq`, it is in the prefix.
        want_steps: Total number of steps that the actor asks to be allowed to send, as in `Heartbeat`.
        layouts: The different layouts of the segments, as texts (`rl4sys_zmq.wire.layout`).
        heads: The heads of all segments, one after the other. A head is a record of 64 bytes with the numbers of a segment.
        body: The columns of all segments.
        codings: Lengths and compression of the parts of each frame of the body (`rl4sys_zmq.wire.coding`); empty if no frame is
            compressed.
        digests: The xxh3-64 of each frame of the body, or None if unknown. They are not sent, and only save time.
        checked: If the compiled form has checked heads and body of a received message, the numbers of steps and the checksums of
            its segments; else None. They are not sent.
    """

    KIND: ClassVar[int] = 2
    first_seq: int
    count: int
    want_steps: int
    layouts: list[Any]
    heads: AnyBytes
    body: tuple[Frame, ...]
    codings: list[Any] = field(default_factory=list)
    digests: tuple[int | None, ...] = field(default=(), compare=False, repr=False)
    checked: tuple[list[int], list[int]] | None = field(default=None, compare=False, repr=False)


@immutable
class Heartbeat(ToLearner):
    """A regular sign of life of an actor.

    Attributes:
        want_steps: Total number of steps that the actor asks to be allowed to send, since its origin and including those
            already sent, as in `Ack.credit_steps`. Only the newest value counts. A smaller value gives up a part of the credit.
    """

    KIND: ClassVar[int] = 3
    want_steps: int


@immutable
class FetchWeights(ToLearner):
    """A request of an actor for the current weights. The answer is `WeightsReply`.

    Attributes:
        held_generation: Generation of the policy that the actor holds, so that the answer can be a diff; 0 if it has none.
        held_version: Version of that policy.
        client_id: Name of the client if the sender has no session, because it is a relay or asks a relay; empty in a session.
    """

    KIND: ClassVar[int] = 4
    held_generation: int
    held_version: int
    client_id: str = ""


@immutable
class StatusRequest(ToLearner):
    """A request for the learner's status, without a session. The answer is `StatusReply`.

    Attributes:
        since: The number of the first record of the learner's history to send; -1 for none.
    """

    KIND: ClassVar[int] = 5
    since: int = -1


@immutable
class Bye(ToLearner):
    """The last message of an incarnation of an actor."""

    KIND: ClassVar[int] = 6


@immutable
class OperatorCommand(ToLearner):
    """An operator's command about one client, without a session. The answer is `OperatorCommandDone` or `Refused`.

    Attributes:
        command: ``restart`` the learner thread from the newest checkpoint, ``give-up-pending`` (the same, without the segments
            accepted after that checkpoint), ``forget`` the client with its data, ``drop-actor`` (close an actor's session, and
            release its name), or ``set`` parameters.
        actor_id: The actor to drop, for ``drop-actor``; else empty.
        values: New values of parameters of the client's algorithm by name, for ``set``; else empty.
    """

    KIND: ClassVar[int] = 7
    command: str
    client_id: str
    actor_id: str = ""
    values: Document = field(default_factory=dict)


@immutable
class FollowWeights(ToLearner):
    """The request of a relay or an actor to follow a client's weights. A learner or a relay answers it.

    The sender needs no session. It repeats the request once a second, so that both sides notice the end of the other. The
    answer is `WeightsSource`, or `Refused` with the client's name in the field ``field``.

    Attributes:
        relay: The URI at which the sender, if it is a relay, serves its children; else empty. Informative only.
        children: The number of the sender's children that follow this client. Informative only.
        generation: The lowest generation of use to the sender; 0: any. A relay that holds a lower one answers when it has
            received this one.
    """

    KIND: ClassVar[int] = 8
    client_id: str
    relay: str = ""
    children: int = 0
    generation: int = 0


@immutable
class ActorReport(ToLearner):
    """The figures of an actor's process and of its machine, which an actor with ``report_system`` sends every 10 s.

    Attributes:
        host: Name of the machine.
        cpu: Cores that the process uses, such as 1.5.
        host_cpu: Part of all cores of the machine that is used, from 0 to 1.
        disk_free_bytes: Of the disk with the spool, or else with the working directory.
        net_sent_bytes_s, net_received_bytes_s: Bytes per second of the machine, over all networks but the loopback.
    """

    KIND: ClassVar[int] = 9
    host: str
    pid: int
    cpu: float
    rss_bytes: int
    threads: int
    host_cpu: float
    host_memory_bytes: int
    host_memory_free_bytes: int
    disk_free_bytes: int
    net_sent_bytes_s: float
    net_received_bytes_s: float


@immutable
class Welcome(ToActor):
    """The answer to an accepted `Hello`. It opens the session and contains all settings that the actor needs.

    Attributes:
        policy_id: 8 bytes that identify the policy, also in the header of each weight update.
        topic: 8 random bytes. The actor subscribes to the client's messages on the learner's PUB socket by a prefix: a byte for
            the kind of message, then these bytes. The learner replaces them when a user loses the right to read the weights.
        gap: Number of segments that an earlier `Ack` reported as durable, but that are missing in this journal.
        version: Current version of the policy.
        digest: `PolicySnapshot.digest` of that version.
        spec: The policy spec (`rl4sys_zmq.wire.specs`).
        pub: URI of the learner's PUB socket. A ``*`` as the host stands for the host to which the actor has connected.
        received: Next sequence number that the learner expects.
        durable: The actor can discard all segments below this sequence number.
        accepted_steps: Total number of steps of all segments below `received`.
        algorithm_type: ``onpolicy`` or ``offpolicy``.
        rollout_length: Largest number of steps of a segment, unless the actor configures another number.
        max_policy_lag: Largest policy lag of a segment that is trained on unchanged, in versions; -1 for no limit.
        on_lag: Treatment of segments with a larger lag: ``drop`` or ``correct``.
        max_message_bytes: Largest message that the learner accepts.
        max_segment_steps: Longest segment that the learner accepts.
        heartbeat_s: Longest time that either side should let pass without sending a message.
        weights: The client's settings for the number format and compression of the weights. Informative only: each update names
            its dtype.
        inference: URI of the inference service, in the form of `pub`; empty if there is none.
        relays: The relays from which this actor should take the weights, nearest first, as lists ``[URI, public key or ""]``.
            Empty: take the weights from `pub`.
        tag_key: The secret key of the tags of published versions (`rl4sys_zmq.weights.tag_of`), 32 bytes; empty if there are no
            tags. Relays do not get it.
        no_masks: The reason why segments must have no action masks, for people; empty if they can.
        body: The blob of the spec (bytes such as an ONNX graph); no frame if the spec has no blob, or the actor holds a version
            of this generation.
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
    relays: list[Any] = field(default_factory=list)
    tag_key: AnyBytes = field(default=AnyBytes(b""), repr=False)
    no_masks: str = ""
    body: tuple[Frame, ...] = field(default=(), repr=False)


@immutable
class Ack(ToActor):
    """The learner's progress with one stream, and the actor's credit.

    Attributes:
        generation: Generation of the client. If the actor knows another generation, it ignores the other fields. If the actor
            knows a lower one, it opens its session again.
        received: Next sequence number that the learner expects. It has accepted all segments below.
        durable: All segments below this sequence number are in the learner's journal.
        trained: All segments below this sequence number have a verdict.
        checkpointed: All segments below this sequence number are covered by a checkpoint.
        accepted_steps: Total number of steps of all segments below `received`.
        credit_steps: The actor can send a segment while `accepted_steps` and the steps in flight are together less than this.
        credit_items: The actor can send segments below this sequence number.
        credit_bytes: The actor can send a segment while fewer bytes than this are in flight (sent, but not below `received`).
        min_version: Lowest policy version, within `generation`, with which the actor should start a segment.
        verdicts: Number of this stream's segments by verdict.
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


@immutable
class Refused(ToActor):
    """The answer to a message that is not accepted, and the reason.

    Attributes:
        code: A value of `rl4sys_zmq.errors.RefusalReason`.
        field: The configuration field in which actor and learner differ; ``keys`` if the actor lacks a right; ``rate`` if the
            actor exceeded a rate limit; the client's name in an answer to `FollowWeights`; empty for other reasons.
        reason: The reason in one line for a person, with the numbers.
        expected_seq: With the code ``gap``, the sequence number to send next.
        incarnation: With the code ``fenced``, the incarnation on record, if the actor is allowed to take a higher number and
            try again; else 0.
    """

    KIND: ClassVar[int] = 19
    code: str
    field: str
    reason: str
    expected_seq: int = 0
    incarnation: int = 0


@immutable
class WeightsReply(ToActor):
    """The answer to `FetchWeights`: one or more weight updates, to be applied in order.

    Attributes:
        body: Two frames for each update: the weights header of 72 bytes (`rl4sys_zmq.weights.header`), and the payload.
        tags: The tag of the version that each update leads to, as bytes (empty if unknown); an empty list without tags.
    """

    KIND: ClassVar[int] = 20
    body: tuple[Frame, ...]
    tags: list[Any] = field(default_factory=list)


@immutable
class StatusReply(ToActor):
    """The answer to `StatusRequest`.

    Attributes:
        body: The history, if it was requested: one frame of JSON, ``{"next_record": int, "records": [...]}``. ``next_record`` is
            the `StatusRequest.since` with which to ask for the records after these. Not all that there are need be sent.
    """

    KIND: ClassVar[int] = 21
    report: Document
    body: tuple[Frame, ...] = ()


@immutable
class Beacon(ToActor):
    """The newest version of one policy. Actors compare it with their own version, and so notice missed updates.

    The learner sends it once a second on its PUB socket, and over the connection of an actor that takes its weights from a
    relay.

    Attributes:
        digest: The digest of the newest version.
        alarms: Number of alarms of the client by kind, since the learner's start.
        tag: The tag of the newest version (`rl4sys_zmq.weights.tag_of`), 16 bytes; empty if versions have no tags.
    """

    KIND: ClassVar[int] = 22
    generation: int
    version: int
    digest: int
    alarms: Document = field(default_factory=dict)
    tag: AnyBytes = AnyBytes(b"")


@immutable
class WeightsSource(ToActor):
    """The answer to `FollowWeights`: the topic and the socket at which a learner or a relay publishes a client's weights.

    Attributes:
        topic: 8 random bytes, with which the receiver subscribes, as in `Welcome`. Each relay has topics of its own.
        version: The newest version that the sender holds.
        tensors: Names, shapes and dtypes of the policy's tensors.
        pub: URI of the sender's PUB socket. A ``*`` as the host stands for the host to which the receiver has connected.
    """

    KIND: ClassVar[int] = 24
    client_id: str
    policy_id: bytes
    topic: bytes
    generation: int
    version: int
    digest: int
    tensors: list[Any]
    pub: str


@immutable
class OperatorCommandDone(ToActor):
    """The answer to an `OperatorCommand`. The learner sends it when the result would survive the end of its process.

    Attributes:
        text: The result in one or two lines for a person.
        figures: The numbers of the result, by name.
    """

    KIND: ClassVar[int] = 23
    text: str
    figures: Document


Message = (
    Hello
    | Submit
    | Heartbeat
    | FetchWeights
    | StatusRequest
    | FollowWeights
    | ActorReport
    | Bye
    | OperatorCommand
    | Welcome
    | Ack
    | Refused
    | WeightsReply
    | StatusReply
    | Beacon
    | WeightsSource
    | OperatorCommandDone
)
