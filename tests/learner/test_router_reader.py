"""The reader of the learner's ROUTER: for how long its messages can have waited."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.learner import LearnerConfig
from rl4sys_zmq.learner.gateway.connections import ROUTER_BURST, RouterReader
from rl4sys_zmq.transports import Socket


def test_the_reader_is_behind_from_the_time_when_it_last_found_no_message() -> None:
    received: list[bytes] = []

    def receive(_peer: bytes, _sender: object, frames: Sequence[Any], _now: float) -> None:
        received.append(bytes(frames[0]))

    endpoint: Any = SimpleNamespace(sessions={}, receive=receive)
    with ExitStack() as stack:
        router = stack.enter_context(Socket.router("inproc://*"))
        reader = RouterReader(LearnerConfig(bind="inproc://*", run_dir=None), router, endpoint, Counters())
        reader.read_messages()
        empty_s = time.monotonic()
        sent = 0
        while sent <= ROUTER_BURST:  # a socket takes a limited number of messages
            dealer = stack.enter_context(Socket.dealer(router.bound))
            while sent <= ROUTER_BURST and dealer.send([b"message"]):
                sent += 1
        reader.read_messages()
        now = time.monotonic()
        assert len(received) == ROUTER_BURST
        assert reader.behind_s(now) >= now - empty_s, "one message still waits"
        began = time.monotonic()
        reader.read_messages()
        now = time.monotonic()
        assert len(received) == ROUTER_BURST + 1
        assert reader.behind_s(now) <= now - began
