"""The messages between a learner and its actors, relays and operators: one dataclass for each kind.

There are two conversations:

- a peer and the learner or a relay, in both directions (DEALER and ROUTER)
- the learner or a relay to all actors (PUB)

The messages between the threads of a learner are in `rl4sys_zmq.wire.thread_messages`.

The base class of a message gives its direction, and `Message` is the union of all messages. Code that receives messages of one
direction uses a `match` statement with a case for each of them. It refuses the messages of the other direction by their base
class and ends in `assert_never`. The type checker then reports a message without a case.

A *segment* is consecutive steps of one episode. A *client* is a policy with its learner. A *stream* is the numbered segments of
one actor for one client. Its *origin* is the incarnation that began the numbering. A *mark* is a sequence number: all segments
below it are received, durable, trained or checkpointed. A *verdict* is the result for a segment, such as trained. A
*generation* is the number of a learner thread; policy versions count within it.

A field named ``body`` holds the frames after the first one. The other fields are in the msgpack header of the first frame, unless
their description says otherwise. Sequence numbers count the segments of one actor's stream, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NewType

Frame = bytes | memoryview
AnyBytes = NewType("AnyBytes", bytes)
"""The type of a field with bytes of any length. A field of the type ``bytes`` must have exactly 8 bytes."""

Document = dict[str, Any]
"""The type of a field with a dict of nested JSON values and numpy arrays. The code that uses the field checks its contents."""


class Verdict:
    """The possible results for a segment that an actor sent. Actor and learner count the segments with each result.

    ``trained``: the segment was trained on. ``stale``: it was too old (over the limit on the policy lag). ``quarantined``: it was
    accepted, but is unfit for training. ``evaluated``: it has the return of an evaluation, and was counted. ``overridden``: the
    host overrode its actions, and an on-policy algorithm leaves it out. ``refused``: it was not accepted. ``duplicate``: it had
    been received before, and this delivery was skipped. `FINAL` has the results of accepted segments. `RARE` has those that
    most runs lack.
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
    """The base class of messages from an actor, a relay or an operator to the learner.

    A relay receives some of these messages too, from its own peers.
    """

    __slots__ = ()


class ToActor:
    """The base class of messages from the learner, or from a relay, to an actor, a relay or an operator."""

    __slots__ = ()


# ---- actor to learner


@dataclass(frozen=True, slots=True)
class Hello(ToLearner):
    """A request of an actor to open or reopen its session. An empty field means that the actor accepts the learner's value.

    Attributes:
        client_id: Name of the client for which the actor acts.
        actor_id: Name of the actor that sends the message.
        incarnation: Number of this start of the actor; later starts have higher numbers. If a higher number is on record, the
            learner answers with `Refused` and the code ``fenced``.
        first_seq: Lowest sequence number of the segments that the actor still holds.
        held_generation: Generation (number of the learner thread) of the policy that the actor uses; 0 if it has none.
        held_version: Version of that policy.
        algorithm_name: Name of the algorithm, or empty.
        algorithm_parameters: Parameters of the algorithm, as the user wrote them.
        algorithm_type: ``onpolicy``, ``offpolicy`` or empty. Informative only; `Welcome` has the value that is used.
        observation_space: The space in JSON form, or empty.
        action_space: The space in JSON form, or empty.
        submits: False for an actor that only receives weights.
        library: Name and version of the sender's library. Informative only.
        origin: Incarnation that began the numbering of this actor's segments; 0 means this incarnation.
        journal_id: Id of the journal (the learner's record of accepted segments), from the last `Welcome` for this origin; 0
            before the first.
        spooled: True if the actor keeps segments and their numbers on disk, so that both survive the end of its process.
        weights: The actor's settings ``wire_dtype`` and ``level`` for the encoding of weights.
        previously_welcomed: True if this start of the actor has received a `Welcome` before.
        relay: The first relay that the actor's own configuration names, as a URI; empty if it names none. The learner then
            publishes tags (`Welcome.tag_key`).
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


@dataclass(frozen=True, slots=True)
class Submit(ToLearner):
    """A message with segments of an actor, numbered from `first_seq`.

    Attributes:
        first_seq: Sequence number of the first segment. It is sent in the prefix of the message, not in the header.
        count: Number of segments. It is sent in the prefix too.
        want_steps: Total number of steps that the actor asks to be allowed to send, as in `Heartbeat`.
        layouts: The different column layouts of the segments, each as a text: dtype and row shape of each column
            (`rl4sys_zmq.wire.layout`). The head of a segment has an index into this list.
        heads: The heads of all segments, one after the other. A head is a record of 64 bytes with the numbers of one segment
            (`rl4sys_zmq.wire.segments`).
        body: The columns of all segments, as frames.
        codings: Lengths and compression of the parts of each frame of the body (`rl4sys_zmq.wire.coding`); empty if no frame is
            compressed.
        digests: The xxh3-64 of each frame of the body, or None where it is unknown. The field is not sent. It saves `encode` the
            computation of digests that are already known.
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


