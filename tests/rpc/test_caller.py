"""Uses of a caller: a call in a future's callback, a start before the server, invalid names, a fork, Ctrl-C."""

import queue
import threading
from pathlib import Path
from typing import Any

import pytest
from harness.forks import works_in_a_child

from rl4sys_zmq.errors import CallRefused, CallTimeout, Closed, ConfigError, PayloadError, TransportError
from rl4sys_zmq.liveness import Backoff
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.rpc import caller_thread as pumps
from rl4sys_zmq.testing.check_transport import TransportUnderTest
from rl4sys_zmq.transports import Socket

WAIT_S = 10.0


@pytest.fixture
def server(transport: TransportUnderTest) -> Any:
    with Server(transport.address(), name="echo", pub=transport.address()) as made:
        made.register("echo", lambda payload: payload)
        yield made.start()


def test_a_futures_callback_may_use_the_client(server: Server) -> None:
    chained: queue.Queue[Any] = queue.Queue()
    with Caller(server.address, timeout_s=WAIT_S) as client:

        def go_on(done: Any) -> None:
            client.submit("echo", done.result() + 1).add_done_callback(lambda f: chained.put(f.result()))
            chained.put(client.call("echo", "sync"))

        client.submit("echo", 1).add_done_callback(go_on)
        assert {chained.get(timeout=WAIT_S), chained.get(timeout=WAIT_S)} == {2, "sync"}


def test_a_futures_callback_may_close_the_client(server: Server) -> None:
    closed = threading.Event()
    client = Caller(server.address, timeout_s=WAIT_S)
    client.subscribe("obs", lambda payload, number: None)

    def close(done: Any) -> None:
        client.close()
        closed.set()

    client.submit("echo").add_done_callback(close)
    assert closed.wait(WAIT_S)
    client.close()
    with pytest.raises(Closed):
        client.submit("echo")


def test_a_subscriptions_callback_may_close_the_client(server: Server) -> None:
    closed = threading.Event()
    client = Caller(server.address, timeout_s=WAIT_S)

    def close(payload: Any, number: int) -> None:
        client.close()
        closed.set()

    client.subscribe("obs", close)
    server.publish("obs", 1)
    assert closed.wait(WAIT_S)


