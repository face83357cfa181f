"""Tests of learners, relays and actors over real sockets: the weights are identical everywhere, also after faults of relays."""

import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import open_agent, play, until

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.cli.keys import add_user, make_keys, revoke_user
from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import AddressInUse, Closed
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.liveness import WEIGHTS_TOPIC, Backoff
from rl4sys_zmq.ops.doctor import diagnose
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.relay import Relay
from rl4sys_zmq.relay.relay import RelayThread
from rl4sys_zmq.security.keys import read_learner_public, read_user_keys
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.transports import MAX_FRAMES, Address, SendResult, Socket, subscribed_topics
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import WeightsHeader, digest, encode_update
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import FollowWeights, Frame, WeightsReply, WeightsSource

PATIENCE_S = 30.0
TCP = "tcp://127.0.0.1:0"
register_algorithm("ONE_STEP", FakeAlgorithm.factory(steps_per_update=1, rollout_length=1))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts and intervals that are not under test."""
    for module in ("actor.io.relay_link", "relay.core"):
        monkeypatch.setattr(f"rl4sys_zmq.{module}.FOLLOW_S", 0.1)
        monkeypatch.setattr(f"rl4sys_zmq.{module}.RELAY_SILENCE_S", 1.0)
    monkeypatch.setattr("rl4sys_zmq.actor.io.relay_link.RELAY_RETRY", Backoff(0.2, 0.4))
    monkeypatch.setattr("rl4sys_zmq.learner.gateway.gateway.BEACON_S", 0.1)
    monkeypatch.setattr("rl4sys_zmq.security.authenticator.POLL_S", 0.02)


class Site:
    """A factory of learners, relays and actors."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def learner(self, bind: str = "", **options: Any) -> Learner:
        """Start a learner, over inproc unless `bind` is given."""
        config = LearnerConfig(bind=bind or f"inproc://learner-{uuid.uuid4().hex}", run_dir=None, **options)
        return self.stack.enter_context(Learner(config))

    def relay(self, upstream: str, bind: str = "", **options: Any) -> Relay:
        """Start a relay, over inproc unless `bind` is given."""
        config = RelayConfig(upstream=upstream, bind=bind or f"inproc://relay-{uuid.uuid4().hex}", **options)
        return self.stack.enter_context(Relay(config))

    def agent(self, learner: Learner, *, drives: bool = False, **options: Any) -> RL4SysAgent:
        """Start an actor that follows the policy, or one that drives the training."""
        agent = open_agent(learner, algorithm_name="ONE_STEP", explore=drives, overflow="wait", **options)
        return self.stack.enter_context(agent)

    def line(self, bind: str = "", **options: Any) -> tuple[Learner, Relay, RL4SysAgent, RL4SysAgent]:
        """Start a learner, its relay, an actor that drives, and one that follows at the relay."""
        learner = self.learner(bind)
        relay = self.relay(learner.address, bind)
        return learner, relay, self.agent(learner, drives=True), self.agent(learner, relays=(relay.address,), **options)


@pytest.fixture
def site(stack: ExitStack) -> Site:
    return Site(stack)


def drive(driver: RL4SysAgent, learner: Learner, followers: Sequence[RL4SysAgent], versions: int) -> None:
    for _ in range(versions):
        version = driver.version + 1
        play(driver, 1)
        for agent in (driver, *followers):
            agent.wait_version(version, PATIENCE_S)
            assert (agent.version, agent.digest) == (version, learner.digest("lab", version))


def relays_of(agents: Sequence[RL4SysAgent]) -> list[str]:
    """Return the address of the relay that each actor uses, or an empty text for the learner."""
    return [agent.stats()["relay"] for agent in agents]