@dataclass(frozen=True, slots=True)
class Heartbeat(ToLearner):
    """A regular message that shows that an actor is alive, with the number of steps that it asks to be allowed to send.

    Attributes:
        want_steps: Total number of steps since the actor's numbering of segments began, including those already sent, as in
            `Ack.credit_steps`. Only the newest value counts. With a smaller value than before, the actor gives up a part of its
            allowance.
    """

    KIND: ClassVar[int] = 3
    want_steps: int


@dataclass(frozen=True, slots=True)
class FetchWeights(ToLearner):
    """A request of an actor for the current weights. The answer is `WeightsReply`.

    Attributes:
        held_generation: Generation (number of the learner thread) of the policy that the actor holds; 0 if it has none. With
            this field, the learner can answer with a diff.
        held_version: Version of that policy.
        client_id: In a session: empty. Without a session (from a relay, or to a relay): the client whose weights are requested.
    """

    KIND: ClassVar[int] = 4
    held_generation: int
    held_version: int
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class StatusRequest(ToLearner):
    """A request for the learner's status. The sender needs no session. The answer is `StatusReply`."""

    KIND: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class Bye(ToLearner):
    """The last message of an actor before it closes. This start of the actor sends nothing more."""

    KIND: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class OperatorCommand(ToLearner):
    """An operator's command to the learner about one client.

    The sender needs no session. The answer is `OperatorCommandDone` or `Refused`.

    Attributes:
        command: ``restart`` the learner thread from the newest checkpoint, ``give-up-pending`` (the same, without the segments
            accepted after that checkpoint), ``forget`` the client with its data, ``drop-actor`` (close an actor's session, and
            release its name), or ``set`` parameters.
        client_id: The client to act on.
        actor_id: The actor to drop, for ``drop-actor``; else empty.
        values: New values of parameters of the client's algorithm by name, for ``set``; else empty.
    """

    KIND: ClassVar[int] = 7
    command: str
    client_id: str
    actor_id: str = ""
    values: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FollowWeights(ToLearner):
    """A request for the addresses of a client's weights, from a relay to a learner, or from an actor or a relay to a relay.

    A relay is a process that passes weights on. The sender needs no session. It repeats the request once a second, so that both
    sides notice the end of the other. The answer is `WeightsSource`, or `Refused` with the client's name in the field ``field``.

    Attributes:
        client_id: Name of the client.
        relay: The URI at which the sender serves its own peers, if it is a relay; else empty. Informative only.
        children: The number of peers that follow this client at the sender, if it is a relay; else 0. Informative only.
        generation: The oldest generation (number of the learner thread) of use to the sender. A relay that holds an older one
            answers when it has received this one. 0: any.
    """

    KIND: ClassVar[int] = 8
    client_id: str
    relay: str = ""
    children: int = 0
    generation: int = 0


# ---- learner to actor


