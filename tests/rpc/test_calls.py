"""Calls over real sockets: replies, errors, deadlines, batches, calls that run at most once, publications, stopping."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import (
    AddressInUse,
    CallbackStuck,
    CallFailed,
    CallLost,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    Closed,
    ConfigError,
    PayloadError,
)
from rl4sys_zmq.rpc import BatchLimits, Caller, CallRefusedByCallback, Server
from rl4sys_zmq.testing.check_transport import TransportUnderTest
from rl4sys_zmq.transports.context import open_sockets

from .conftest import Blocker

WAIT_S = 10.0


@pytest.fixture
def server(transport: TransportUnderTest) -> Iterator[Server]:
    made = Server(transport.address(), name="test", pub=transport.address(), terms={"version": "1", "keys": ["a"]})
    yield made
    made.stop()


def client_of(server: Server, **options: Any) -> Caller:
    return Caller(server.address, timeout_s=WAIT_S, **options)


def test_answers(server: Server) -> None:
    server.register("double", lambda payload: {"x": payload["x"] * 2, "of": (1, None, "é", b"b", [True])})
    server.start()
    with client_of(server) as client:
        for shape in [(), (0,), (3,), (200, 300)]:  # small arrays are in the skeleton, large ones in a frame of their own
            x = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
            answer = client.call("double", {"x": x})
            assert np.array_equal(answer["x"], x * 2) and np.asarray(answer["x"]).dtype == x.dtype
            assert answer["of"] == (1, None, "é", b"b", [True])
    assert server.status()["counters"]["calls"] == 4


def test_a_future_and_asyncio_get_the_same(server: Server) -> None:
    server.register("add", lambda payload: payload + 1)
    server.start()
    with client_of(server) as client:
        futures = [client.submit("add", i) for i in range(50)]
        assert [f.result(WAIT_S) for f in futures] == list(range(1, 51))

        async def several() -> list[Any]:
            return await asyncio.gather(*(client.acall("add", i) for i in range(10)))

        assert asyncio.run(several()) == list(range(1, 11))


def test_what_a_callback_raises_is_its_callers(server: Server) -> None:
    def boom(payload: Any) -> Any:
        raise KeyError("grüße \ud800") if payload else CallRefusedByCallback(CallRefusalReason.INVALID, "not this")

    server.register("boom", boom)
    server.register("bad", lambda payload: {"deep": [object()]})
    server.register("exit", lambda payload: sys.exit(3))
    server.register("fine", lambda payload: payload)
    server.start()
    with client_of(server) as client:
        with pytest.raises(CallFailed, match="KeyError") as failed:
            client.call("boom", 1)
        assert failed.value.kind == "KeyError"
        with pytest.raises(CallRefused, match="not this") as refused:
            client.call("boom", 0)
        assert refused.value.code == CallRefusalReason.INVALID
        with pytest.raises(CallFailed, match=r"payload\['deep'\]\[0\]"):
            client.call("bad")
        for _ in range(2):
            with pytest.raises(CallFailed, match="raised SystemExit: 3"):
                client.call("exit")
        with pytest.raises(CallRefused, match=r"'nope'.*bad, boom, exit, fine") as unknown:
            client.call("nope")
        assert unknown.value.code == CallRefusalReason.UNKNOWN
        with pytest.raises(PayloadError, match=r"payload\['a'\]\[1\]") as payload:
            client.call("fine", {"a": [1, {2}]})
        assert payload.value.path == "payload['a'][1]"
        assert client.call("fine", 5) == 5
    counters = server.status()["counters"]
    assert (counters["failed"], counters["refused.unknown"], counters["refused.invalid"]) == (4, 1, 1)


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bare(CallRefusedByCallback):
    def __init__(self) -> None:
        """Do not call the base class, so the attributes of a refusal are missing."""


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (asyncio.CancelledError, "CancelledError"),
        (KeyboardInterrupt, "KeyboardInterrupt"),
        (GeneratorExit, "GeneratorExit"),
        (Textless, r"Textless: \(its __str__ raises RuntimeError\)"),
        (lambda: CallRefusedByCallback("weird", "x"), "ValueError: 'weird'"),
        (lambda: CallRefusedByCallback(None, "x"), "ValueError: None"),  # type: ignore[arg-type]
        (Bare, "AttributeError"),
    ],
)
def test_nothing_that_a_callback_raises_ends_its_lane(make: Any, kind: str) -> None:
    def fail(payload: Any) -> Any:
        if payload:
            raise make()
        return "fine"

    with Server("tcp://127.0.0.1:0", name="raises") as server:
        server.register("m", fail)
        server.start()
        with client_of(server) as client:
            with pytest.raises(CallFailed, match=kind):
                client.call("m", 1)
            assert client.call("m", 0) == "fine"
        server.raise_if_dead()


def test_a_refusal_says_what_it_was_given() -> None:
    refusal = CallRefusedByCallback("invalid", ValueError("not this"))
    assert (refusal.code, refusal.detail) == (CallRefusalReason.INVALID, "not this")


def test_calls_are_batched_and_one_bad_one_spoils_no_other(server: Server) -> None:
    entered, first, sizes = threading.Event(), threading.Event(), []

    def squares(payloads: Any) -> Any:
        if payloads == [0]:
            entered.set()
            first.wait(WAIT_S)
        sizes.append(len(payloads))
        return [1 // (p - 7) + p * p for p in payloads]

    server.register("square", squares, batching=BatchLimits(max_size=16))
    server.start()
    with client_of(server) as client:
        client.submit("square", 0)
        assert entered.wait(WAIT_S)
        futures = [client.submit("square", i) for i in range(1, 17)]
        while server.status()["waiting"]["square"] < 16:
            threading.Event().wait(0.001)
        first.set()
        for i, future in enumerate(futures, 1):
            if i == 7:
                with pytest.raises(CallFailed, match="ZeroDivisionError"):
                    future.result(WAIT_S)
            else:
                assert future.result(WAIT_S) == 1 // (i - 7) + i * i
    assert sizes == [1, 16, *[1] * 16]


def test_what_must_run_once_is_not_asked_again_when_its_batch_raises(server: Server) -> None:
    ran: list[str] = []

    def note(payloads: Any) -> Any:
        ran.extend(payloads)
        if "bad" in payloads:
            raise ValueError("bad")
        return payloads

    server.register("note", note, batching=BatchLimits(max_size=4, max_wait_s=30.0))
    server.start()
    with client_of(server) as client:
        futures = [client.submit("note", p, once=p != "again") for p in ("a", "bad", "again", "b")]
        assert futures[2].result(WAIT_S) == "again"
        for future in (futures[0], futures[1], futures[3]):
            with pytest.raises(CallFailed, match="ValueError: bad"):
                future.result(WAIT_S)
    assert ran == ["a", "bad", "again", "b", "again"]


def test_a_callback_that_blocks_holds_up_its_own_lane_alone(server: Server, block: Blocker) -> None:
    server.register("block", block)
    server.register("beside", lambda payload: payload, concurrency_group="block")
    server.register("quick", lambda payload: payload)
    server.start()
    with client_of(server) as client:
        blocked = client.submit("block", 1)
        beside = client.submit("beside", 2)
        assert block.entered.wait(WAIT_S)
        for i in range(20):
            assert client.call("quick", i) == i
        with pytest.raises(CallTimeout, match="waiting for the answer") as late:
            client.call("block", 3, timeout_s=0.2)
        assert (late.value.method, late.value.timeout_s) == ("block", 0.2)
        assert not beside.done()
        block.leave.set()
        assert (blocked.result(WAIT_S), beside.result(WAIT_S)) == (1, 2)
        assert client.call("quick", 4) == 4
    assert server.counters.get("takeovers") >= 1


def test_too_many_waiting_calls_are_refused(server: Server, block: Blocker) -> None:
    server.register("block", block, max_queue=3)
    server.start()
    with client_of(server) as client:
        running = client.submit("block")
        assert block.entered.wait(WAIT_S)
        futures = [client.submit("block") for _ in range(5)]
        for future in futures[3:]:
            with pytest.raises(CallRefused) as busy:
                future.result(WAIT_S)
            assert busy.value.code == CallRefusalReason.BUSY
        block.leave.set()
        for future in [running, *futures[:3]]:
            future.result(WAIT_S)


def test_terms_that_differ_are_named(server: Server) -> None:
    server.register("fine", lambda payload: payload)
    server.start()
    with client_of(server, terms={"version": "1", "keys": ["a"]}) as client:
        assert client.call("fine", 1) == 1
    for terms, text in (
        ({"version": "2", "keys": ["a"]}, "version is '2' at the caller and '1' at the server"),
        ({"version": "1"}, "keys is None at the caller"),
        ({"version": "1", "keys": ["a"], "more": 3}, "more is 3 at the caller and None"),
    ):
        with client_of(server, terms=terms) as client, pytest.raises(CallRefused, match=text) as refused:
            client.call("fine", 1)
        assert refused.value.code == CallRefusalReason.MISMATCH
        with client_of(server, terms=terms) as client, pytest.raises(CallRefused, match=text):
            client.submit("fine", 1).result(WAIT_S)


def test_many_threads_share_a_client(server: Server) -> None:
    server.register("echo", lambda payload: payload)
    server.start()
    faults: list[str] = []
    with client_of(server) as client:

        def work(name: int) -> None:
            for i in range(100):
                if client.call("echo", [name, i]) != [name, i]:
                    faults.append(f"{name} {i}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults


def test_subscribers_get_the_newest_in_order(server: Server) -> None:
    server.start()
    got: list[tuple[int, int]] = []
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def note(payload: Any, number: int) -> None:
        got.append((payload, number))
        entered.set()
        leave.wait(WAIT_S)
        if payload == 50:
            done.set()
            raise RuntimeError("a callback that raises is counted")

    assert server.publish("obs", 1) == 1
    with client_of(server) as client:
        client.subscribe("obs", note)
        assert entered.wait(WAIT_S)  # a new subscriber gets the newest publication
        for payload in range(2, 51):
            server.publish("obs", payload)
        server.publish("other", -1)
        leave.set()
        assert done.wait(WAIT_S)
    numbers = [n for _, n in got]
    assert numbers == sorted(set(numbers)) and got[0] == (1, 1) and got[-1] == (50, 50) and len(got) < 50
    assert client.counters.get("callback_failed") == 1


def test_stopping(server: Server, block: Blocker) -> None:
    server.register("block", block)
    server.start()
    client = client_of(server)
    running, waiting = client.submit("block"), client.submit("block")
    assert block.entered.wait(WAIT_S)
    with pytest.raises(CallbackStuck, match="block"):
        server.stop(0.2)
    block.leave.set()
    server.stop()
    server.stop()
    with pytest.raises(Closed):
        server.start()
    with pytest.raises(Closed):
        server.publish("obs", 1)
    client.close()
    with pytest.raises((CallRefused, Closed)):
        waiting.result(WAIT_S)
    assert running.done()
    with pytest.raises(Closed):
        client.call("block")
    with pytest.raises(Closed):
        client.submit("block")
    client.close()


def test_a_callback_may_stop_its_server(server: Server) -> None:
    def last(payload: Any) -> Any:
        server.stop()
        return payload

    server.register("last", last)
    server.start()
    with client_of(server) as client:
        assert client.call("last", 1) == 1
        server.stop()
        with pytest.raises(CallTimeout):
            client.call("last", 2, timeout_s=0.1)


def test_a_server_that_is_absent_or_comes_later(tmp_path: Any) -> None:
    address = f"ipc://{tmp_path}/s"
    with Caller(address, timeout_s=0.2) as client:
        with pytest.raises(CallTimeout, match="none has answered yet"):
            client.call("act", 1, once=True)
        ran: list[Any] = []
        with Server(address, name="late") as server:
            server.register("act", ran.append)
            server.start()
            client.call("act", 2, timeout_s=WAIT_S, once=True)
        assert ran == [2]  # the call that timed out never ran


SERVER = """
import os, sys, time
from rl4sys_zmq.rpc import Server