def test_actors_take_weights_from_the_relay_that_the_learner_names(site: Site) -> None:
    names = [f"inproc://relay-{uuid.uuid4().hex}" for _ in range(2)]
    rules = [{"address": names[0], "actors": ["near-*"]}, {"address": names[1], "actors": ["far-*"]}]
    learner = site.learner(relays=rules)
    first = site.relay(learner.address, names[0])
    site.relay(first.address, names[1])
    driver = site.agent(learner, drives=True)
    agents = [site.agent(learner, actor_id=f"{where}-{n}") for where in ("near", "far") for n in range(3)]
    drive(driver, learner, agents, 12)
    assert relays_of(agents) == [names[0]] * 3 + [names[1]] * 3
    assert relays_of([driver]) == [""]
    status = learner.status()
    told = {actor: found["relay"] for actor, found in status["clients"]["lab"]["actors"].items() if found["relay"]}
    assert told == {agent.actor_id: relay for agent, relay in zip(agents, relays_of(agents), strict=True)}
    assert [(relay["address"], relay["live"]) for relay in status["relays"]] == [(names[0], True)]
    assert [agent.stats()["counters"]["fetches"] for agent in agents] == [1] * 6
    counters = first.status()["counters"]
    assert counters["weights_passed_on"] == 13 and counters["fetches"] == 1
    assert "weights_refused.tag" not in {name for agent in agents for name in agent.stats()["counters"]}


def test_actors_of_a_relay_that_ends_go_on_and_return(site: Site) -> None:
    learner = site.learner()
    name = f"inproc://relay-{uuid.uuid4().hex}"
    relay = site.relay(learner.address, name)
    driver, other = site.agent(learner, drives=True), site.agent(learner, relays=())
    agent = site.agent(learner, relays=(name,))
    drive(driver, learner, [agent, other], 5)
    assert relays_of([agent, other]) == [name, ""]
    relay.close()
    until(lambda: relays_of([agent]) == [""], "the end of the relay to be noticed")
    drive(driver, learner, [agent], 5)
    site.relay(learner.address, name)
    until(lambda: relays_of([agent]) == [name], "the return to the relay")
    drive(driver, learner, [agent, other], 5)
    assert agent.stats()["counters"]["relays_left.silent"] >= 1


def forged(header: Frame, payload: Frame) -> tuple[bytes, bytes | memoryview]:
    """Return forged weights for the same version, whole and with a right digest. Without the key, a relay can do no more."""
    head = WeightsHeader.unpack(header)
    flat = np.full(head.elements, 7.0, np.float32)
    return encode_update(head.policy_id, None, PolicySnapshot(head.generation, head.new_version, digest(flat), flat))


def test_weights_that_a_relay_has_changed_are_never_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, send, swap = RelayThread._publish, RelayThread._send, WeightSubscriber._swap
    used: list[tuple[int, int]] = []
    lies = threading.Event()

    def lying_publish(self: RelayThread, topic: bytes, frames: Sequence[Frame]) -> None:
        publish(self, topic, [*forged(frames[0], frames[1]), *frames[2:]] if topic[:1] == WEIGHTS_TOPIC else frames)

    def lying_send(self: RelayThread, peer: bytes, frames: Sequence[Frame]) -> SendResult:
        message = decode(list(frames))
        if isinstance(message, WeightsReply) and lies.is_set():
            pairs = zip(message.body[::2], message.body[1::2], strict=True)
            frames = encode(WeightsReply(tuple(part for pair in pairs for part in forged(*pair)), message.tags))
        return send(self, peer, frames)

    def noting_swap(self: WeightSubscriber, snapshot: PolicySnapshot) -> None:
        used.append((snapshot.version, snapshot.digest))
        swap(self, snapshot)

    monkeypatch.setattr(RelayThread, "_publish", lying_publish)
    monkeypatch.setattr(RelayThread, "_send", lying_send)
    monkeypatch.setattr(WeightSubscriber, "_swap", noting_swap)
    learner, _, driver, agent = site.line()
    lies.set()
    drive(driver, learner, [agent], 6)
    assert agent.stats()["counters"]["relays_left.tag"] >= 1
    assert all(learner.digest("lab", version) == found for version, found in used)


