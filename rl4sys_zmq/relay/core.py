"""The logic of a relay, without sockets, threads and clocks.

The *upstream* is the learner or the relay from which the weights come. The *children* are the actors and relays that take them
from this relay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ProtocolError, RefusalReason, WeightsError
from rl4sys_zmq.liveness import (
    BEACON_TOPIC,
    FETCH_RETRY_S,
    FOLLOW_AGAIN_S,
    FOLLOW_S,
    NEWCOMER_BEACON_S,
    PUBLISHER_SILENCE_S,
    RELAY_CHILD_S,
    RELAY_CLIENT_S,
    RELAY_SILENCE_S,
    WEIGHTS_TOPIC,
    is_silent,
    jittered,
)
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.relay.followed import FollowedClient
from rl4sys_zmq.security.access import AccessList, TokenBucket, User
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.weights import WeightsHeader
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import (
    Beacon,
    FetchWeights,
    FollowWeights,
    Frame,
    Message,
    Refused,
    StatusReply,
    StatusRequest,
    WeightsReply,
    WeightsSource,
)

log = get_logger(__name__)

MAX_REQUEST_BYTES = 1 << 14
"""Largest message of a child."""

FETCHES_PER_S = 4.0
"""Limit on the requests of each child for the weights of one client. A child repeats an unanswered one after a second."""

CLIENT_MESSAGES_PER_S = 1.0 / FOLLOW_AGAIN_S + 1.0 / FETCH_RETRY_S
"""The requests that a child can need for each client. They are permitted in addition to ``messages_per_s``."""

NO_WEIGHTS = "this relay has no weights of this client so far"

CUT_AFTER = 1024
"""Number of dropped messages after which the connection of a child is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayCallbacks:
    """The functions with which a `RelayCore` uses the sockets. No function blocks."""

    send: Callable[[bytes, Sequence[Frame]], SendResult]  # to a child: the routing id, and the frames
    cut: Callable[[], bool]  # closes the connection of the child whose message is being handled
    publish: Callable[[bytes, Sequence[Frame]], None]  # to the children: the topic, and the frames
    ask: Callable[[Sequence[Frame]], None]  # sends a message to the upstream
    listen: Callable[[str, Sequence[bytes]], None]  # replaces the SUB socket: URI (empty: none), topics
    subscribe: Callable[[bytes], None]
    unsubscribe: Callable[[bytes], None]
    redial: Callable[[], None]  # replaces the DEALER socket to the upstream
    status: Callable[[], dict[str, Any]]


class _Child:
    __slots__ = ("excess", "messages", "seen_at")

    def __init__(self, messages_per_s: float, now: float) -> None:
        self.messages = TokenBucket(messages_per_s, now)
        self.seen_at, self.excess = now, 0


