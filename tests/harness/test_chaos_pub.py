"""Tests of `ChaosPub`, which passes the messages that its `ChaosFrames` lets through to its subscribers."""

from __future__ import annotations

from typing import Any

import pytest

from harness.chaos_frames import ChaosFrames
from harness.chaos_pub import ChaosPub
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports import Poller, Socket, read_subscription

PATIENCE_S = 20.0


def take(source: Any) -> Any:
    with Poller() as poller:
        poller.register(source)
        assert poller.poll(PATIENCE_S), "nothing came"
    return source.recv()


def test_what_arrives_is_what_the_chaos_lets_through(seed: int) -> None:
    messages = [[b"W", str(number).encode(), bytes(number)] for number in range(500)]
    twin = ChaosFrames(seed, drop=0.1, reorder=0.1)
    wanted = [message for sent in messages for message in twin(sent)]
    chaos = ChaosFrames(seed, drop=0.1, reorder=0.1)
    with Socket.xpub("tcp://127.0.0.1:0", hwm=1000) as pub, ChaosPub(pub.bound, chaos) as relay, Socket.sub(relay.address) as sub:
        sub.subscribe(b"W")
        assert read_subscription(take(pub)) == (True, b"W")
        for message in messages:
            pub.send([b"X", b"of another topic"])
            pub.send(message)
        assert [[bytes(frame) for frame in take(sub)] for _ in wanted] == wanted
        assert relay.counters.get("dropped") == twin.counters.get("dropped") > 0
        sub.unsubscribe(b"W")
        assert read_subscription(take(pub)) == (False, b"W")


def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    with Socket.xpub("tcp://127.0.0.1:0") as other, pytest.raises(TransportError, match="the relay"):
        ChaosPub("tcp://127.0.0.1:1", ChaosFrames(0), listen=other.bound)


def test_it_can_be_closed_twice() -> None:
    relay = ChaosPub("tcp://127.0.0.1:1", ChaosFrames(0))
    relay.close()
    relay.close()
