"""The reception: the gateway's side towards the actors. Who may say what, who joins, what is taken, and what is answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from rl4sys_zmq.config import LearnerConfig, Peer
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Ledger, Stream, take_submit
from rl4sys_zmq.errors import ConfigError, ProtocolError, Refusal
from rl4sys_zmq.learner.admission import check_names, require_match
from rl4sys_zmq.learner.client import QUEUE_ITEMS, Client, ClientState
from rl4sys_zmq.learner.guard import ActorGuard
from rl4sys_zmq.learner.learning import MAX_MESSAGE_FRAMES, MAX_SEGMENT_STEPS
from rl4sys_zmq.learner.recorder import Sink
from rl4sys_zmq.learner.roster import Roster
from rl4sys_zmq.transports import Address, Sent, Socket, TooManyFrames
from rl4sys_zmq.wire import decode, encode, read_heads
from rl4sys_zmq.wire.messages import (
    Bye,
    Fetch,
    Frame,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Status,
    StatusRequest,
    Submit,
    Verdict,
    Welcome,
)

__all__ = ["MAX_MESSAGE_BYTES", "Reception"]

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
MAX_MESSAGE_BYTES = 1 << 26
ROUTER_BURST = 256


class Reception:
    """Speaks with the actors through the ROUTER. Used in the gateway thread.

    Attributes:
        router: set once it is bound.
        pub_address: of the XPUB, likewise.
        inference_address: of the service that chooses actions, likewise.
    """

    router: Socket
    pub_address: str
    inference_address: str

    def __init__(
        self,
        config: LearnerConfig,
        roster: Roster,
        ledger: Ledger,
        guard: ActorGuard,
        counters: Counters,
        sink: Sink,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        """Makes it.

        Args:
            config: the learner's.
            roster: the clients.
            ledger: where accepted segments go.
            guard: rights and quotas.
            counters: the learner's.
            sink: where events go.
            status: what a `StatusRequest` is answered with.
        """
        self._config, self._roster, self._ledger, self._guard = config, roster, ledger, guard
        self._counters, self._sink, self._status = counters, sink, status
        self._sessions: dict[bytes, tuple[Client, Stream]] = {}

    # ---- what comes

    def read(self) -> None:
        """Takes what has come, as far as a turn allows."""
        for _ in range(ROUTER_BURST):
            try:
                frames = self.router.recv(MAX_MESSAGE_FRAMES)
            except TooManyFrames as exc:
                self.refuse(exc.first, exc.code, exc.detail)
                continue
            if frames is None:
                return
            peer = bytes(frames[0])
            try:
                sender = self._admit(peer, frames)
                self._on_message(peer, sender, decode(frames[1:], max_bytes=MAX_MESSAGE_BYTES), frames[1:])
            except ProtocolError as exc:
                rights = exc.code in (Refusal.FORBIDDEN, Refusal.IDENTITY)
                self.refuse(peer, exc.code, exc.detail, field="keys" if rights else "", incarnation=exc.incarnation)
            except Exception as exc:  # one peer's message, whatever it is, must not end everybody's gateway
                log.exception("a message of one peer was not handled")
                self.refuse(peer, Refusal.INTERNAL, f"{type(exc).__name__} in the learner; see its log")

    def _admit(self, peer: bytes, frames: Sequence[Frame]) -> Peer | None:
        """Checks rights and rates before anything is decoded. Over inproc, and without keys, everybody may do everything.

        Raises:
            ProtocolError: when this sender may not speak (any more); its session, if it has one, is over then.
        """
        if not self.router.authenticated:
            return None
        try:
            return self._guard.admit(self.router.user, sum(len(f) for f in frames), time.monotonic())
        except ProtocolError as exc:
            session = self._sessions.get(peer)
            if exc.code is Refusal.FORBIDDEN and session is not None:
                self.hang_up(peer, *session)
            raise

    def _on_message(self, peer: bytes, sender: Peer | None, message: Message, frames: Sequence[Frame]) -> None:
        match message:
            case Hello():
                self._on_hello(peer, sender, message)
                return
            case StatusRequest():
                self._guard.check_role(sender, "admin")
                self._send(peer, Status(self._status()))
                return
            case Submit() | Heartbeat() | Fetch() | Bye():
                pass
            case _:
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} is not for a learner")
        session = self._sessions.get(peer)
        if session is None:
            raise ProtocolError(Refusal.NO_SESSION, "say HELLO first")
        client, stream = session
        if sender is not None and stream.owner != sender.name:
            raise ProtocolError(Refusal.IDENTITY, "this session belongs to another key")
        stream.last_seen = time.monotonic()
        if client.state is ClientState.FAILED:
            raise ProtocolError(Refusal.FAILED, client.error)
        match message:
            case Submit():
                self._guard.check_role(sender, "submit")
                if sender is not None and sender.quota.segment_steps is not None:
                    self._guard.check_steps(sender, read_heads(message)["steps"].tolist())
                self._on_submit(peer, client, stream, message, frames)
            case Heartbeat():
                stream.wish(message.want_steps)
                client.dirty.add(stream.actor_id)
            case Fetch():
                try:
                    self._guard.check_fetch(sender, stream.last_seen)
                except ProtocolError as exc:  # it may submit all the same
                    self.refuse(peer, exc.code, exc.detail)
                    return
                self._send(peer, client.publications.catch_up(message.held_generation, message.held_version))
            case Bye():
                self.hang_up(peer, client, stream)

    def _on_submit(self, peer: bytes, client: Client, stream: Stream, message: Submit, frames: Sequence[Frame]) -> None:
        if not stream.submits:
            raise ProtocolError(Refusal.QUOTA, "an actor that only evaluates may not submit")
        if client.queued + message.count > QUEUE_ITEMS:
            raise ProtocolError(Refusal.QUOTA, f"{client.queued} segments are queued; the limit is {QUEUE_ITEMS}")
        assert client.schema is not None  # a session begins after the learner thread is ready
        client.dirty.add(stream.actor_id)
        try:
            intake = take_submit(stream, client.schema, message, frames)
        except ProtocolError as exc:
            self.refuse(peer, exc.code, exc.detail, expected_seq=stream.received)
            return
        stream.wish(message.want_steps)
        client.verdicts[Verdict.DUPLICATE] += intake.duplicates
        client.verdicts[Verdict.REFUSED] += len(intake.refused)
        for error in intake.refused:
            client.counters.add(f"items_refused.{error.code.value}")
            self._sink.event("item_refused", client_id=client.client_id, actor_id=stream.actor_id, reason=str(error))
        client.accepted += intake.accepted
        client.delivered_items += intake.accepted
        stream.progress_at = stream.last_seen
        if intake.entry is not None:
            client.pool.delivered(intake.entry.steps)
            client.delivered_bytes += intake.entry.nbytes
            self._ledger.append([intake.entry])

    # ---- joining

    def _on_hello(self, peer: bytes, sender: Peer | None, hello: Hello) -> None:
        self._counters.add("hellos")
        code = Refusal.CONFIG
        try:
            check_names(hello)
            client = self._roster.get(hello.client_id)
            if sender is not None:
                owner = client.table.owner_of(hello.actor_id) if client is not None else ""
                self._guard.check_hello(sender, hello, owner, self._live_actors(sender.name, hello))
            if client is None:
                client = self._found(hello)
            else:
                code = Refusal.MISMATCH
                require_match(client.settings, hello)
        except ConfigError as exc:
            self.refuse(peer, code, str(exc), field=exc.key)
            return
        match client.state:
            case ClientState.STARTING:
                client.waiting[peer] = hello, sender.name if sender is not None else ""
            case ClientState.FAILED:
                raise ProtocolError(Refusal.FAILED, client.error)
            case ClientState.RUNNING:
                self._welcome(peer, client, hello, sender.name if sender is not None else "")

    def _live_actors(self, user: str, but: Hello) -> int:
        """The other actors of a key that are live, over all clients."""
        live = [s for client in self._roster for s in client.table.live() if s.owner == user]
        return sum((s.client_id, s.actor_id) != (but.client_id, but.actor_id) for s in live)

    def _found(self, hello: Hello) -> Client:
        client = self._roster.found(hello)
        settings = client.settings
        self._sink.event("client_started", client_id=client.client_id, algorithm=settings.algorithm_name, seed=settings.seed)
        return client

    def _welcome(self, peer: bytes, client: Client, hello: Hello, user: str) -> None:
        owner = client.table.owner_of(hello.actor_id)
        if owner not in ("", user):  # two may have waited for the learner thread under one name
            raise ProtocolError(Refusal.IDENTITY, f"actor {hello.actor_id!r:.80} belongs to another key")
        opened = client.table.open(hello, peer, time.monotonic())
        stream = opened.stream
        stream.owner = user
        if opened.old_peer is not None:
            self._sessions.pop(opened.old_peer, None)
        self._sessions[peer] = client, stream
        if opened.gap:
            self._on_gap(client, stream, opened.gap)
        else:
            self._ledger.put_stream(client.stream_row(stream))
        client.pool.reclaim(stream)
        client.dirty.add(stream.actor_id)
        pub, settings = client.publications, client.settings
        answer = Welcome(
            policy_id=client.policy_id,
            topic=client.topic,
            ledger_id=self._ledger.ledger_id,
            gap=opened.gap,
            generation=pub.generation,
            version=pub.version,
            digest=pub.digest,
            spec=client.welcome_spec,
            pub=_advertised(self.pub_address, self._config.advertise),
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
            inference=_advertised(self.inference_address, self._config.advertise),
        )
        self._send(peer, answer)
        self._sink.event("actor_joined", client_id=client.client_id, actor_id=hello.actor_id, first_seq=hello.first_seq)

    def _on_gap(self, client: Client, stream: Stream, gap: int) -> None:
        """Segments that were acknowledged are unknown to this ledger: an older one was put in its place, or none."""
        log.error("client %s: %d acknowledged segments of actor %s are gone", client.client_id, gap, stream.actor_id)
        client.accepted += gap
        client.gap += gap
        client.rolled_back += gap
        self._ledger.add_gap(client.client_id, gap, client.stream_row(stream))
        self._sink.event("gap", client_id=client.client_id, actor_id=stream.actor_id, segments=gap)

    def hang_up(self, peer: bytes, client: Client, stream: Stream) -> None:
        """Ends a session; its credit goes to others."""
        self._sessions.pop(peer, None)
        client.table.hang_up(stream)
        client.pool.reclaim(stream)

    def dismiss(self, client: Client, reason: str) -> None:
        """Ends the sessions of all its actors, which are to say HELLO again."""
        for stream in client.table.live():
            peer = client.table.peer_of(stream)
            if peer is not None:
                self.hang_up(peer, client, stream)
                self.refuse(peer, Refusal.NO_SESSION, reason)

    def admit_waiting(self, client: Client) -> None:
        """Lets those in who came while the learner thread was starting."""
        waiting, client.waiting = client.waiting, {}
        for peer, (hello, user) in waiting.items():
            try:
                self._welcome(peer, client, hello, user)
            except ProtocolError as exc:
                self.refuse(peer, exc.code, exc.detail, incarnation=exc.incarnation)

    def say_goodbye(self) -> None:
        """Tells every actor that the learner ends."""
        for peer in list(self._sessions):
            self.refuse(peer, Refusal.CLOSING, "the learner is shutting down")

    # ---- what is answered

    def settle(self, client: Client, room_bytes: int) -> None:
        """Grants credit and sends the acks that are due.

        Args:
            client: whose actors.
            room_bytes: what the ledger has room for.
        """
        if not client.dirty:
            return
        live = client.table.live()
        client.dirty.update(s.actor_id for s in client.pool.grant(live, time.monotonic()))
        shares = client.shares(room_bytes)
        for stream in live:
            peer = client.table.peer_of(stream)
            if stream.actor_id in client.dirty and peer is not None:
                self._send(peer, client.ack(stream, shares))
        client.dirty.clear()

    def refuse(
        self, peer: bytes, code: Refusal, reason: str, *, field: str = "", expected_seq: int = 0, incarnation: int = 0
    ) -> None:
        """Says no, counted by its code."""
        self._counters.add(f"refused.{code.value}")
        self._send(peer, Refused(code.value, field, reason, expected_seq, incarnation))

    def _send(self, peer: bytes, message: Message) -> None:
        sent = self.router.send([peer, *encode(message)])
        if sent is Sent.OK:
            return
        self._counters.add(f"replies_dropped.{sent.value}")
        session = self._sessions.get(peer)
        if sent is Sent.GONE and session is not None:
            self.hang_up(peer, *session)


def _advertised(uri: str, host: str | None) -> str:
    """An address as an actor should dial it; a ``*`` stands for the host that the actor dialled."""
    address = Address.parse(uri)
    return f"tcp://{host or '*'}:{address.port}" if address.scheme == "tcp" else uri