@dataclass(frozen=True, slots=True)
class Welcome(ToActor):
    """The answer to an accepted `Hello`. It opens the session and contains all settings that the actor needs.

    Attributes:
        policy_id: 8 bytes that identify the policy. They are repeated in the header of each weight update.
        topic: 8 random bytes. The actor subscribes to the client's messages on the learner's PUB socket by a prefix: a byte for
            the kind of message, then these bytes. The learner replaces them when a user loses the right to read the weights.
        journal_id: Id of the learner's journal.
        gap: Number of segments that an earlier `Ack` reported as durable, but that are missing in this journal.
        generation: Number of the learner thread that trains the policy. Versions count within it.
        version: Current version of that policy.
        digest: Checksum (xxh3-64) of that version's weights, as in `PolicySnapshot.digest`.
        spec: The policy spec, from which the actor builds the policy (`rl4sys_zmq.wire.specs`).
        pub: URI of the learner's PUB socket. A ``*`` as the host stands for the host to which the actor has connected.
        received: Next sequence number that the learner expects.
        durable: The actor can discard all segments below this sequence number.
        accepted_steps: Number of steps of this stream that the learner has accepted so far, as in `Ack.accepted_steps`.
        algorithm_name: Name of the client's algorithm.
        algorithm_type: ``onpolicy`` or ``offpolicy``.
        rollout_length: Largest number of steps of a segment, unless the actor configures another number.
        max_policy_lag: Largest policy lag of a segment that is trained on unchanged; -1 for no limit. The lag is the number of
            versions by which the segment's oldest step is behind the newest version.
        on_lag: Treatment of segments with a larger lag: ``drop`` or ``correct``.
        max_message_bytes: Largest message that the learner accepts, in bytes.
        max_segment_steps: Longest segment that the learner accepts, in steps.
        heartbeat_s: Longest time that either side should let pass without sending a message, in seconds.
        weights: The client's settings ``wire_dtype`` and ``level`` for the encoding of weights. Informative only: the header of
            each update names the dtype of that update.
        inference: URI of the inference service, in the form of `pub`; empty if there is none.
        relays: The relays (processes that pass weights on) from which this actor should take the weights, nearest first: a list
            ``[URI, public key or ""]`` for each. Empty: take the weights from `pub`.
        tag_key: The secret key of the tags of published versions (`rl4sys_zmq.weights.tag_of`), 32 bytes; empty if there are no
            tags. Relays do not get it.
        no_masks: The reason why segments must have no action masks, for people; empty if they can.
        body: One frame with the blob of the spec; empty if the spec has no blob, or the actor holds a version of this generation.
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


@dataclass(frozen=True, slots=True)
class Ack(ToActor):
    """The learner's progress with one stream of segments, and the actor's credit (how much more it can send).

    The progress is given as sequence numbers.

    Attributes:
        generation: Number of the present learner thread. The actor ignores the rest of an `Ack` with another number. If the
            number is higher than the one it knows, it opens its session again.
        received: Next sequence number that the learner expects. It has accepted all segments below.
        durable: All segments below this sequence number are in the learner's journal.
        trained: All segments below this sequence number have a verdict (trained, stale, ...).
        checkpointed: All segments below this sequence number are covered by a checkpoint.
        accepted_steps: Total number of steps of all segments below `received`.
        credit_steps: The actor can send a segment while `accepted_steps` and the steps in flight are together less than this.
        credit_items: First sequence number that the actor must not send so far.
        credit_bytes: The actor can send a segment while fewer bytes than this are in flight (sent, but not below `received`).
        min_version: Lowest policy version, within `generation`, with which the actor should start a segment.
        verdicts: Dict from each verdict to the number of this stream's segments with that verdict.
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
        code: The reason as a code, such as ``fenced``: a value of `rl4sys_zmq.errors.RefusalReason`.
        field: The configuration field in which actor and learner differ; ``keys`` if the actor lacks a right; ``rate`` if it
            exceeded a rate limit; the client's name in an answer to `FollowWeights`; empty for other reasons.
        reason: The reason in one line for a person, with the numbers.
        expected_seq: With the code ``gap``, the sequence number to send next.
        incarnation: With the code ``fenced``, the number of the actor's start on record, if the actor is allowed to take a higher
            number and try again; else 0.
    """

    KIND: ClassVar[int] = 19
    code: str
    field: str
    reason: str
    expected_seq: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class WeightsReply(ToActor):
    """The answer to `FetchWeights`: one or more weight updates. The actor applies them in order.

    Attributes:
        body: Two frames for each update: the weights header of 72 bytes (`rl4sys_zmq.weights.header`), and the payload.
        tags: The tag of the version that each update leads to, as bytes (empty bytes if unknown); an empty list without tags.
    """

    KIND: ClassVar[int] = 20
    body: tuple[Frame, ...]
    tags: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StatusReply(ToActor):
    """The answer to `StatusRequest`, with the learner's status: nested dicts and values in the field `report`."""

    KIND: ClassVar[int] = 21
    report: Document


@dataclass(frozen=True, slots=True)
class Beacon(ToActor):
    """A message with the newest version of one policy. With it, actors notice that they have missed updates.

    The learner sends it once a second on its PUB socket. To an actor that takes its weights from a relay, it also sends it over
    the actor's own connection.

    Attributes:
        generation: Number of the learner thread that trains the policy. Versions count within it.
        version: The newest version.
        digest: Checksum (xxh3-64) of the weights of that version.
        alarms: Dict from the kind of an alarm to the number of such alarms of the client since the learner's start.
        tag: The tag of that version (`rl4sys_zmq.weights.tag_of`), 16 bytes; empty if versions have no tags.
    """

    KIND: ClassVar[int] = 22
    generation: int
    version: int
    digest: int
    alarms: Document = field(default_factory=dict)
    tag: AnyBytes = AnyBytes(b"")


@dataclass(frozen=True, slots=True)
class WeightsSource(ToActor):
    """The answer to `FollowWeights`: the topic and the socket at which a learner or a relay publishes a client's weights.

    Attributes:
        client_id: Name of the client.
        policy_id: 8 bytes that identify the policy, as in `Welcome`.
        topic: The topic at this sender, as in `Welcome`. Each relay has topics of its own.
        generation: Number of the learner thread that trains the policy. Versions count within it.
        version: The newest version that the sender holds.
        digest: Checksum (xxh3-64) of that version's weights.
        tensors: Names, shapes and dtypes of the tensors, as in the policy spec of `Welcome`.
        pub: URI of the sender's PUB socket, in the form of `Welcome.pub`.
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


@dataclass(frozen=True, slots=True)
class OperatorCommandDone(ToActor):
    """The answer to an `OperatorCommand` that was carried out. It is sent once the result would survive the end of the process.

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