def test_an_actor_leaves_a_relay_that_withholds_versions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.actor.io.relay_link.RELAY_BEHIND_S", 0.3)
    learner, _, driver, agent = site.line()
    drive(driver, learner, [agent], 2)
    monkeypatch.setattr("rl4sys_zmq.relay.core.RelayCore.on_published", lambda self, frames, now: None)
    monkeypatch.setattr("rl4sys_zmq.relay.core.RelayCore._fetch", lambda self, client, now: None)
    drive(driver, learner, [agent], 3)
    assert agent.stats()["counters"]["relays_left.behind"] >= 1


def test_an_actor_with_a_sidecar_uses_a_relay(site: Site) -> None:
    learner, relay, driver, agent = site.line(TCP, sidecar=True)
    drive(driver, learner, [agent], 4)
    assert relays_of([agent]) == [relay.address]


@pytest.mark.usefixtures("pure_form")
def test_weights_without_end_delay_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = site.learner()
    driver = site.agent(learner, drives=True)
    drive(driver, learner, [], 1)
    read = threading.Event()

    def endless(_self: WeightSubscriber) -> bool:
        read.set()
        return True

    monkeypatch.setattr(WeightSubscriber, "receive_one", endless)
    assert read.wait(PATIENCE_S)
    play(driver, 1)
    assert learner.wait(client_id="lab", version=driver.version + 1, timeout_s=PATIENCE_S) > driver.version


def test_messages_of_the_upstream_with_too_many_frames_are_counted(site: Site, stack: ExitStack) -> None:
    upstream = stack.enter_context(Socket.router(f"inproc://upstream-{uuid.uuid4().hex}"))
    publisher = stack.enter_context(Socket.xpub(f"inproc://pub-{uuid.uuid4().hex}"))
    relay = site.relay(upstream.bound.uri)
    child = stack.enter_context(Socket.dealer(relay.address))
    child.send(encode(FollowWeights("lab")))
    peers: list[bytes] = []

    def read_peers() -> list[bytes]:
        while (frames := upstream.recv()) is not None:
            peers.append(bytes(frames[0]))
        return peers

    until(read_peers, "the relay's request")
    upstream.send([peers[0], *[b"x"] * (MAX_MESSAGE_FRAMES + 1)])
    source = WeightsSource("lab", bytes(8), b"up-topic", 7, 0, 0, [["w", [4]]], publisher.bound.uri)
    upstream.send([peers[0], *encode(source)])
    topics: set[bytes] = set()

    def read_topics() -> bool:
        topics.update(subscribed_topics(publisher, Counters()))
        return WEIGHTS_TOPIC + source.topic in topics

    until(read_topics, "the relay's subscription")
    publisher.send([WEIGHTS_TOPIC + source.topic, *[b"x"] * MAX_FRAMES])
    until(lambda: relay.status()["counters"].get("refused.frames") == 2, "both messages")
    relay.raise_if_dead()


def test_actors_stay_at_their_relays_when_their_client_starts_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("actor.io.relay_link", "relay.core"):
        monkeypatch.setattr(f"rl4sys_zmq.{module}.FOLLOW_S", 1.0)
        monkeypatch.setattr(f"rl4sys_zmq.{module}.RELAY_SILENCE_S", 3.0)
    learner = site.learner()
    first = site.relay(learner.address)
    second = site.relay(first.address)
    driver = site.agent(learner, drives=True, relays=())
    agents = [site.agent(learner, relays=(relay.address,)) for relay in (first, first, second, second)]
    drive(driver, learner, agents, 3)
    for _ in range(2):
        generation = driver.stats()["generation"]
        learner.restart("lab")
        until(lambda: all(a.stats()["generation"] > generation for a in (driver, *agents)), "the new generation")  # noqa: B023
        drive(driver, learner, agents, 3)
        assert relays_of(agents) == [first.address] * 2 + [second.address] * 2
    assert not [name for agent in agents for name in agent.stats()["counters"] if name.startswith("relays_left")]