def test_a_burst_of_futures_is_answered_in_one_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The burst is larger than the queue of a connection. No call waits for the time after which a lost call is resent."""
    monkeypatch.setattr("rl4sys_zmq.rpc.session.CALL_RESEND", Backoff(3600.0, 3600.0))
    with Caller(server.address, timeout_s=3 * WAIT_S) as client:
        futures = [client.submit("echo", number, once=bool(number % 2)) for number in range(3000)]
        assert [future.result(3 * WAIT_S) for future in futures] == list(range(3000))
        assert client.counters.get("again") == 0


def test_a_subscription_may_come_long_before_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "LATEST_RETRY_S", 0.05)
    monkeypatch.setattr(pumps, "CLOSE_CHECK_S", 0.02)
    heard: queue.Queue[Any] = queue.Queue()
    address, pub = f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/pub"
    with Caller(address) as client:
        subscription = client.subscribe("obs", lambda payload, number: heard.put(payload))
        asked: set[float] = set()
        while len(asked) < 4:  # it sends several requests without a reply
            asked.add(subscription.asked_s)
        with Server(address, name="late", pub=pub) as late:
            late.start()
            late.publish("obs", 1)
            assert heard.get(timeout=WAIT_S) == 1
            late.publish("obs", 2)
            assert heard.get(timeout=WAIT_S) == 2


def test_a_subscription_outlives_a_server_with_other_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "LATEST_RETRY_S", 0.05)
    monkeypatch.setattr(pumps, "CLOSE_CHECK_S", 0.02)
    heard: queue.Queue[Any] = queue.Queue()
    address, pub = f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/pub"
    with Caller(address, terms={"v": 1}, timeout_s=WAIT_S) as client:
        client.subscribe("obs", lambda payload, number: heard.put(payload))
        with Server(address, name="other", terms={"v": 2}) as other:
            other.start()
            with pytest.raises(CallRefused, match="v is 1 at the caller"):
                client.submit("$status").result(WAIT_S)
        with Server(address, name="right", pub=pub, terms={"v": 1}) as right:
            right.start()
            right.publish("obs", 1)
            assert heard.get(timeout=WAIT_S) == 1


def test_a_subscription_that_ended_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pumps, "CLOSE_CHECK_S", 0.02)
    heard: queue.Queue[Any] = queue.Queue()
    with Caller(server.address, timeout_s=WAIT_S) as client:
        for _ in range(20):
            client.subscribe("obs", lambda payload, number: None).stop()
        kept = client.subscribe("kept", lambda payload, number: heard.put(payload))
        caller_thread = client._caller_thread
        assert caller_thread is not None
        while caller_thread._all() != [kept]:
            client.submit("echo").result(WAIT_S)
        again = client.subscribe("obs", lambda payload, number: heard.put(payload))
        for topic in ("kept", "obs"):
            server.publish(topic, topic)
        assert {heard.get(timeout=WAIT_S), heard.get(timeout=WAIT_S)} == {"kept", "obs"}
        again.stop()


@pytest.mark.parametrize("topic", [b"obs", None, "", [], 5, "x" * 300, "a\0b", "\ud800"])
def test_a_topic_that_is_none_is_refused_where_it_is_given(topic: Any) -> None:
    with Caller("ipc:///nowhere/at/all") as client, pytest.raises(PayloadError):
        client.subscribe(topic, lambda payload, number: None)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "1", None, [], 1e9])
def test_a_time_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        Caller("tcp://127.0.0.1:1", timeout_s=timeout_s)


def test_terms_and_addresses_that_are_none_are_refused() -> None:
    with pytest.raises(PayloadError, match=r"\['a'\]"):
        Caller("tcp://127.0.0.1:1", terms={"a": object()})
    for address in (5, None, b"tcp://127.0.0.1:1", "tcp://127.0.0.1:0", "tcp://*:80"):
        with pytest.raises(TransportError):
            Caller(address)  # type: ignore[arg-type]


def test_a_server_that_sends_too_many_frames_is_no_server(tmp_path: Path) -> None:
    with Socket.router(f"ipc://{tmp_path}/s") as rogue, Caller(f"ipc://{tmp_path}/s", timeout_s=0.5) as client:
        submitted = client.submit("m")
        asked: list[BaseException] = []

        def ask() -> None:
            try:
                client.call("m")
            except CallTimeout as exc:
                asked.append(exc)

        caller = threading.Thread(target=ask)
        caller.start()
        while caller.is_alive():
            frames = rogue.recv_wait(0.05)
            if frames is not None:
                rogue.send([frames[0], *[b"x"] * 200])
        assert asked
        with pytest.raises(CallTimeout):
            submitted.result(WAIT_S)
        assert client.counters.get("refused") >= 2


def test_a_call_that_was_interrupted_runs_nowhere_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    address = f"ipc://{tmp_path}/s"
    with Caller(address, timeout_s=WAIT_S) as client:
        with Server(address, name="first") as first:
            first.register("act", ran.append)
            first.start()
            client.call("act", "before")

        def interrupted(*args: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as context:
            context.setattr(Socket, "recv_wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.call("act", "given up")
        with Server(address, name="second") as second:
            second.register("act", ran.append)
            second.start()
            client.call("act", "after")
    assert ran == ["before", "after"]


def test_a_forked_child_makes_its_own_connections(server: Server) -> None:
    if server.address.startswith("inproc"):
        pytest.skip("another process can't reach inproc")
    with Caller(server.address, timeout_s=WAIT_S) as client:
        assert client.call("echo", 1) == client.submit("echo", 1).result(WAIT_S) == 1

        def work() -> None:
            assert client.call("echo", 2) == client.submit("echo", 2).result(WAIT_S) == 2
            client.close()
            server.stop()

        assert works_in_a_child(work)
        assert client.call("echo", 3) == client.submit("echo", 3).result(WAIT_S) == 3
