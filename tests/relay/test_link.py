"""Tests of an actor with relays and a learner, without sockets: its choice of a relay, and the source of its weights."""

import random
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from rl4sys_zmq.actor.io.relay_link import MAX_IDLE_MESSAGES, RelayLink
from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig, RelayAddress
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.liveness import RELAY_ANSWER_S, RELAY_PROVEN_S, RELAY_RETRY, RELAY_WAIT_S
from rl4sys_zmq.policies import register_policy
from rl4sys_zmq.transports import Address
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec
from rl4sys_zmq.wire import decode, encode, spec_to_document
from rl4sys_zmq.wire.messages import (
    AnyBytes,
    Beacon,
    FollowWeights,
    Frame,
    Heartbeat,
    Message,
    Refused,
    WeightsSource,
    Welcome,
)

RELAYS = [f"10.0.0.{n}:5" for n in range(1, 21)]
SOURCE = WeightsSource("lab", b"12345678", b"t" * 8, 1, 1, 1, [], "tcp://10.0.0.1:6")


class FakeSocket:
    """A socket whose other end is the test."""

    def __init__(self, address: Address, **_options: Any) -> None:
        self.address = address
        self.waiting: deque[list[Frame]] = deque()
        self.sent: list[Message] = []
        self.closed = False

    def send(self, frames: Any) -> bool:
        self.sent.append(decode(list(frames)))
        return True

    def recv(self, *_limits: int) -> list[Frame] | None:
        return self.waiting.popleft() if self.waiting else None

    def subscribe(self, topic: bytes) -> None:
        """Do nothing: no message is filtered."""

    def close(self) -> None:
        self.closed = True


class FakeNetwork:
    """A socket factory that is also the poller of its sockets."""

    def __init__(self) -> None:
        self.made: list[FakeSocket] = []

    def dealer(self, address: Address, **options: Any) -> FakeSocket:
        self.made.append(FakeSocket(address, **options))
        return self.made[-1]

    sub = dealer

    def register(self, socket: FakeSocket) -> None:
        """Do nothing: no socket is polled."""

    unregister = register

    @property
    def open(self) -> list[str]:
        return [socket.address.uri for socket in self.made if not socket.closed]


def linked(network: Any, *relays: str) -> RelayLink:
    link = RelayLink("lab", None, Counters(), random.Random(1))
    link.use([RelayAddress(address=relay) for relay in relays])
    assert link.connect_next(network, network, 0.0)
    return link


def serve(link: RelayLink, network: Any, now: float, seconds: float, reason: str) -> float:
    """Let the relay answer and serve for a while, let the actor leave it, and return the pause before the next try."""
    link.answered(SOURCE, now)
    link.mark_in_use(now)
    now += seconds
    link.leave(reason, now)
    assert not link.connect_next(network, network, now)
    pause = link.next_deadline - now
    now = link.next_deadline
    assert link.retry_due(now) and link.connect_next(network, network, now)
    return pause


def test_pauses_grow_while_a_relay_answers_but_does_not_serve() -> None:
    network: Any = FakeNetwork()
    link = linked(network, RELAYS[0])
    pauses = [serve(link, network, 0.0, 3.1, "behind") for _ in range(6)]
    assert pauses[0] <= 1.2 * RELAY_RETRY.first_s and pauses[-1] >= 0.8 * RELAY_RETRY.most_s
    assert serve(link, network, 0.0, RELAY_PROVEN_S, "tag") >= 0.8 * RELAY_RETRY.most_s
    assert serve(link, network, 0.0, RELAY_PROVEN_S, "silent") <= 1.2 * RELAY_RETRY.first_s


def test_relays_that_answer_but_do_not_serve_are_tried_once_in_a_round() -> None:
    network: Any = FakeNetwork()
    link = linked(network, *RELAYS[:2])
    link.mark_in_use(0.0)
    link.leave("behind", 3.1)
    assert link.connect_next(network, network, 3.1)
    link.mark_in_use(3.2)
    link.leave("behind", 6.3)
    assert not link.connect_next(network, network, 6.3)


def test_after_long_service_the_other_relays_are_tried_at_once() -> None:
    network: Any = FakeNetwork()
    link = linked(network, *RELAYS[:2])
    link.leave("silent", 1.5)
    assert link.connect_next(network, network, 1.5)
    link.mark_in_use(2.0)
    link.leave("silent", 2.0 + RELAY_PROVEN_S)
    assert link.connect_next(network, network, 12.0)
    assert network.open == [f"tcp://{RELAYS[0]}"]


def test_a_slow_stream_of_messages_is_no_fault() -> None:
    network: Any = FakeNetwork()
    link = linked(network, RELAYS[0])
    link.answered(SOURCE, 0.5)
    for n in range(3 * MAX_IDLE_MESSAGES):
        link.received(1, n / MAX_IDLE_MESSAGES)
        assert link.fault(0.6) is None