def act(payload):
    with open(sys.argv[2], "a") as ran:
        ran.write(payload + " ")
    while payload == "blocks":
        time.sleep(0.01)
    return payload

server = Server(sys.argv[1], name="killed")
server.register("act", act)
server.run()
"""


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_killed_and_restarted_server(scheme: str, tmp_path: Path) -> None:
    """A call that may run twice is resent to the new server. A `once` call is reported as lost, and never runs again."""
    ran = tmp_path / "ran"
    ran.touch()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"ipc://{tmp_path}/s" if scheme == "ipc" else f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SERVER, address, str(ran)])

    def wait_for(word: str) -> None:
        while word not in ran.read_text():
            threading.Event().wait(0.005)

    first = started()
    with Caller(address, timeout_s=3 * WAIT_S) as client:
        assert client.call("act", "one", once=True) == "one"
        lost, again = client.submit("act", "blocks", once=True), client.submit("act", "again")
        wait_for("blocks")
        first.kill()
        first.wait()
        second = started()
        try:
            with pytest.raises(CallLost, match="the call may or may not have run"):
                lost.result(3 * WAIT_S)
            assert again.result(3 * WAIT_S) == "again"
            assert client.submit("act", "two", once=True).result(3 * WAIT_S) == "two"
        finally:
            second.kill()
            second.wait()
    count = Counter(ran.read_text().split())
    assert count.pop("again") >= 1
    assert count == {"one": 1, "blocks": 1, "two": 1}


@pytest.mark.parametrize("started", [0, 1])
def test_a_server_whose_threads_cannot_start_closes_its_sockets(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, threads, before = threading.Thread.start, list[threading.Thread](), open_sockets()

    def full(thread: threading.Thread) -> None:
        if len(threads) == started:
            raise RuntimeError("can't start new thread")
        threads.append(thread)
        start(thread)

    server = Server("tcp://127.0.0.1:0", name="full")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(threading.Thread, "start", full)
        server.start()
    assert open_sockets() == before and not any(thread.is_alive() for thread in threads)
    with pytest.raises(Closed):
        server.start()
    server.stop()


def test_addresses_that_cannot_be_served(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="lets other machines in without keys"):
        Server("tcp://0.0.0.0:0", name="open")
    Server("tcp://0.0.0.0:0", name="open", insecure=True).stop()
    with Server("tcp://127.0.0.1:0", name="one") as one:
        one.start()
        two = Server(one.address, name="two", pub="tcp://127.0.0.1:0")
        two.register("m", lambda payload: payload)
        with pytest.raises(AddressInUse):
            two.start()
        with pytest.raises(Closed, match="not started"):
            assert two.address
    with two.start(), client_of(two) as client:  # the address is free now
        assert client.call("m", 1) == 1
    with Server("tcp://127.0.0.1:0", name="three") as three:
        three.start()
        with Server("tcp://127.0.0.1:0", name="four", pub=three.address) as four, pytest.raises(AddressInUse):
            four.start()
    with pytest.raises(Closed, match="was stopped"):
        four.start()
    with pytest.raises(ConfigError), Server("tcp://127.0.0.1:0", name="keyed", keys=tmp_path) as keyed:
        keyed.start()
    with pytest.raises(ConfigError, match="timeout_s"):
        Caller("tcp://127.0.0.1:1", timeout_s=0)