def test_a_relay_that_could_not_start_can_start_later(site: Site) -> None:
    first = site.relay("tcp://127.0.0.1:9", TCP)
    late = Relay(RelayConfig(upstream="tcp://127.0.0.1:9", bind=first.address))
    for _ in range(2):
        with pytest.raises(AddressInUse):
            late.start()
        with pytest.raises(Closed):
            _ = late.address
    address = first.address
    first.close()
    with late:
        assert late.address == address and late.status()["relay"]


def flood(uri: str, socket_type: bytes, nbytes: int) -> int:
    """Send one message without an end to a socket, and return the number of bytes sent before the connection ended."""
    taken, frame = 0, b"\x03" + struct.pack(">Q", 1000) + bytes(1000)
    with socket.create_connection(("127.0.0.1", Address.parse(uri).port or 0), timeout=PATIENCE_S) as peer:
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
        peer.sendall(b"\x04" + bytes([len(ready)]) + ready)
        greeting = b""
        while b"READY" not in greeting:
            greeting += peer.recv(4096)
        with suppress(ConnectionError):
            while taken < nbytes:
                peer.sendall(frame * 100)
                taken += 100 * len(frame)
            while peer.recv(4096):
                pass
    return taken


def test_a_child_that_completes_no_message_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl4sys_zmq.relay.relay.IDLE_CONNECTION_S", 0.5)
    monkeypatch.setattr("rl4sys_zmq.relay.relay.TIDY_S", 0.1)
    learner, relay, driver, agent = site.line(TCP)
    drive(driver, learner, [agent], 2)
    assert flood(relay.address, b"DEALER", 1 << 20)  # it returns when the relay has closed the connection
    until(lambda: relay.status()["counters"].get("connections.cut"), "the closed connection to be counted")
    drive(driver, learner, [agent], 2)
    assert relays_of([agent]) == [relay.address]


MEMORY = """
import sys
import time
from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.memory_watch import resident_bytes
from rl4sys_zmq.relay import Relay

config = RelayConfig(upstream="tcp://127.0.0.1:9", bind="tcp://127.0.0.1:0", max_memory_bytes=resident_bytes() + (48 << 20))
with Relay(config) as relay:
    print(relay.address, relay.pub_address, flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + 20.0
    while resident_bytes() > config.max_memory_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    relay.raise_if_dead()
    print(resident_bytes() <= config.max_memory_bytes, flush=True)
"""


