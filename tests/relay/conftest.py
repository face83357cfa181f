"""Fixtures for relays: an upstream without a learner, and the core of a relay without sockets."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.relay.core import RelayCallbacks, RelayCore
from rl4sys_zmq.security.access import AccessList, Quota, User
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import SendResult
from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, digest, division_of, encode_update, round_to
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Frame, Message, WeightsSource
from rl4sys_zmq.wire.thread_messages import PolicyPublished

POLICY = b"policy-1"
SIZES = (300, 20)
TENSORS = [["w", [300]], ["b", [20]]]
TAG_KEY = bytes(range(32))


class Upstream:
    """A learner's side for a relay: it publishes versions and replies to requests as a learner does."""

    tensors: ClassVar[list[Any]] = TENSORS
    writing: ClassVar[EncodingOptions] = EncodingOptions()

    def __init__(self, generation: int = 7, topic: bytes = b"up-topic", client_id: str = "lab", policy: bytes = POLICY) -> None:
        self.topic, self.client_id, self.policy = topic, client_id, policy
        self.history = WeightHistory(generation)
        self.history.describe(policy, self.writing)
        self.history.tag_with(TAG_KEY)
        self.states: list[PolicySnapshot] = []

    def publish(self) -> list[Frame]:
        version, writing = len(self.states), self.writing
        flat = np.random.default_rng([self.history.generation, version]).normal(0.0, 0.1, sum(SIZES)).astype(np.float32)
        parts = division_of(writing.dtype, writing.tensors)
        flat = parts.joined(round_to(writing.dtype, parts.rounded(flat)), parts.exact(flat))
        new = PolicySnapshot(self.history.generation, version, digest(flat), flat)
        base = self.states[-1] if self.states else None
        body = (flat.tobytes(), *encode_update(self.policy, base, new, writing))
        self.states.append(new)
        return [b"W" + self.topic, *self.history.publish(PolicyPublished(version, new.digest, body))]

    def beacon(self) -> list[Frame]:
        return [b"B" + self.topic, *encode(self.history.beacon({}))]

    def source(self) -> list[Frame]:
        """Return the frames of the reply to a relay's request to follow the weights."""
        history = self.history
        return encode(
            WeightsSource(
                self.client_id,
                self.policy,
                self.topic,
                history.generation,
                history.version,
                history.digest,
                self.tensors,
                "tcp://*:5",
            )
        )

    def reply(self, generation: int = 0, version: int = 0) -> list[Frame]:
        return encode(self.history.catch_up(generation, version))


class Rig:
    """A relay's core, with a record of its actions."""

    def __init__(self, access: AccessList | None = None, **options: Any) -> None:
        self.sent: list[tuple[bytes, Message]] = []
        self.published: list[tuple[bytes, list[Frame]]] = []
        self.asked: list[Message] = []
        self.topics: set[bytes] = set()
        self.listens: list[str] = []
        self.redials = self.cuts = 0
        self.now = 1000.0
        callbacks = RelayCallbacks(
            send=self._send,
            cut=self._cut,
            publish=lambda topic, frames: self.published.append((topic, list(frames))),
            ask=lambda frames: self.asked.append(decode(list(frames))),
            listen=self._listen,
            subscribe=lambda topic: self.topics.add(topic),
            unsubscribe=lambda topic: self.topics.discard(topic),
            redial=self._redial,
            status=dict,
        )
        config = RelayConfig(upstream="tcp://127.0.0.1:1", **options)
        self.core = RelayCore(config, Authorizer(access), callbacks)

    def _send(self, peer: bytes, frames: Sequence[Frame]) -> SendResult:
        self.sent.append((peer, decode(list(frames))))
        return SendResult.OK

    def _cut(self) -> bool:
        self.cuts += 1
        return True

    def _listen(self, pub: str, topics: Sequence[bytes]) -> None:
        self.listens.append(pub)
        self.topics = set(topics)

    def _redial(self) -> None:
        self.redials += 1

    def child(self, message: Message, peer: bytes = b"child", key: str | None = None) -> list[Any]:
        before = len(self.sent)
        self.core.on_child(peer, key, encode(message), self.now)
        return [answer for to, answer in self.sent[before:] if to == peer]

    def upstream(self, frames: Sequence[Frame]) -> None:
        self.core.on_upstream(frames, self.now)

    def hears(self, frames: Sequence[Frame]) -> list[tuple[bytes, list[Frame]]]:
        """Pass a publication of the upstream to the core, and return the publications of the core."""
        before = len(self.published)
        self.core.on_published(frames, self.now)
        return self.published[before:]

    def tick(self, seconds: float = 0.0, problem: str = "") -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.core.tick(self.now, 0.0, problem)

    def client(self, client_id: str = "lab") -> dict[str, Any]:
        found: dict[str, Any] = self.core.report(self.now)["clients"][client_id]
        return found


def user(name: str, *roles: str, client_ids: Sequence[str] | None = ("lab",)) -> User:
    ids = frozenset(client_ids) if client_ids is not None else None
    return User(name=name, key=name, client_ids=ids, roles=frozenset(roles), expires_unix_s=None, quota=Quota())


def access(*users: User) -> AccessList:
    return AccessList({u.name: u for u in users}, {u.key: u for u in users})


@pytest.fixture
def upstream() -> Upstream:
    made = Upstream()
    made.publish()
    return made
