"""Garbage, unknown peers and other versions: the learner counts refusals, the actor raises typed errors, and both continue."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import AddressInUse, HandshakeRefused, RunDirectoryError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.transports import Address, Poller, Socket
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Ack, Bye, FetchWeights, Heartbeat, Hello, Message, Refused, WeightsReply, Welcome


class Stranger:
    """A DEALER socket that may send anything."""

    def __init__(self, address: str) -> None:
        self._socket = Socket.dealer(address)
        self._poller = Poller()
        self._poller.register(self._socket)

    def send(self, frames: Any) -> None:
        assert self._socket.send(frames)

    def ask(self, frames: Any) -> Message:
        self.send(frames)
        return self.hear()

    def hear(self) -> Message:
        assert self._poller.poll(10.0), "no answer"
        frames = self._socket.recv(256)
        assert frames is not None
        return decode(frames)

    def until(self, kind: type[Any]) -> Any:
        while not isinstance(message := self.hear(), kind):
            pass
        return message

    def close(self) -> None:
        self._poller.close()
        self._socket.close()


@pytest.fixture
def pair(lab: Any) -> Iterator[tuple[Any, Any, Stranger]]:
    """Yield a learner, a good agent that has joined it, and a stranger. At the end, check that the agent is still served."""
    learner = lab.learner()
    agent = lab.agent(learner)
    stranger = Stranger(learner.address)
    yield learner, agent, stranger
    stranger.close()
    # the good client is still served, whatever the stranger has sent
    before = agent.version
    lab.episode(agent, 16)
    version = agent.wait_version(before + 1, 20.0)
    assert agent.digest == learner.digest("lab", version)


def hello(**fields: Any) -> Hello:
    return Hello(
        **{
            "client_id": "lab",
            "actor_id": "stranger",
            "incarnation": 5,
            "first_seq": 0,
            "held_generation": 0,
            "held_version": 0,
            **fields,
        }
    )


def segment(**changes: Any) -> Segment:
    fields: dict[str, Any] = {
        "observations": np.zeros((3, 4), dtype=np.float32),
        "actions": np.zeros(3, dtype=np.int64),
        "rewards": np.zeros(3, dtype=np.float32),
        "log_probs": np.zeros(3, dtype=np.float32),
        "versions": np.zeros(3, dtype=np.uint64),
        "masks": None,
        "generation": 0,
        "episode_id": 1,
        "segment_index": 0,
        "terminated": True,
        "truncated": False,
        "episode_return": 0.0,
        "episode_length": 3,
    }
    return Segment(**{**fields, **changes})


def refusal(message: Message) -> str:
    assert isinstance(message, Refused), message
    return message.code


def test_messages_that_are_none_are_refused_by_their_reason(pair: Any) -> None:
    learner, _, stranger = pair
    good = bytes(encode(hello())[0])
    flipped = bytearray(good)
    flipped[-1] ^= 1
    cases = {
        "magic": [b"GET / HTTP/1.1\r\n\r\n" + bytes(64)],
        "version": [good[:4] + b"\x09" + good[5:]],
        "checksum": [bytes(flipped)],
        "frames": [good, b"one more"],
        "direction": encode(Ack(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})),
        "no_session": encode(Heartbeat(0)),
        "range": encode(hello(client_id="a/b")),
    }
    for code, frames in cases.items():
        answer = stranger.ask(frames)
        assert refusal(answer) == (code if code != "range" else "config")
    counters = learner.status()["counters"]
    for code in ("magic", "version", "checksum", "frames", "direction", "no_session", "config"):
        assert counters[f"refused.{code}"] >= 1, code


def test_a_session_that_breaks_the_rules(pair: Any) -> None:
    learner, _, stranger = pair
    welcome = stranger.ask(encode(hello()))
    assert isinstance(welcome, Welcome)
    packed = pack_segment(segment(generation=welcome.generation))
    assert refusal(stranger_refused(stranger, encode(join_submit(3, 0, [packed])))) == "gap"
    stranger.send(encode(join_submit(0, 0, [packed])))
    acked(stranger, lambda a: a.received == 1)
    stranger.send(encode(join_submit(0, 0, [packed])))  # a second time: a duplicate, which is acknowledged and not applied
    assert acked(stranger, lambda a: a.verdicts["duplicate"] == 1).received == 1
    wrong = pack_segment(segment(observations=np.zeros((3, 5), dtype=np.float32)))
    nan = pack_segment(segment(rewards=np.full(3, np.nan, dtype=np.float32), generation=welcome.generation))
    future = pack_segment(segment(versions=np.full(3, 99, dtype=np.uint64), generation=welcome.generation))
    stranger.send(encode(join_submit(1, 0, [wrong, nan, future])))
    ack = acked(stranger, lambda a: a.verdicts["refused"] == 1 and a.verdicts["quarantined"] == 2)
    assert ack.received == 4
    lies = dataclasses.replace(join_submit(4, 0, [packed]), count=2)
    assert refusal(stranger_refused(stranger, encode(lies))) == "malformed"
    client = learner.status()["clients"]["lab"]
    assert client["counters"]["items_refused.spec"] == 1
    assert client["verdicts"]["quarantined"] == 2
    assert client["accepted"] == client["pending"] + client["rolled_back"] + sum(
        client["verdicts"][v] for v in ("trained", "stale", "quarantined")
    )
    stranger.send(encode(FetchWeights(0, 0)))
    assert isinstance(stranger.until(WeightsReply), WeightsReply)
    stranger.send(encode(Bye()))
    assert refusal(stranger_refused(stranger, encode(Heartbeat(0)))) == "no_session"


def test_a_batch_that_is_full_in_the_middle_of_a_message_is_trained_on(pair: Any) -> None:
    learner, _, stranger = pair
    welcome = stranger.ask(encode(hello()))
    assert isinstance(welcome, Welcome)
    many = [
        pack_segment(segment(generation=welcome.generation, episode_id=n)) for n in range(12)
    ]  # 6 segments of 3 steps fill a batch of 16
    stranger.send(encode(join_submit(0, 0, many)))
    ack = acked(stranger, lambda a: a.verdicts["trained"] == 12)
    assert ack.trained == 12
    learner.wait(client_id="lab", version=2, timeout_s=20.0)
    assert learner.status()["clients"]["lab"]["version"] == 2


def test_fences_and_conflicts(pair: Any) -> None:
    _, _, stranger = pair
    assert isinstance(stranger.ask(encode(hello())), Welcome)
    assert refusal(stranger_refused(stranger, encode(hello(incarnation=4)))) == "fenced"
    assert refusal(stranger_refused(stranger, encode(hello(incarnation=6)))) == "conflict"


def test_garbage_on_the_port_itself(inproc_lab: Any) -> None:
    learner = inproc_lab.learner(bind="tcp://127.0.0.1:0")
    agent = inproc_lab.agent(learner)
    address = Address.parse(learner.address)
    for payload in (b"", b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64):
        with socket.create_connection((address.host, address.port), timeout=5) as raw:
            raw.sendall(payload)
    inproc_lab.episode(agent, 16)
    agent.wait_version(1, 20.0)


def test_a_learner_of_another_version_is_named(inproc_lab: Any) -> None:
    with Socket.router("inproc://another-age") as router:
        import threading

        answered = threading.Event()
        error: list[BaseException] = []

        def actor() -> None:
            try:
                inproc_lab.agent("inproc://another-age", connect_timeout_s=10.0)
            except HandshakeRefused as exc:
                error.append(exc)
            answered.set()

        thread = threading.Thread(target=actor)
        thread.start()
        with Poller() as poller:
            poller.register(router)
            while not answered.is_set():
                poller.poll(0.1)
                while (frames := router.recv()) is not None:
                    reply = bytes(encode(Refused("version", "", "too old"))[0])
                    router.send([frames[0], reply[:4] + b"\x09" + reply[5:]])
        thread.join()
    assert "protocol 9.0; this side speaks 1.0" in str(error[0])


def test_the_port_is_taken(lab: Any) -> None:
    learner = lab.learner()
    with pytest.raises(AddressInUse, match="already in use"):
        Learner(LearnerConfig(bind=learner.address, run_dir=None)).start()


def test_a_run_directory_that_cannot_be_made(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        Learner(LearnerConfig(bind="inproc://*", run_dir=tmp_path / "file" / "run")).start()


def test_too_many(inproc_lab: Any) -> None:
    learner = inproc_lab.learner(max_clients=1, max_actors=1)
    inproc_lab.agent(learner)
    with pytest.raises(HandshakeRefused, match="max_actors"):
        inproc_lab.agent(learner)
    with pytest.raises(HandshakeRefused, match="max_clients"):
        inproc_lab.agent(learner, "second")


def stranger_refused(stranger: Stranger, frames: Any) -> Refused:
    stranger.send(frames)
    message: Refused = stranger.until(Refused)
    return message


def acked(stranger: Stranger, enough: Any) -> Ack:
    ack: Ack
    while not enough(ack := stranger.until(Ack)):
        pass
    return ack
