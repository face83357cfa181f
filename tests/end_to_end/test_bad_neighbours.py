"""Garbage, unknown peers and other versions: the learner counts refusals, the actor raises typed errors, and both continue."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rl4sys_zmq.errors import HandshakeRefused
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Ack, Heartbeat, Hello, Message, Refused


class Stranger:
    """A DEALER socket that may send anything."""

    def __init__(self, address: str) -> None:
        self._socket = Socket.dealer(address)
        self._poller = Poller()
        self._poller.register(self._socket)

    def ask(self, frames: Any) -> Message:
        assert self._socket.send(frames)
        assert self._poller.poll(10.0), "no answer"
        frames = self._socket.recv(256)
        assert frames is not None
        return decode(frames)

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
    identity = {"client_id": "lab", "actor_id": "stranger", "incarnation": 5}
    return Hello(**{**identity, "first_seq": 0, "held_generation": 0, "held_version": 0, **fields})


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


def test_a_learner_of_another_version_is_named(inproc_lab: Any) -> None:
    address = "inproc://another-age"
    with Socket.router(address) as router, Poller() as poller, ThreadPoolExecutor(1) as pool:
        poller.register(router)
        actor = pool.submit(inproc_lab.agent, address, connect_timeout_s=10.0)
        while not actor.done():
            poller.poll(0.1)
            while (frames := router.recv()) is not None:
                reply = bytes(encode(Refused("version", "", "too old"))[0])
                router.send([frames[0], reply[:4] + b"\x09" + reply[5:]])
        with pytest.raises(HandshakeRefused, match=r"protocol 9\.0; this side speaks 1\.0"):
            actor.result()


def test_too_many(inproc_lab: Any) -> None:
    learner = inproc_lab.learner(max_clients=1, max_actors=1)
    inproc_lab.agent(learner)
    with pytest.raises(HandshakeRefused, match="max_actors"):
        inproc_lab.agent(learner)
    with pytest.raises(HandshakeRefused, match="max_clients"):
        inproc_lab.agent(learner, "second")
