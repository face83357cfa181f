"""The learner's side of the protocol with actors: sessions, acknowledgements and refusals, without sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, assert_never

from rl4sys_zmq.delivery.credit import QUEUE_ITEMS, DataAmount
from rl4sys_zmq.delivery.intake import take_submit
from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.errors import Closed, ConfigError, ProtocolError, RefusalReason, RL4SysError
from rl4sys_zmq.learner.gateway.admission import RefusalLog, check_hello, require_match
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState, Relays
from rl4sys_zmq.learner.gateway.relays import RelayDirectory
from rl4sys_zmq.learner.registry import mask_refusal
from rl4sys_zmq.limits import MAX_SEGMENT_STEPS
from rl4sys_zmq.liveness import HEARTBEAT_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.loopback import is_local
from rl4sys_zmq.security.access import User
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import decode, encode, read_heads
from rl4sys_zmq.wire.frames import pack_frames, pack_header
from rl4sys_zmq.wire.messages import (
    ActorReport,
    AnyBytes,
    Bye,
    FetchWeights,
    FollowWeights,
    Frame,
    Heartbeat,
    Hello,
    Message,
    OperatorCommand,
    OperatorCommandDone,
    Refused,
    StatusReply,
    StatusRequest,
    Submit,
    ToActor,
    Verdict,
    Welcome,
)

if TYPE_CHECKING:
    from rl4sys_zmq.learner.gateway.core import LearnerCore

log = get_logger(__name__)

MAX_LIBRARY = 80
MAX_ADDRESS = 256
MAX_REFUSAL_TEXT = 4_000
"""Largest number of characters of a text in a refusal. A string in a message has at most 16,384 bytes, and a character takes up
to four of them. The receiver would drop the whole refusal with a longer text."""

MAX_MESSAGE_BYTES = 1 << 26

MESSAGE_COST = {Hello: 20.0, StatusRequest: 10.0, FetchWeights: 5.0, Submit: 5.0}
"""The cost of a message by its type, for the rate limit of its connection. Messages of other types cost 1."""

REFUSED_COST = 5.0
"""The lowest cost of a message that is refused."""

NO_SESSION_COST = 0.5
"""The cost of a message that is refused because its peer has no session."""

CREDITED_COST = -2.0
"""The cost of a `Submit` with new segments that the actor had credit for. It is negative: the message pays for two others."""

STATUS_BURST_S, STATUS_REST_FACTOR = 0.5, 20.0
"""Limit on the time for building statuses. Each build adds `STATUS_REST_FACTOR` times its duration to a balance, which falls
with time. While the balance is above `STATUS_BURST_S` seconds, a request gets the last status again.
"""

ACK_LONG_S, ACK_REST_FACTOR, ACK_REST_MAX_S = 0.5e-3, 4.0, 0.1
"""If the acks of a client take longer than `ACK_LONG_S` seconds, its next acks wait `ACK_REST_FACTOR` times as long, but at
most `ACK_REST_MAX_S` seconds. Without this bound, a gateway that the system suspended for 250 ms granted no credit for a
second.
"""


class ActorSessionHandler:
    """The object that handles the messages of all actors of a learner: it opens, serves and closes their sessions.

    Attributes:
        sessions: The client and the stream of each peer with a session, by routing id.
        pub_address: The URI at which weights are published, as actors are told it.
        inference_address: The URI of the inference service, as actors are told it; empty if there is none.
    """

    def __init__(self, core: LearnerCore, authorizer: Authorizer) -> None:
        self._core, self._authorizer = core, authorizer
        self._config, self._registry, self._journal = core.config, core.registry, core.journal
        self._counters, self._sink, self._callbacks = core.counters, core.sink, core.callbacks
        self._monotonic = core.callbacks.monotonic
        self.sessions: dict[bytes, tuple[ClientState, SegmentStream]] = {}
        self.pub_address = self.inference_address = ""
        self.relays = RelayDirectory(core.config.relays)
        self._refusals = RefusalLog(core.sink)
        self._live_by_user: Counter[str] = Counter()
        self._status: dict[str, Any] = {}
        self._status_headers: dict[frozenset[str] | None, bytes] = {}
        self._status_until = 0.0

    def receive(self, peer: bytes, sender: User | None, frames: Sequence[Frame], now: float) -> float:
        """Handle a message of an actor or an operator. Return its cost for the rate limit: a number of ordinary messages."""
        cost = 1.0
        try:
            message = decode(frames, max_bytes=MAX_MESSAGE_BYTES)
            cost = MESSAGE_COST.get(type(message), cost)
            return self._on_message(peer, sender, message, frames, now) or cost
        except ProtocolError as exc:
            # After a restart of the learner, each actor's queue arrives before its HELLO. This must cost little.
            cost = NO_SESSION_COST if exc.code is RefusalReason.NO_SESSION else max(cost, REFUSED_COST)
            self.refuse_error(peer, exc)
        except Exception as exc:  # a message of one peer must not end the service for all others
            log.exception("a message of one peer raised an unexpected error; it was refused")
            self.refuse(peer, RefusalReason.INTERNAL, f"{type(exc).__name__} in the learner; see its log")
        return cost

    def refuse_error(self, peer: bytes, exc: ProtocolError) -> None:
        """Send a peer a `Refused` with the code and the text of `exc`, the error that the peer's message has caused."""
        field = "keys" if exc.code in (RefusalReason.FORBIDDEN, RefusalReason.IDENTITY) else ""
        self.refuse(peer, exc.code, exc.detail, field=field, incarnation=exc.incarnation)

    def admit(self, peer: bytes, user: str, nbytes: int, now: float) -> User | None:
        """Check the rights and the rate of a sender before its message is decoded. Return the user of the sender's key."""
        try:
            return self._authorizer.admit(user, nbytes, now)
        except ProtocolError as exc:
            session = self.sessions.get(peer)
            if exc.code is RefusalReason.FORBIDDEN and session is not None:
                self.close_session(peer, *session)
            raise

    def _on_message(
        self, peer: bytes, sender: User | None, message: Message, frames: Sequence[Frame], now: float
    ) -> float | None:
        """Handle a decoded message. Return its cost, or None for the usual cost of its type."""
        match message:
            case Hello():
                try:
                    self._on_hello(peer, sender, message, now)
                except ProtocolError as exc:
                    self._note_refusal(message, exc, now)
                    raise
            case StatusRequest():
                self._send_frames(peer, self._status_frames(sender, message.since))
            case OperatorCommand():
                self._on_command(peer, sender, message)
            case FollowWeights():
                self._on_follow(peer, sender, message, now)
            case FetchWeights():
                self._on_fetch(peer, sender, message, now)
            case Submit():
                client, stream = self._session_of(peer, sender, now)
                self._authorizer.check_role(sender, "submit")
                if sender is not None and sender.quota.segment_steps is not None:
                    self._authorizer.check_steps(sender, read_heads(message)["steps"].tolist())
                received, had_credit = stream.received, stream.accepted_steps < stream.credit_steps
                self._on_submit(peer, client, stream, message, frames)
                if had_credit and stream.received > received:
                    return CREDITED_COST
            case Heartbeat():
                client, stream = self._session_of(peer, sender, now)
                stream.request_credit(client.pool.limit_request(stream, message.want_steps, client.rollout_length))
                client.dirty.add(stream.actor_id)
            case ActorReport():
                client, stream = self._session_of(peer, sender, now)
                self._core.system.note_actor(client.client_id, stream.actor_id, message)
            case Bye():
                self.close_session(peer, *self._session_of(peer, sender, now))
            case ToActor():
                raise ProtocolError(RefusalReason.DIRECTION, f"{type(message).__name__} is not for a learner")
            case _:
                assert_never(message)
        return None

    def _session_of(self, peer: bytes, sender: User | None, now: float) -> tuple[ClientState, SegmentStream]:
        """Return the client and the stream of the session of the peer from which a message has arrived."""
        session = self.sessions.get(peer)
        if session is None:
            raise ProtocolError(RefusalReason.NO_SESSION, "this connection has no session; send HELLO first")
        client, stream = session
        if sender is not None and stream.owner != sender.name:
            raise ProtocolError(RefusalReason.IDENTITY, "this session belongs to another key")
        stream.last_seen = now
        if client.state is LearnerThreadState.FAILED:
            raise ProtocolError(RefusalReason.FAILED, client.error)
        return session

    def _on_fetch(self, peer: bytes, sender: User | None, message: FetchWeights, now: float) -> None:
        if message.client_id:
            self._authorizer.check_fetch(sender, now)
            client = self._followed(sender, message.client_id)
        else:
            client, _ = self._session_of(peer, sender, now)
            try:
                self._authorizer.check_fetch(sender, now)
            except ProtocolError as exc:  # the session stays open: the actor can still submit
                self.refuse(peer, exc.code, exc.detail)
                return
        self._send(peer, client.publishing.history.catch_up(message.held_generation, message.held_version))

    def _on_follow(self, peer: bytes, sender: User | None, message: FollowWeights, now: float) -> None:
        try:
            self._authorizer.check_reader(sender)
            client = self._followed(sender, message.client_id)
        except ProtocolError as exc:
            self.refuse(peer, exc.code, exc.detail, field=message.client_id)
            return
        self.relays.note_request(sender.name if sender is not None else "", self._callbacks.sender_host(), message, now)
        client.note_subscriber(self._callbacks.sender_host(), relays=bool(message.relay))
        self._send(peer, client.publishing.source(client.client_id, self.pub_address))

    def _followed(self, sender: User | None, client_id: str) -> ClientState:
        self._authorizer.check_client(sender, client_id)
        client = self._registry.get(client_id)
        if client is None or client.state is LearnerThreadState.STARTING:
            raise ProtocolError(RefusalReason.STARTING, f"there are no weights of client {client_id!r:.80} so far")
        if client.state is LearnerThreadState.FAILED:
            raise ProtocolError(RefusalReason.FAILED, client.error)
        return client

    def _status_frames(self, sender: User | None, since: int) -> list[Frame]:
        """Return the status that a user may see, as a message, with the history from `since` on.

        If statuses took too much time lately, it is the last one, without records.
        """
        if limited := self._authorizer.limited_status(sender):
            names = (c.client_id for c in self._registry if sender is None or sender.may_act_for(c.client_id))
            known = {"version": package_version(), "pub": self.pub_address, "clients": {name: {} for name in names}}
            return encode(StatusReply(limited | known))
        now = self._monotonic()
        scope = sender.client_ids if sender is not None else None
        if has_time := now + STATUS_BURST_S >= self._status_until:
            self._status, self._status_headers = self._callbacks.status(), {}
        if scope not in self._status_headers:
            self._status_headers[scope] = _status_header(self._authorizer.visible_status(sender, self._status))
            has_time = True
        body = self._history(sender, since) if has_time and since >= 0 else ()
        frames = pack_frames(StatusReply.KIND, self._status_headers[scope], body)
        if has_time:
            self._status_until = max(self._status_until, now) + STATUS_REST_FACTOR * (self._monotonic() - now)
        return frames

    def _history(self, sender: User | None, since: int) -> tuple[Frame, ...]:
        may_see = sender.may_act_for if sender is not None else lambda client_id: True
        records, following = self._callbacks.history(since, may_see)
        return (b'{"next_record": %d, "records": %b}' % (following, records),)

    def _on_submit(
        self, peer: bytes, client: ClientState, stream: SegmentStream, message: Submit, frames: Sequence[Frame]
    ) -> None:
        if not stream.submits:
            raise ProtocolError(RefusalReason.QUOTA, "this actor joined for evaluation only and cannot submit")
        if (queued := client.pool.transit.items) + message.count > QUEUE_ITEMS:
            raise ProtocolError(RefusalReason.QUOTA, f"{queued} segments are queued; the limit is {QUEUE_ITEMS}")
        assert client.schema is not None  # a session begins after the learner thread is ready
        client.dirty.add(stream.actor_id)
        try:
            intake = take_submit(stream, client.schema, message, frames)
        except ProtocolError as exc:
            self.refuse(peer, exc.code, exc.detail, expected_seq=stream.received)
            return
        stream.request_credit(client.pool.limit_request(stream, message.want_steps, client.rollout_length))
        books = client.books
        books.verdicts[Verdict.DUPLICATE] += intake.duplicates
        books.verdicts[Verdict.REFUSED] += len(intake.refused)
        for error in intake.refused:
            books.counters.add(f"items_refused.{error.code.value}")
            self._sink.event("item_refused", client_id=client.client_id, actor_id=stream.actor_id, reason=str(error))
        books.accepted += intake.accepted
        if intake.entry is not None:
            stream.measure(intake.entry.steps, stream.last_seen)
            if intake.accepted:
                client.pool.transit.accept(DataAmount(intake.entry.steps, intake.accepted, intake.entry.nbytes))
            self._journal.append([intake.entry])

    def _on_command(self, peer: bytes, sender: User | None, command: OperatorCommand) -> None:
        self._authorizer.check_role(sender, "admin")
        self._authorizer.check_client(sender, command.client_id)
        if sender is None and not is_local(self._config.bind):
            raise ProtocolError(
                RefusalReason.FORBIDDEN,
                "commands need keys on a learner that other machines can reach, and this learner has none",
            )
        self._counters.add("commands")
        self._core.operator.do(command).add_done_callback(lambda done: self._answer(peer, done))

    def _answer(self, peer: bytes, done: Future[OperatorCommandDone]) -> None:
        error = done.exception()
        match error:
            case None:
                self._send(peer, done.result())
            case ConfigError():
                self.refuse(peer, RefusalReason.CONFIG, str(error), field=error.key)
            case ProtocolError():
                self.refuse(peer, error.code, error.detail)
            case Closed():
                self.refuse(peer, RefusalReason.CLOSING, str(error))
            case RL4SysError():
                self.refuse(peer, RefusalReason.FAILED, str(error))
            case _:
                log.error("an operator's command failed with an unexpected error", exc_info=error)
                self.refuse(peer, RefusalReason.INTERNAL, f"{type(error).__name__} in the learner; see its log")

    def _on_hello(self, peer: bytes, sender: User | None, hello: Hello, now: float) -> None:
        self._counters.add("hellos")
        code = RefusalReason.CONFIG
        try:
            check_hello(hello)
            # An actor whose configuration names relays gets none.
            host = self._callbacks.sender_host()
            relays = self.relays.choose(hello.actor_id, host) if not hello.relay else []
            client = self._registry.get(hello.client_id)
            if sender is not None:
                owner = client.table.owner_of(hello.actor_id) if client is not None else ""
                self._authorizer.check_hello(sender, hello, owner, self._live_actors(sender.name, client, hello.actor_id))
            if client is None:
                self._core.operator.make_room(now)
                client = self._registry.create(hello)
                started = {"algorithm": client.settings.algorithm_name, "seed": client.settings.seed}
                self._sink.event("client_started", client_id=client.client_id, **started)
            else:
                code = RefusalReason.MISMATCH
                require_match(client.settings, hello)
        except ConfigError as exc:
            self._refusals.note(hello, code, str(exc), exc.key, now)
            self.refuse(peer, code, str(exc), field=exc.key)
            return
        client.note_subscriber(host, relays=False)
        name = sender.name if sender is not None else ""
        match client.state:
            case LearnerThreadState.STARTING:
                if client.waiting.pop(peer, None):  # a repeated HELLO: the actor can wait longer. It is not counted as refused
                    reason = f"client {client.client_id!r} has been starting for {now - client.worker.started_at:.0f} s"
                    self._send(peer, Refused(RefusalReason.STARTING.value, "", reason, 0, 0))
                while len(client.waiting) >= self._config.max_actors:
                    del client.waiting[next(iter(client.waiting))]  # the oldest; its actor sends HELLO again if it is alive
                client.waiting[peer] = hello, name, host, relays
            case LearnerThreadState.FAILED:
                raise ProtocolError(RefusalReason.FAILED, client.error)
            case LearnerThreadState.RUNNING:
                self._welcome(peer, client, hello, name, host, relays, now)

    def _note_refusal(self, hello: Hello, error: ProtocolError, now: float) -> None:
        if not error.incarnation:  # else, the refusal only tells the actor to continue with a higher one
            self._refusals.note(hello, error.code, error.detail, "", now)

    def _live_actors(self, user: str, client: ClientState | None, replaces: str) -> int:
        """Return how many actors of a user have a session. The actor `replaces`, which opens a new one, is not counted."""
        this = client is not None and client.table.is_actor_live(replaces) and client.table.owner_of(replaces) == user
        return self._live_by_user[user] - this

    def _welcome(self, peer: bytes, client: ClientState, hello: Hello, user: str, host: str, relays: Relays, now: float) -> None:
        owner = client.table.owner_of(hello.actor_id)
        if owner not in ("", user):  # two users with one actor name may have waited for the learner thread
            raise ProtocolError(RefusalReason.IDENTITY, f"actor {hello.actor_id!r:.80} belongs to another key")
        before = self.sessions.get(peer)
        if before is not None and (before[0] is not client or before[1].actor_id != hello.actor_id):
            self.close_session(peer, *before)  # a connection has a session for one actor
        spoke = client.table.is_actor_live(hello.actor_id)
        opened = client.table.open(hello, peer, now)
        stream = opened.stream
        stream.owner, stream.library, stream.address = user, hello.library[:MAX_LIBRARY], host
        stream.relay = hello.relay[:MAX_ADDRESS] or (relays[0][0] if relays else "")
        publishing, settings = client.publishing, client.settings
        if stream.relay and not publishing.tag_key:
            publishing.start_tagging()
        if spoke:
            self._live_by_user[owner] -= 1
        self._live_by_user[user] += 1
        for gone in opened.evicted:
            self._counters.add("actors_evicted")
            self._journal.drop_stream(client.client_id, gone.actor_id, gone.origin, expires=False)
        if opened.previous_peer is not None:
            self.sessions.pop(opened.previous_peer, None)
        before = self.sessions.get(peer)
        if before is not None and before[1] is not stream:
            self.close_session(peer, *before)
        self.sessions[peer] = client, stream
        if opened.gap:
            self._on_gap(client, stream, opened.gap)
        else:
            self._journal.put_stream(client.stream_row(stream))
        client.pool.reclaim(stream)
        client.dirty.add(stream.actor_id)
        history = publishing.history
        welcome = Welcome(
            policy_id=publishing.policy_id,
            topic=publishing.topic,
            journal_id=self._journal.journal_id,
            gap=opened.gap,
            generation=history.generation,
            version=history.version,
            digest=history.digest,
            spec=publishing.spec_document,
            pub=self.pub_address,
            received=stream.received,
            durable=stream.durable,
            accepted_steps=stream.accepted_steps,
            algorithm_name=settings.algorithm_name,
            algorithm_type=client.algorithm_type,
            rollout_length=client.rollout_length,
            max_policy_lag=client.max_policy_lag,
            on_lag=settings.on_lag,
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_segment_steps=MAX_SEGMENT_STEPS,
            heartbeat_s=HEARTBEAT_S,
            weights=settings.weights.to_json(),
            inference=self.inference_address,
            relays=relays,
            tag_key=AnyBytes(publishing.tag_key if stream.relay else b""),
            no_masks=mask_refusal(settings.algorithm_name),
            body=() if hello.held_generation == history.generation else publishing.spec_body,
        )
        self._send(peer, welcome)
        if before is None or before[1] is not stream:  # a HELLO that was resent joins once
            self._sink.event("actor_joined", client_id=client.client_id, actor_id=hello.actor_id, first_seq=hello.first_seq)

    def _on_gap(self, client: ClientState, stream: SegmentStream, gap: int) -> None:
        """Count segments that were acknowledged, but are not in the journal. The actor cannot send them again."""
        log.error(
            "client %s: %d acknowledged segments of actor %s are not in the journal (gap)", client.client_id, gap, stream.actor_id
        )
        client.books.add_gap(gap)
        self._journal.add_gap(client.client_id, gap, client.stream_row(stream))
        self._sink.event("gap", client_id=client.client_id, actor_id=stream.actor_id, segments=gap)

    def close_session(self, peer: bytes, client: ClientState, stream: SegmentStream) -> None:
        """Close the session of an actor. Other actors can then get its unused credit."""
        self.sessions.pop(peer, None)
        if client.table.is_actor_live(stream.actor_id):
            self._live_by_user[stream.owner] -= 1
        client.table.close_session(stream)
        client.pool.reclaim(stream)

    def close_client_sessions(self, client: ClientState, reason: str) -> None:
        """Close the sessions of all actors of a client. Refuse each actor with the reason, so that it requests a new session."""
        for stream in client.table.live():
            self.remove_actor(client, stream, reason)

    def remove_actor(self, client: ClientState, stream: SegmentStream, reason: str) -> None:
        """Close the session of one actor, and refuse the actor with the reason. The actor then requests a new session."""
        peer = client.table.peer_of(stream)
        if peer is not None:
            self.close_session(peer, client, stream)
            self.refuse(peer, RefusalReason.NO_SESSION, reason)

    def admit_waiting(self, client: ClientState, now: float) -> None:
        """Answer the requests for sessions that arrived while the learner thread of a client was starting."""
        waiting, client.waiting = client.waiting, {}
        for peer, (hello, user, host, relays) in waiting.items():
            try:
                self._welcome(peer, client, hello, user, host, relays, now)
            except ProtocolError as exc:
                self._note_refusal(hello, exc, now)
                self.refuse(peer, exc.code, exc.detail, incarnation=exc.incarnation)

    def send_acks(self, client: ClientState, room_bytes: int) -> None:
        """Grant credit to the actors of a client, and send `Ack` messages with new credit, new marks or both.

        Do nothing if the last call took long and was a short time ago. `room_bytes`: the free bytes of the journal.
        """
        if (began := self._monotonic()) < client.next_grant_at:
            return
        live = client.table.live()
        client.dirty.update(s.actor_id for s in client.pool.grant(live, began))
        shares = client.pool.shares(live, room_bytes)
        for stream in live:
            peer = client.table.peer_of(stream)
            if stream.actor_id in client.dirty and peer is not None:
                self._send(peer, client.pool.ack(stream, client.publishing.history.generation, shares))
        client.dirty.clear()
        done = self._monotonic()
        rest_s = min(ACK_REST_FACTOR * (done - began), ACK_REST_MAX_S)
        client.next_ack_at = done + rest_s if done - began > ACK_LONG_S else 0.0

    def send_beacons(self, client: ClientState) -> None:
        """Send a beacon to the actors that use a relay. With it, they notice a relay that is late or has changed the weights."""
        followers = [stream for stream in client.table.live() if stream.relay]
        frames = encode(client.beacon()) if followers else []
        for stream in followers:
            peer = client.table.peer_of(stream)
            if peer is not None:
                self._send_frames(peer, frames)

    def refuse(
        self, peer: bytes, code: RefusalReason, reason: str, *, field: str = "", expected_seq: int = 0, incarnation: int = 0
    ) -> None:
        """Send a peer the refusal of a message, and count the refusal under its code."""
        self._counters.add(f"refused.{code.value}")
        short_field, short_reason = field[:MAX_REFUSAL_TEXT], reason[:MAX_REFUSAL_TEXT]
        self._send(peer, Refused(code.value, short_field, short_reason, expected_seq, incarnation))

    def _send(self, peer: bytes, message: Message) -> None:
        self._send_frames(peer, encode(message))

    def _send_frames(self, peer: bytes, frames: Sequence[Frame]) -> None:
        sent = self._callbacks.send(peer, frames)
        if sent is SendResult.OK:
            return
        self._counters.add(f"replies_dropped.{sent.value}")
        session = self.sessions.get(peer)
        if sent is SendResult.GONE and session is not None:
            self.close_session(peer, *session)


def _status_header(report: dict[str, Any]) -> bytes:
    """Return the header of a status. If it is too long, leave out actors: those that were silent for the longest time."""
    while True:
        try:
            return pack_header({"report": report})
        except ProtocolError as exc:
            clients = report["clients"].values()
            most = max((len(client["actors"]) for client in clients), default=0)
            if exc.code is not RefusalReason.TOO_LARGE or not most:
                raise
            for client in clients:
                order = sorted(client["actors"].items(), key=lambda named: (not named[1]["live"], named[1]["silent_s"]))
                client["actors"] = dict(order[: most // 2])
