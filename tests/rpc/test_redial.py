"""A dead connection is replaced by a new one."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import liveness
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.rpc import session as sessions
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults


def test_a_session_asks_for_another_connection_after_silence() -> None:
    session = sessions.CallerSession("tcp://x", Counters(), welcome={"max_frame_bytes": 1 << 30})
    session.start_call("m", np.zeros(liveness.SLOWEST_BYTES_S, np.uint8), 100.0, 60.0)
    due_s, on_reconnected = 100.0, []
    while due_s < 120.0:
        if session.should_reconnect(due_s):
            on_reconnected.append(due_s)
        session.due(due_s)
        due_s += session.wait_s(due_s)
    assert on_reconnected == [
        107.5,
        115.5,
    ]  # at 103.5 s its bytes might still be in transit, and at 111.5 s those after 107.5 s
    assert session.counters.get("redials") == 2


@pytest.mark.parametrize("way", ["call", "submit"])
def test_a_half_open_connection_is_dialled_anew_and_the_call_runs_once(way: str, monkeypatch: Any, seed: int) -> None:
    monkeypatch.setattr(sessions, "SILENCE_S", 0.2)
    ran: list[int] = []

    def run(payload: int) -> int:
        ran.append(payload)
        return len(ran)

    with Server("tcp://127.0.0.1:0", name="redial") as server:
        server.register("note", run)
        server.start()
        with ChaosProxy(server.address, seed=seed) as proxy, Caller(proxy.address, timeout_s=20.0) as client:

            def note(number: int) -> Any:
                if way == "call":
                    return client.call("note", number, once=True)
                return client.submit("note", number, once=True).result(20.0)

            assert note(0) == 1
            proxy.faults = NetworkFaults(cut_probability=1.0, half_open=True)
            monkeypatch.setattr(proxy.counters, "add", remedy(proxy))
            assert note(1) == 2
            assert client.stats()["redials"] >= 1
    assert ran == [0, 1]


def remedy(proxy: ChaosProxy) -> Any:
    """Return a replacement for `proxy.counters.add` that ends the faults at the first half-open connection."""
    add = proxy.counters.add

    def count(name: str, amount: int = 1) -> None:
        add(name, amount)
        if name == "half_open":
            proxy._loop.faults = NetworkFaults()

    return count