class RelayCore:
    """The logic of a relay: it follows each client that a child has requested, and answers the children. One thread uses it."""

    def __init__(self, config: RelayConfig, authorizer: Authorizer, callbacks: RelayCallbacks) -> None:
        self.counters = Counters()
        self.address = ""  # at which the relay serves its children; for the upstream's status
        self.pub = ""  # the PUB socket, as children need it
        self._config, self._authorizer, self._callbacks = config, authorizer, callbacks
        self._rng = random.Random()
        self._clients: dict[str, FollowedClient] = {}
        self._children: dict[bytes, _Child] = {}
        self._source_pub = ""
        self._heard_at = self._published_at = 0.0
        self._unanswered_at: float | None = None
        self._tidy_at = 0.0
        self._lost = False
        self._problem = ""

    def on_child(self, peer: bytes, key: str | None, frames: Sequence[Frame], now: float) -> None:
        field = ""
        try:
            child = self._admit(peer, now)
            if child is None:
                return
            nbytes = sum(len(frame) for frame in frames)
            sender = self._authorizer.admit(key, nbytes, now) if key is not None else None
            message = decode(frames, max_bytes=MAX_REQUEST_BYTES)
            field = getattr(message, "client_id", "")
            self._on_request(peer, sender, message, now)
        except ProtocolError as exc:
            self._refuse(peer, exc.code, exc.detail, field)

    def _admit(self, peer: bytes, now: float) -> _Child | None:
        """Return the record of a child, or None if its message is over the rate limit and was dropped."""
        child = self._children.get(peer)
        if child is None:
            if len(self._children) >= self._config.max_children:
                raise ProtocolError(RefusalReason.QUOTA, f"this relay has {len(self._children)} children, which is the limit")
            config = self._config
            limit = config.messages_per_s + CLIENT_MESSAGES_PER_S * config.max_clients
            child = self._children[peer] = _Child(limit, now)
        child.seen_at = now
        if child.messages.take(1, now):
            return child
        self.counters.add(f"refused.{RefusalReason.QUOTA.value}")
        child.excess += 1
        if child.excess >= CUT_AFTER:
            child.excess = 0
            if self._callbacks.cut():
                self.counters.add("connections.cut")
        return None

    def _on_request(self, peer: bytes, sender: User | None, message: Message, now: float) -> None:
        if isinstance(message, StatusRequest):
            report = self._callbacks.status()
            if limited := self._authorizer.limited_status(sender):
                known = {name: value for name, value in report.items() if name in ("relay", "version", "pub")}
                report = {**limited, **known, "clients": {}}
            self._send(peer, StatusReply(self._authorizer.visible_status(sender, report)))
        elif isinstance(message, FollowWeights):
            self._authorizer.check_reader(sender)
            self._authorizer.check_client(sender, message.client_id)
            self._on_follow(peer, message, now)
        elif isinstance(message, FetchWeights) and message.client_id:
            self._authorizer.check_fetch(sender, now)
            self._authorizer.check_client(sender, message.client_id)
            client = self._clients.get(message.client_id)
            if client is None or not client.has_weights:
                raise ProtocolError(RefusalReason.STARTING, NO_WEIGHTS)
            if not client.fetches.setdefault(peer, TokenBucket(FETCHES_PER_S, now)).take(1, now):
                self.counters.add(f"refused.{RefusalReason.QUOTA.value}")
                return  # the child repeats it
            self.counters.add("fetches_answered")
            self._send(peer, client.history.catch_up(message.held_generation, message.held_version))
        else:
            name = type(message).__name__
            raise ProtocolError(RefusalReason.DIRECTION, f"this is a relay, which takes no {name}; connect to the learner")

    def _on_follow(self, peer: bytes, message: FollowWeights, now: float) -> None:
        client = self._clients.get(message.client_id)
        if client is None:
            if len(self._clients) >= self._config.max_clients:
                raise ProtocolError(RefusalReason.QUOTA, f"this relay follows {len(self._clients)} clients, which is the limit")
            client = self._clients[message.client_id] = FollowedClient(message.client_id, now)
        client.asked_at = client.followers[peer] = now
        newer = message.generation > client.held[0]
        if self._lost or (client.refusal and not newer):
            raise ProtocolError(RefusalReason.UPSTREAM, client.refusal or self._silence_text())
        if not client.has_weights or newer:
            client.waiting.add(peer)
            client.wanted = max(client.wanted, message.generation)
            client.follow_at = min(client.follow_at, client.followed_at + FOLLOW_AGAIN_S)
            if now >= client.follow_at:
                self._follow(client, now)
            if message.relay:  # so that it does not take this relay for silent
                self._refuse(peer, RefusalReason.STARTING, NO_WEIGHTS, client.client_id)
        else:
            self._send(peer, client.answer(self.pub))

    def _silence_text(self) -> str:
        return f"the upstream at {self._config.upstream} does not answer" + (f" ({self._problem})" if self._problem else "")

    def _refuse(self, peer: bytes, code: RefusalReason, reason: str, field: str) -> None:
        self.counters.add(f"refused.{code.value}")
        self._send(peer, Refused(code.value, field, reason))

    def _send(self, peer: bytes, message: Message) -> None:
        sent = self._callbacks.send(peer, encode(message))
        if sent is not SendResult.OK:
            self.counters.add(f"replies_dropped.{sent.value}")

    def may_subscribe(self, topic: bytes, key: str | None) -> bool:
        """Return True if a client has this topic, and the user with this public key (None: no keys) may read the client's
        weights.

        If the topic is for beacons, the last beacon is published again soon, once for all new subscribers.
        """
        known = (c for c in self._clients.values() if topic[:1] in (WEIGHTS_TOPIC, BEACON_TOPIC) and c.topic == topic[1:])
        client = next(known, None)
        if client is None or (key is not None and not self._authorizer.may_read(key, client.client_id)):
            self.counters.add("subscriptions_refused")
            return False
        if topic[:1] == BEACON_TOPIC and client.beacon:
            client.beacon_due = True
        return True

    def change_access(self, access: AccessList) -> None:
        """Apply a new access list. If a user has lost the right to read weights, all topics change."""
        if self._authorizer.replace(access):
            self._change_topics()

    def _change_topics(self) -> None:
        for client in self._clients.values():
            client.change_topic()

    def on_upstream(self, frames: Sequence[Frame], now: float) -> None:
        self.counters.add("received_bytes", sum(len(frame) for frame in frames))
        try:
            message = decode(frames)
            self._heard(now)
            if isinstance(message, WeightsSource):
                self._on_source(message, now)
            elif isinstance(message, WeightsReply):
                self._on_reply(message, now)
            elif isinstance(message, Refused):
                self._on_refused(message)
            else:
                raise ProtocolError(RefusalReason.DIRECTION, f"a relay receives no {type(message).__name__}")
        except ProtocolError as exc:
            self.counters.add(f"refused.{exc.code.value}")

    def _heard(self, now: float) -> None:
        self._heard_at, self._unanswered_at, self._problem = now, None, ""
        if self._lost:
            self._lost = False
            log.warning("the upstream at %s answers again", self._config.upstream)

    def _on_source(self, source: WeightsSource, now: float) -> None:
        client = self._clients.get(source.client_id)
        if client is None:
            return
        earlier, before = client.source, client.upstream_topics
        client.adopt(source)
        if source.pub != self._source_pub:
            self._source_pub = source.pub
            self._listen(now)
        elif before != client.upstream_topics:
            for topic in before:
                self._callbacks.unsubscribe(topic)
            for topic in client.upstream_topics:
                self._callbacks.subscribe(topic)
        # The newest version can still be on its way to the SUB socket. One that the earlier answer named has been lost.
        lost = not client.has_weights or (earlier is not None and client.lacks(earlier.version, earlier.digest))
        if lost and not client.fetch_at:
            self._fetch(client, now)

    def _listen(self, now: float) -> None:
        """Connect the SUB socket to the upstream's PUB socket, and subscribe to the topics of all clients."""
        self._published_at = now
        topics = [topic for client in self._clients.values() for topic in client.upstream_topics]
        self._callbacks.listen(self._source_pub, topics)

    def _on_reply(self, message: WeightsReply, now: float) -> None:
        if len(message.body) % 2:
            raise ProtocolError(RefusalReason.FRAMES, f"{len(message.body)} frames of weights; expected pairs of them")
        updates = zip(message.body[::2], message.body[1::2], strict=True)
        for place, (header, payload) in enumerate(updates):
            tag = message.tags[place] if place < len(message.tags) else b""
            self._on_update(None, header, payload, tag if isinstance(tag, bytes) else b"", now)

    def _on_refused(self, message: Refused) -> None:
        code = message.code if message.code in set(RefusalReason) else RefusalReason.MALFORMED
        self.counters.add(f"refused_by_upstream.{code}")
        client = self._clients.get(message.field)
        if client is None:
            return
        if code == RefusalReason.STARTING:  # the upstream answers when it has weights, so the children wait
            client.refusal = ""
            return
        client.refusal = f"the upstream refuses: {message.reason:.200}"
        self._turn_away(client)

    def _turn_away(self, client: FollowedClient) -> None:
        """Refuse the requests of the children that wait for this client's first version."""
        waiting, client.waiting = client.waiting, set()
        for peer in waiting:
            self._refuse(peer, RefusalReason.UPSTREAM, client.refusal or self._silence_text(), client.client_id)

    def on_published(self, frames: Sequence[Frame], now: float) -> None:
        """Handle a publication of the upstream: an update of the weights, or a beacon."""
        self._published_at = now
        self.counters.add("received_bytes", sum(len(frame) for frame in frames))
        topic = bytes(frames[0])
        client = next((c for c in self._clients.values() if c.source is not None and c.source.topic == topic[1:]), None)
        if client is None:
            return
        try:
            if topic[:1] == WEIGHTS_TOPIC and len(frames) in (3, 4):
                self._on_update(client, frames[1], frames[2], bytes(frames[3]) if len(frames) == 4 else b"", now)
            elif topic[:1] == BEACON_TOPIC:
                self._on_beacon(client, list(frames[1:]), now)
        except ProtocolError as exc:
            self.counters.add(f"refused.{exc.code.value}")

    def _on_update(self, client: FollowedClient | None, header: Frame, payload: Frame, tag: bytes, now: float) -> None:
        """Verify an update, and publish it. `client` is None for a requested update, whose header names the policy."""
        head = WeightsHeader.unpack(header)
        if client is None:
            ours = (c for c in self._clients.values() if c.source is not None and c.source.policy_id == head.policy_id)
            client = next(ours, None)
        if client is None:
            return
        try:
            if not client.apply(head, header, payload, tag):
                return
        except WeightsError as exc:
            self.counters.add(f"weights_refused.{exc.reason}")
            client.whole = client.whole or exc.reason != "gap"
            if not client.fetch_at:
                self._fetch(client, now)
            return
        self.counters.add("weights_passed_on")
        self._callbacks.publish(WEIGHTS_TOPIC + client.topic, [header, payload, *([tag] if tag else [])])
        waiting, client.waiting = client.waiting, set()
        for peer in waiting:
            self._send(peer, client.answer(self.pub))

    def _on_beacon(self, client: FollowedClient, frames: list[Frame], now: float) -> None:
        beacon = decode(frames)
        if not isinstance(beacon, Beacon) or client.source is None or beacon.generation != client.source.generation:
            return  # the answer to the next `FollowWeights` reports another generation
        if client.take_beacon(beacon, frames):
            self._publish_beacon(client, now)
        elif client.lacks(beacon.version, beacon.digest) and not client.fetch_at:
            self.counters.add("resyncs.beacon")
            self._fetch(client, now)

    def _publish_beacon(self, client: FollowedClient, now: float) -> None:
        client.beacon_due, client.beacon_at = False, now
        self._callbacks.publish(BEACON_TOPIC + client.topic, client.beacon)

    def _follow(self, client: FollowedClient, now: float) -> None:
        client.followed_at, client.follow_at = now, now + jittered(FOLLOW_S, self._rng)
        if self._unanswered_at is None:
            self._unanswered_at = now
        wanted, client.wanted = client.wanted, 0
        self._callbacks.ask(encode(FollowWeights(client.client_id, self.address, len(client.followers), wanted)))

    def _fetch(self, client: FollowedClient, now: float) -> None:
        client.fetch_at = now + jittered(FETCH_RETRY_S, self._rng)
        self.counters.add("fetches")
        held = (0, 0) if client.whole else client.held
        self._callbacks.ask(encode(FetchWeights(*held, client.client_id)))

    def next_deadline(self) -> float:
        return min([self._tidy_at, *(client.next_deadline for client in self._clients.values())])

    def tick(self, now: float, unix_s: float, problem: str = "") -> None:
        """Repeat requests, notice a silent upstream, and discard silent children and clients that no child requests.

        `problem` is the reason for which the connection to the upstream fails, or "".
        """
        self._problem = problem or self._problem
        for client in self._clients.values():
            if client.fetch_at and now >= client.fetch_at:
                self._fetch(client, now)
            if now >= client.follow_at:
                self._follow(client, now)
            if client.beacon_due and now >= client.beacon_at + NEWCOMER_BEACON_S:
                self._publish_beacon(client, now)
        if self._unanswered_at is not None and is_silent(now, self._unanswered_at, RELAY_SILENCE_S):
            self._on_silence(now)
        if now >= self._tidy_at:
            self._tidy_at = now + FOLLOW_S
            self._tidy(now, unix_s)

    def _tidy(self, now: float, unix_s: float) -> None:
        self._forget(now)
        if self._authorizer.lapsed(unix_s):
            self._change_topics()
        if any(c.source for c in self._clients.values()) and is_silent(now, self._published_at, PUBLISHER_SILENCE_S):
            self.counters.add("redials.weights")
            self._listen(now)

    def _forget(self, now: float) -> None:
        """Discard the records of silent children, and the clients that no child has requested for a while."""
        self._children = {peer: c for peer, c in self._children.items() if not is_silent(now, c.seen_at, RELAY_CHILD_S)}
        for client in list(self._clients.values()):
            client.followers = {p: at for p, at in client.followers.items() if not is_silent(now, at, RELAY_CHILD_S)}
            client.waiting &= client.followers.keys()
            client.fetches = {peer: bucket for peer, bucket in client.fetches.items() if peer in self._children}
            kept_s = RELAY_CLIENT_S if client.source is not None else RELAY_SILENCE_S  # names that do not exist leave soon
            if is_silent(now, client.asked_at, kept_s):
                del self._clients[client.client_id]
                for topic in client.upstream_topics:
                    self._callbacks.unsubscribe(topic)
        if not self._clients:
            self._unanswered_at, self._lost = None, False  # nothing is asked, so nothing can be unanswered

    def _on_silence(self, now: float) -> None:
        """Replace the sockets to the upstream, which may be half open, and turn the waiting children away."""
        self.counters.add("redials")
        if not self._lost:
            self._lost = True
            log.warning("%s; the children use another relay or the learner", self._silence_text())
        self._unanswered_at = now
        self._callbacks.redial()
        if self._source_pub:
            self._listen(now)
        for client in self._clients.values():
            self._turn_away(client)

    def report(self, now: float) -> dict[str, Any]:
        state = "lost" if self._lost else "idle" if not self._clients else "up" if self._heard_at else "connecting"
        return {
            "upstream": {
                "address": self._config.upstream,
                "state": state,
                "silent_s": round(now - self._heard_at, 3) if self._heard_at else None,
                "problem": self._problem,
            },
            "clients": {client.client_id: client.report() for client in self._clients.values()},
            "children": len(self._children),
            "counters": self.counters.snapshot(),
        }
