"""The session of a caller without sockets: HELLOs, calls that are lost with a server, calls in transit."""

from typing import Any

import pytest

from rl4sys_zmq import liveness
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallLost, CallRefusalReason, CallRefused, CallTimeout, RL4SysError
from rl4sys_zmq.rpc import session as sessions
from rl4sys_zmq.rpc.session import CallerSession, CallHandle
from rl4sys_zmq.transports.frames import Frame
from rl4sys_zmq.wire.rpc import ANSWERED, Call, Reply, decode_call, encode_reply


class Server:
    """A server that records each session with the number of the HELLO that opened it."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.since: dict[int, int] = {}

    def answer(self, pending: CallHandle, code: str = ANSWERED) -> list[Frame]:
        call = decode_call(pending.frames)
        assert isinstance(call, Call)
        payload: Any = None
        if call.method == sessions.HELLO:
            since = self.since.setdefault(call.session, call.number)
            payload = {"max_frame_bytes": 1 << 20, "pub": "", "channel": b"", "since": since}
        return [bytes(f) for f in encode_reply(Reply(call.number, call.session, self.life, code, "", payload))]


def greeted(server: Server) -> CallerSession:
    session = CallerSession("tcp://x", Counters())
    first = session.start_call("m", None, 0.0, 1000.0)
    (hello,) = session.due(0.0)
    session.on_message(server.answer(hello), 0.0)
    (said,) = session.due(0.0)
    assert said is first
    session.on_message(server.answer(first), 0.0)
    assert first.done and session.welcome is not None
    return session


def say(session: CallerSession, now: float) -> list[str]:
    return [pending.method for pending in session.due(now)]


def error_of(pending: CallHandle) -> RL4SysError | None:
    assert pending.done
    return pending.error


def test_calls_wait_for_the_greeting() -> None:
    session = CallerSession("tcp://x", Counters())
    session.start_call("a", None, 0.0, 10.0)
    session.start_call("b", None, 0.0, 10.0)
    (hello,) = session.due(0.0)
    assert hello.method == sessions.HELLO
    assert session.due(0.1) == []
    assert session.wait_s(0.1) == pytest.approx(liveness.CALL_RESEND.first_s - 0.1)
    assert session.due(liveness.CALL_RESEND.first_s) == [hello]
    session.on_message(Server(1).answer(hello), 1.0)
    assert say(session, 1.0) == ["a", "b"]


def test_a_call_can_wait_for_a_server_for_a_day() -> None:
    """After 1024 resends, a pause that doubles each time would overflow a float."""
    session = CallerSession("tcp://x", Counters())
    call = session.start_call("m", None, 0.0, 86_400.0)
    now = 0.0
    while not session.expire(now):
        session.due(now)
        now += session.wait_s(now)
    assert now == 86_400.0 and isinstance(error_of(call), CallTimeout)
    assert session.counters.get("again") > 20_000


def test_what_was_said_to_a_server_that_is_gone_is_lost_whoever_greets_the_next() -> None:
    """Otherwise the HELLO for another call would make the new server run a call that the old server may have run."""
    session, second = greeted(Server(1)), Server(2)
    said = session.start_call("said", None, 0.0, 100.0, once=True)
    plain = session.start_call("plain", None, 0.0, 100.0)
    assert say(session, 0.0) == ["said", "plain"]
    fresh = session.start_call("fresh", None, 0.1, 100.0, once=True)
    assert session.due(0.1) == [fresh]
    session.on_message(second.answer(fresh, CallRefusalReason.NO_SESSION), 0.2)  # the call has not run on any server
    (hello,) = session.due(0.2)
    assert hello.method == sessions.HELLO
    session.on_message(second.answer(hello), 0.3)
    assert isinstance(error_of(said), CallLost)
    assert not plain.done and not fresh.done
    assert say(session, 10.0) == ["plain", "fresh"]
    session.on_message(second.answer(fresh), 10.1)
    assert error_of(fresh) is None


def test_a_server_that_greets_again_keeps_what_it_knows() -> None:
    server = Server(1)
    session = greeted(server)
    said = session.start_call("said", None, 0.0, 100.0, once=True)
    assert session.due(0.0) == [said]
    session.require_hello()
    (hello,) = session.due(1.0)
    session.on_message(server.answer(hello), 1.1)
    assert not said.done
    assert session.due(1.1) == [said]


def test_a_greeting_that_was_forgotten_and_opened_the_session_all_the_same_is_news() -> None:
    first, second = Server(1), Server(2)
    session = greeted(first)
    said = session.start_call("said", None, 0.0, 100.0, once=True)
    other = session.start_call("other", None, 0.0, 5.0)
    session.due(0.0)
    session.require_hello()
    (lost_hello,) = session.due(1.0)
    second.answer(lost_hello)  # the HELLO arrives, and its reply does not
    assert session.expire(6.0) and other.done and not said.done
    (hello,) = session.due(7.0)
    session.on_message(second.answer(hello), 7.1)
    assert isinstance(error_of(said), CallLost)


def test_an_answer_of_another_life_leads_to_a_greeting() -> None:
    session, second = greeted(Server(1)), Server(2)
    one = session.start_call("one", None, 0.0, 100.0)
    two = session.start_call("two", None, 0.0, 100.0)
    session.due(0.0)
    session.on_message(second.answer(one), 0.1)
    assert error_of(one) is None and session.welcome is None
    (hello,) = session.due(0.1)
    assert hello.method == sessions.HELLO
    session.on_message(second.answer(hello), 0.2)
    assert session.due(10.0) == [two]


def test_terms_that_are_refused_end_every_call_that_waits() -> None:
    session, server = CallerSession("tcp://x", Counters()), Server(1)
    calls = [session.start_call("m", None, 0.0, 10.0) for _ in range(3)]
    (hello,) = session.due(0.0)
    session.on_message(server.answer(hello, CallRefusalReason.MISMATCH), 0.1)
    for pending in calls:
        error = error_of(pending)
        assert isinstance(error, CallRefused) and error.code is CallRefusalReason.MISMATCH
    session.start_call("m", None, 1.0, 10.0)
    assert say(session, 1.0) == [sessions.HELLO]


def test_a_window_of_calls_is_said_and_each_that_is_over_lets_another_in() -> None:
    server = Server(1)
    session = greeted(server)
    calls = [session.start_call("m", None, 0.0, 10.0) for _ in range(sessions.WINDOW + 5)]
    assert session.due(0.0) == calls[: sessions.WINDOW]
    assert session.due(0.1) == []
    session.on_message(server.answer(calls[7]), 0.1)
    assert session.due(0.1) == [calls[sessions.WINDOW]]
    assert session.expire(10.0)
    assert all(pending.done for pending in calls) and not session.under_way


def test_what_the_connection_had_no_room_for_was_not_said() -> None:
    """Otherwise it would be resent only half a second later, and would be lost with a server that never received it."""
    session, second = greeted(Server(1)), Server(2)
    pending = session.start_call("m", None, 0.0, 10.0, once=True)
    assert session.due(0.0) == [pending]
    session.not_sent(pending, 0.0)
    assert session.wait_s(0.0) == pytest.approx(sessions.FULL_S)
    assert session.due(sessions.FULL_S) == [pending]
    session.not_sent(pending, sessions.FULL_S)
    session.require_hello()
    (hello,) = session.due(0.1)
    session.on_message(second.answer(hello), 0.1)
    assert not pending.done
    assert session.counters.get("again") == 0


def test_who_is_to_be_told_is_told_by_the_owner() -> None:
    told: list[Any] = []
    server = Server(1)
    session = greeted(server)
    pending = session.start_call("m", None, 0.0, 10.0, tell=told.append)
    session.due(0.0)
    session.on_message(server.answer(pending), 0.1)
    assert pending.done and not told
    assert list(session.over) == [pending]