SPEC = PolicySpec(BoxSpace((4,)), DiscreteSpace(2), "link-test", tensors=(TensorSpec("w", (3,)),))


def no_policy(_spec: PolicySpec, _snapshot: PolicySnapshot) -> Any:
    """Raise an error: the weights of these tests never arrive."""
    raise AssertionError


register_policy("link-test", no_policy)
WELCOME = Welcome(
    policy_id=b"12345678",
    topic=b"87654321",
    journal_id=7,
    gap=0,
    generation=1,
    version=1,
    digest=0,
    spec=spec_to_document(SPEC),
    pub="tcp://10.0.0.99:2",
    received=0,
    durable=0,
    accepted_steps=0,
    algorithm_name="PPO",
    algorithm_type="onpolicy",
    rollout_length=0,
    max_policy_lag=-1,
    on_lag="drop",
    max_message_bytes=1 << 20,
    max_segment_steps=100,
    heartbeat_s=1.0,
    tag_key=AnyBytes(bytes(32)),
)


class Actor:
    """A weight subscriber with relays, on a virtual clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, relays: Sequence[str] = RELAYS) -> None:
        self.now = 1000.0
        monkeypatch.setattr("rl4sys_zmq.actor.io.weight_subscriber.time", self)
        config = AgentConfig(
            client_id="lab",
            train_server_address="10.0.0.99:1",
            observation_space=BoxSpace((4,)),
            action_space=DiscreteSpace(2),
            relays=tuple(RelayAddress(address=relay) for relay in relays),
        )
        self.network = FakeNetwork()
        self.fetches: list[float] = []
        self.counters = Counters()
        learner = Address.parse("tcp://10.0.0.99:1")
        self.subscriber = WeightSubscriber(
            learner, None, self.counters, random.Random(1), lambda _: self.fetches.append(self.now), lambda: None, config
        )
        network: Any = self.network
        self.subscriber.network = network
        self.subscriber.join(WELCOME, network)

    def monotonic(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.05)
            self.subscriber.tick(self.now)

    def says(self, message: Message) -> None:
        self.network.made[-1].waiting.append(encode(message))
        while self.subscriber.receive_one():
            pass


def test_an_actor_with_many_dead_relays_uses_the_learner_and_goes_on_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch)
    actor.tick(RELAY_WAIT_S + 0.1)
    assert "tcp://10.0.0.99:2" in actor.network.open and len(actor.fetches) == 1
    actor.tick(19 * RELAY_ANSWER_S)
    tried = [socket.address.uri for socket in actor.network.made if socket.address.port == 5]
    assert tried == [f"tcp://{relay}" for relay in RELAYS]


def test_a_relay_that_answers_late_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch)
    actor.tick(RELAY_WAIT_S + 0.1)
    assert actor.subscriber.relay == ""
    actor.network.made.sort(key=lambda socket: socket.address.port == 5 and not socket.closed)
    relay = actor.network.made[-1].address.uri
    actor.says(SOURCE)
    assert actor.subscriber.relay == relay and "tcp://10.0.0.99:2" not in actor.network.open


def test_failed_tries_of_relays_do_not_end_a_fetch_from_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch, RELAYS[:1])
    actor.tick(60.0)
    assert actor.counters.get("relays_left.silent") > 2
    gaps = [later - earlier for earlier, later in pairwise(actor.fetches)]
    assert len(gaps) > 40 and max(gaps) < 1.4


def test_an_actor_without_a_policy_fetches_at_a_beacon(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch, ())
    (sub,) = actor.network.made
    monkeypatch.setattr(actor.subscriber, "_fetch_at", 0.0)
    sub.waiting.append([b"B87654321", *encode(Beacon(1, 1, 7))])
    assert actor.subscriber.receive_one() and len(actor.fetches) == 2


def test_a_relay_that_waits_for_weights_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch)
    assert actor.network.made[-1].sent == [FollowWeights("lab", generation=1)]
    actor.says(Refused("starting", "lab", "no weights so far"))
    assert len(actor.network.open) == 1 and not actor.counters.get("relays_left.refused")
    actor.says(Refused("upstream", "lab", "the learner does not answer"))
    assert actor.counters.get("relays_left.refused") == 1


@pytest.mark.parametrize("junk", [[b"junk"], encode(Heartbeat(1)), encode(SOURCE)], ids=["malformed", "not for it", "answers"])
def test_a_relay_that_floods_its_actor_is_left(monkeypatch: pytest.MonkeyPatch, junk: list[Frame]) -> None:
    actor = Actor(monkeypatch)
    actor.network.made[-1].waiting.extend([junk] * (MAX_IDLE_MESSAGES + 1))
    while actor.subscriber.receive_one():
        pass
    actor.tick(0.05)
    assert actor.counters.get("relays_left.flood") == 1