@pytest.mark.parametrize("socket_type", [b"DEALER", b"SUB"])
def test_the_memory_of_a_relay_has_a_limit(socket_type: bytes) -> None:
    command = [sys.executable, "-c", MEMORY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        router, pub = process.stdout.readline().split()
        assert flood(pub if socket_type == b"SUB" else router, socket_type, 128 << 20) > 32 << 20
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True\n"
        assert process.wait(PATIENCE_S) == 0


class Keyed:
    """A learner with keys, a relay with other keys, and their users."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.folder, self.relay_folder = folder / "learner", folder / "relay"
        for keys in (self.folder, self.relay_folder):
            make_keys(keys)
        for name, roles in (("arm", ("submit", "read_weights")), ("hub", ("relay",)), ("ops", ("admin",))):
            add_user(self.folder, name, ["lab"], roles, None)
        shutil.copy(self.folder / "users.toml", self.relay_folder / "users.toml")
        self.learner = site.learner(TCP, keys=self.folder)
        self.relay = site.relay(self.learner.address, TCP, **self.relay_keys)
        self.told = {"address": self.relay.address, "key": read_learner_public(self.relay_folder / "learner.public")}

    @property
    def relay_keys(self) -> dict[str, Any]:
        return {"keys": self.relay_folder, "upstream_keys": self.folder / "hub.keys"}

    @property
    def arm(self) -> dict[str, Any]:
        return {"keys": self.folder / "arm.keys"}


@pytest.fixture
def keyed(site: Site, tmp_path: Path) -> Keyed:
    return Keyed(site, tmp_path)


def test_keys_hold_hop_by_hop_and_rights_behind_the_relay(site: Site, keyed: Keyed) -> None:
    learner, relay = keyed.learner, keyed.relay
    driver = site.agent(learner, drives=True, relays=(), **keyed.arm)
    agent = site.agent(learner, relays=(keyed.told,), **keyed.arm)
    drive(driver, learner, [agent], 4)
    assert relays_of([agent]) == [relay.address]
    assert relay.status()["security"]["listed"] == 3
    ops = read_user_keys(keyed.folder / "ops.keys")[1]
    (seen,) = request_status(learner.address, PATIENCE_S, ops)["relays"]
    assert seen["user"] == "hub" and set(seen["children"]) == {"lab"}
    revoke_user(keyed.relay_folder, "arm")  # the relay's list: the actor goes to the learner
    until(lambda: relays_of([agent]) == [""], "the relay to refuse the actor")
    drive(driver, learner, [agent], 2)
    shutil.copy(keyed.folder / "users.toml", keyed.relay_folder / "users.toml")
    until(lambda: relays_of([agent]) == [relay.address], "the return to the relay")
    revoke_user(keyed.folder, "hub")  # the learner's list: the relay has no upstream any more
    until(lambda: relays_of([agent]) == [""], "the learner to refuse the relay")
    drive(driver, learner, [agent], 2)


def test_a_relay_with_an_old_key_says_so_and_costs_its_actors_nothing(site: Site, keyed: Keyed) -> None:
    learner = keyed.learner
    loads = learner.status()["security"]["loads"]
    revoke_user(keyed.folder, "hub")
    until(lambda: learner.status()["security"]["loads"] > loads, "the new list")
    late = site.relay(learner.address, TCP, **keyed.relay_keys)
    driver = site.agent(learner, drives=True, relays=(), **keyed.arm)
    agent = site.agent(learner, relays=({**keyed.told, "address": late.address},), **keyed.arm)
    drive(driver, learner, [agent], 2)
    assert relays_of([agent]) == [""]

    def lost() -> bool:
        upstream = late.status()["upstream"]
        return upstream["state"] == "lost" and bool(upstream["problem"])

    until(lost, "the reason")
    lines = report_lines(late.status(), time.time())
    assert any(line.startswith("!! the upstream does not answer") for line in lines), lines


def test_status_and_doctor_show_relays(site: Site, tmp_path: Path) -> None:
    relay_address = f"ipc://{tmp_path}/relay"
    learner = site.learner(TCP, relays=(relay_address,))
    driver = site.agent(learner, drives=True, relays=())
    config = AgentConfig(
        client_id="lab",
        algorithm_name="ONE_STEP",
        train_server_address=learner.address,
        observation_space=BoxSpace((4,)),
        action_space=DiscreteSpace(2),
    )

    def stage() -> Any:
        return list(diagnose(learner.address, config=config, timeout_s=1.0))[-1]

    assert (stage().state, relay_address in stage().text) == ("FAIL", True)
    relay = site.relay(learner.address, relay_address)
    until(lambda: stage().state == "ok", "the relay to answer")
    agent = site.agent(learner)
    drive(driver, learner, [agent], 2)
    lines = report_lines(request_status(relay.address, PATIENCE_S), time.time())
    assert lines[0].startswith(f"relay at {relay.address}") and any("lab: version 2" in line for line in lines), lines
    assert any(line.startswith(f"relay at {relay.address}") for line in report_lines(learner.status(), time.time()))
    found = {result.stage: result for result in diagnose(relay.address, config=config, timeout_s=5.0)}
    assert "a relay of" in found["protocol"].text and found["configuration"].state == "skipped"
    relay.close()
    until(lambda: any(line.startswith("!! relay at") for line in report_lines(learner.status(), time.time())), "its end")
