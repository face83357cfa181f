"""Errors of a server and its caller: messages that are too large, stuck callbacks, unequal terms, invalid subscriptions."""

import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import CallbackStuck, CallFailed, CallRefusalReason, CallRefused, CallTimeout, ConfigError, PayloadError
from rl4sys_zmq.rpc import Caller, Server
from rl4sys_zmq.testing.check_transport import TransportUnderTest
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire.rpc import Call, Reply, decode_call, encode_call, encode_reply

from .conftest import Blocker

WAIT_S = 10.0


def test_what_is_too_large_is_refused_before_it_is_sent(transport: TransportUnderTest) -> None:
    with Server(transport.address(), name="small", max_frame_bytes=100_000) as server:
        server.register("echo", lambda payload: payload)
        server.start()
        with Caller(server.address, timeout_s=WAIT_S) as client:
            for call in (
                client.call,
                client.call,
                lambda *a: client.submit(*a).result(),
            ):  # before the HELLO, after it, and with a future
                with pytest.raises(CallRefused, match=r"200000 bytes; the limit is 100000") as caught:
                    call("echo", np.zeros(200_000, np.uint8))
                assert caught.value.code is CallRefusalReason.TOO_LARGE
            assert client.call("echo", 1) == 1


def test_an_answer_or_a_notice_that_is_too_large_is_its_senders_error(
    monkeypatch: pytest.MonkeyPatch, transport: TransportUnderTest
) -> None:
    monkeypatch.setattr("rl4sys_zmq.rpc.server.MAX_ANSWER_FRAME_BYTES", 100_000)
    with Server(transport.address(), name="large", pub=transport.address()) as server:
        server.register("much", lambda size: np.zeros(size, np.uint8))
        server.start()
        with Caller(server.address, timeout_s=WAIT_S) as client:
            with pytest.raises(CallFailed, match="limit is 100000") as caught:
                client.call("much", 200_000)
            assert caught.value.kind == "PayloadError"
            assert client.call("much", 50_000).nbytes == 50_000
        with pytest.raises(PayloadError, match="limit is 100000"):
            server.publish("news", np.zeros(200_000, np.uint8))


@pytest.mark.parametrize("name", [5, b"m", None, ("m",), "", "x" * 300, "\ud800"])
def test_what_is_no_name_is_not_registered(name: Any) -> None:
    with Server("tcp://127.0.0.1:0", name="names", pub="tcp://127.0.0.1:0") as server:
        with pytest.raises(ConfigError, match="is not a valid name"):
            server.register(name, lambda payload: payload)
        if name is not None:
            with pytest.raises(ConfigError, match="is not a valid name"):
                server.register("m", lambda payload: payload, concurrency_group=name)
        with pytest.raises(PayloadError, match="topic"):
            server.publish(name, 1)
        with pytest.raises(ConfigError, match="batching is 8"):
            server.register("m", lambda payload: payload, batching=8)  # type: ignore[arg-type]
        server.register("good", lambda payload: payload)
        server.start()
        with Caller(server.address, timeout_s=WAIT_S) as client:
            assert client.call("good", 1) == 1
        assert server.status()["methods"] == ["good"]


def test_terms_may_have_arrays_and_numbers_that_are_none(transport: TransportUnderTest) -> None:
    terms = {"low": np.zeros(3), "nested": {"a": (1, float("nan")), "b": [np.full(2, np.nan, np.float32)]}, "rate": 10}
    same = {"rate": 10.0, "low": np.zeros(3), "nested": {"b": [np.full(2, np.nan, np.float32)], "a": (1, float("nan"))}}
    others = {
        "low": [np.zeros(4), np.zeros(3, np.float32), np.ones(3), 0.0, None],
        "nested": [{"a": (1, float("nan"))}, {**terms["nested"], "a": (1, 2.0)}, {**terms["nested"], "b": []}],  # type: ignore[dict-item]
        "rate": [float("nan"), np.zeros(1), "10"],
    }
    with Server(transport.address(), name="terms", terms=terms) as server:
        server.register("fine", lambda payload: payload)
        server.start()
        with Caller(server.address, timeout_s=WAIT_S, terms=same) as client:
            assert client.call("fine", 1) == 1
        for field, values in others.items():
            for value in values:
                with (
                    Caller(server.address, timeout_s=WAIT_S, terms={**terms, field: value}) as client,
                    pytest.raises(CallRefused, match=f"mismatch.*{field} is"),
                ):
                    client.call("fine", 1)


def test_a_server_that_gave_up_on_a_callback_lets_go_of_its_address_when_that_returns(
    transport: TransportUnderTest, block: Blocker
) -> None:
    server = Server(transport.address(), name="stuck", pub=transport.address())
    server.register("slow", block)
    server.start()
    with Caller(server.address, timeout_s=WAIT_S) as client:
        waiting = client.submit("slow")
        assert block.entered.wait(WAIT_S)
        with pytest.raises(CallbackStuck, match="slow"):
            server.stop(timeout_s=0.05)
        block.leave.set()
        waiting.result(WAIT_S)
    server._pool.join(WAIT_S)
    with Server(server.address, name="next", pub=server.pub_address) as other:
        other.start()
    server.stop()


