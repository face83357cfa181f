"""Tests of the contract tests for transports: for each planted defect, the error names its clause."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults, TransportUnderTest, check_transport, fresh_address
from rl4sys_zmq.transports import Address, SendResult, Socket


def drop_empty_frames(original: Any, self: Any, frames: Any) -> Any:
    kept = [f for f in frames if len(f)] or [b""]
    return original(self, kept if self.role == "dealer" else frames)


def forget_gone(original: Any, self: Any, frames: Any) -> Any:
    sent = original(self, frames)
    return SendResult.OK if sent is SendResult.GONE else sent


def claim_room(original: Any, self: Any, frames: Any) -> Any:
    sent = original(self, frames)
    return SendResult.OK if sent is SendResult.FULL and self.role == "router" else sent


def any_thread(original: Any, self: Any) -> None:
    owner, self.owner = self.owner, threading.get_ident()
    original(self)
    self.owner = owner


@pytest.mark.parametrize(
    ("name", "defect", "clause"),
    [
        ("send", drop_empty_frames, "frames_arrive_exactly"),
        ("send", forget_gone, "unknown_peers_are_gone"),
        ("send", claim_room, "a_full_queue_never_blocks"),
        ("check_owner", any_thread, "other_threads_are_refused"),
    ],
)
def test_a_defect_is_named_by_its_clause(monkeypatch: pytest.MonkeyPatch, name: str, defect: Any, clause: str) -> None:
    original = getattr(Socket, name)
    monkeypatch.setattr(Socket, name, lambda self, *args: defect(original, self, *args))
    with pytest.raises(AssertionError, match=clause):
        check_transport(lambda: "inproc://*")


def test_through_a_slow_network() -> None:
    proxies: list[ChaosProxy] = []

    def through(address: Any) -> Any:
        proxies.append(ChaosProxy(address, seed=len(proxies), faults=NetworkFaults(latency_s=0.001)))
        return proxies[-1].address

    try:
        check_transport(lambda: "tcp://127.0.0.1:0", via=through)
    finally:
        for proxy in proxies:
            proxy.close()
    assert len(proxies) >= 10 and all(proxy.counters.get("connections") for proxy in proxies)


def test_fresh_addresses(tmp_path: Path) -> None:
    assert fresh_address("tcp", tmp_path) == "tcp://127.0.0.1:0"
    for scheme in ("inproc", "ipc"):
        one, two = (fresh_address(scheme, "/tmp/short") for _ in range(2))
        assert one != two and Address.parse(one).scheme == scheme
    with pytest.raises(TransportError):
        fresh_address("udp", tmp_path)
    with pytest.raises(TransportError, match="too long"):
        fresh_address("ipc", "/tmp/" + "x" * 100)


def test_the_fixture_gives_what_it_says(transport: TransportUnderTest) -> None:
    assert transport.scheme in ("tcp", "ipc", "inproc")
    with Socket.router(transport.address()) as one, Socket.router(transport.address()) as two:
        assert one.bound != two.bound
    assert transport.scheme in repr(transport)


def test_an_ipc_folder_is_removed() -> None:
    with TransportUnderTest("ipc") as under_test:
        folder = os.path.dirname(under_test.address().removeprefix("ipc://"))
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)
    with pytest.raises(TransportError):
        TransportUnderTest("udp")