def test_two_callbacks_hear_one_topic_and_both_end(transport: TransportUnderTest) -> None:
    heard: list[list[int]] = [[], []]
    done = [threading.Event(), threading.Event()]
    with Server(transport.address(), name="news", pub=transport.address()) as server:
        server.start()
        with Caller(server.address, timeout_s=WAIT_S) as client:
            for place in (0, 1):

                def hear(payload: object, number: int, place: int = place) -> None:
                    heard[place].append(number)
                    if payload == "last":
                        done[place].set()

                client.subscribe("t", hear)
            for index in range(20):
                server.publish("t", index)
            server.publish("t", "last")
            assert all(event.wait(WAIT_S) for event in done)
    for numbers in heard:
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 21


def test_what_waits_to_be_published_is_the_newest_of_each_topic(transport: TransportUnderTest, monkeypatch: Any) -> None:
    monkeypatch.setattr("rl4sys_zmq.rpc.topics.MAX_TOPICS", 3)
    with Server(transport.address(), name="news", pub=transport.address()) as server:
        for number in range(1, 101):
            for topic in ("a", "b", "c"):
                assert server.publish(topic, f"{topic} {number}") == number
        assert len(server._publisher._posted) == 3
        with pytest.raises(PayloadError, match="publishes 3 topics"):
            server.publish("d", 1)
        server.start()
        heard: queue.Queue[tuple[object, int]] = queue.Queue()
        with Caller(server.address, timeout_s=WAIT_S) as client:
            client.subscribe("b", lambda payload, number: heard.put((payload, number)))
            assert heard.get(timeout=WAIT_S) == ("b 100", 100)
            server.publish("b", "last")
            assert heard.get(timeout=WAIT_S) == ("last", 101)


def test_arrays_may_change_after_they_were_published_or_answered(transport: TransportUnderTest) -> None:
    """A program changes its arrays after it has published or returned them. A message that was sent keeps its values."""
    weights = np.zeros(50_000)
    with Server(transport.address(), name="changing", pub=transport.address()) as server:
        server.register("state", lambda payload: weights)
        server.start()
        server.publish("weights", weights)
        weights += 1.0
        got: queue.Queue[float] = queue.Queue()
        with Caller(server.address) as client:
            client.subscribe("weights", lambda payload, number: got.put(float(payload.max())))
            assert got.get(timeout=10.0) == 0.0
            session = client.new_session()
            assert float(client.call("state", once=True)[0]) == 1.0
            with Socket.dealer(server.address) as dealer:  # the same call, sent again after its array has changed
                call = [encode_call(Call(n, session.id, 0, 10_000, n > 0, m, None)) for n, m in enumerate(["$hello", "state"])]
                answers = []
                for frames in (call[0], call[1], call[1]):
                    dealer.send(frames)
                    answer = dealer.recv_wait(10.0)
                    assert answer is not None
                    answers.append(decode_call(answer).payload)
                    weights += 1.0
        assert float(answers[1][0]) == float(answers[2][0]) == 2.0


@pytest.mark.parametrize("name", [b"", b"x" * 300, b"\xff"])
def test_a_subscription_to_what_is_no_topic_ends_no_server(name: bytes, tmp_path: Path) -> None:
    """Any caller knows the channel."""
    with Server(f"ipc://{tmp_path}/s", name="sturdy", pub=f"ipc://{tmp_path}/pub") as server:
        server.start()
        with Caller(server.address, timeout_s=WAIT_S) as client, Socket.sub(server.pub_address) as sub:
            sub.subscribe(name + b"\0" + client.call("$hello")["channel"])
            heard: queue.Queue[object] = queue.Queue()
            client.subscribe("t", lambda payload, number: heard.put(payload))
            server.publish("t", 1)
            assert heard.get(timeout=WAIT_S) == 1
            server.publish("t", 2)
            assert heard.get(timeout=WAIT_S) == 2  # the server has processed both subscriptions by now
        server.raise_if_dead()


@pytest.mark.parametrize(
    "welcome",
    [
        None,
        [],
        {},
        {"max_frame_bytes": "x", "since": 0, "pub": "", "channel": b""},
        {"max_frame_bytes": 1 << 20, "since": 0, "pub": "nonsense://x", "channel": b""},
        {"max_frame_bytes": 1 << 20, "since": 0, "pub": "tcp://127.0.0.1:0", "channel": b""},
    ],
)
def test_a_welcome_or_an_answer_that_is_none_ends_no_client(welcome: object, tmp_path: Path) -> None:
    with Socket.router(f"ipc://{tmp_path}/s") as rogue, Caller(f"ipc://{tmp_path}/s", timeout_s=0.5) as client:
        client.subscribe("t", lambda payload, number: None)
        future = client.submit("m")
        while not future.done():
            frames = rogue.recv_wait(0.05)
            if frames is None:
                continue
            call = decode_call(frames[1:])
            assert isinstance(call, Call)
            payload = welcome if call.method == "$hello" else "nonsense"
            rogue.send([frames[0], *encode_reply(Reply(call.number, call.session, 1, "", "", payload))])
        error = future.exception()
        assert error is None or isinstance(error, CallTimeout)
        assert client.counters.get("refused") > 0
        assert client.submit("m", timeout_s=0.01).exception(WAIT_S) is not None  # the thread still runs
