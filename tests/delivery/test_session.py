"""The actor's side, message by message, on a clock of its own."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import ActorSession, Joined, Redial, Rejected, Send, SessionState, StreamTable
from rl4sys_zmq.delivery.session import REFUSED_RETRY_S
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import pack_segment
from rl4sys_zmq.wire.messages import Ack, Bye, Heartbeat, Hello, Refused, Submit, Verdict, Welcome

HELLO = Hello("c", "a", 1, 0, 0, 0)


def packed(steps=2):
    rows = np.zeros(steps, np.float32)
    columns = np.zeros((steps, 1), np.float32), np.zeros(steps, np.int64), rows, rows, np.zeros(steps, np.uint64)
    return pack_segment(Segment(*columns, None, 1, 7, 0, True, False, False, 0.0, steps))


def welcome(received=0, durable=None, accepted_steps=0, generation=1, heartbeat_s=1.0):
    marks = received, received if durable is None else durable, accepted_steps
    return Welcome(b"12345678", generation, 0, 0, {}, "", *marks, "PPO", "onpolicy", 0, -1, "drop", 1 << 20, 100, heartbeat_s)


def ack(received=0, durable=0, credit_steps=100, credit_items=100, accepted_steps=0, generation=1, **verdicts):
    return Ack(generation, received, durable, durable, 0, accepted_steps, credit_steps, credit_items, 0, verdicts)


def refused(code, expected_seq=0):
    return Refused(code, "", "", expected_seq)


def sent(actions):
    return [a.message for a in actions if isinstance(a, Send)]


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def session(counters):
    """One that has joined, with credit for a hundred steps."""
    session = ActorSession(HELLO, counters, random.Random(1))
    session.open(0.0, (0, 0))
    session.on_message(0.0, welcome())
    session.want(0.0, 100)
    session.on_message(0.0, ack())
    return session


def test_it_says_hello_until_it_is_answered(counters):
    session = ActorSession(HELLO, counters, random.Random(1))
    assert sent(session.open(0.0, (4, 2))) == [Hello("c", "a", 1, 0, 4, 2)]
    assert session.tick(0.1, (4, 2)) == []
    assert isinstance(sent(session.tick(session.next_deadline(), (4, 2)))[0], Hello)
    assert not session.can_take()
    (joined,) = session.on_message(1.0, welcome())
    assert (type(joined), joined.gap, session.state) == (Joined, 0, SessionState.JOINED)


def test_no_credit_no_segment(session):
    assert session.can_take()
    session.on_message(0.0, ack(credit_steps=0))
    assert not session.can_take()
    session.on_message(0.0, ack(credit_items=0))
    assert not session.can_take()
    session.on_message(0.0, ack(credit_steps=3, credit_items=2))
    session.take(0.0, [packed(2)])
    assert session.can_take()
    session.take(0.0, [packed(2)])
    assert not session.can_take()
    assert not session.has_room(0)


def test_the_window_is_kept_until_it_is_durable(session):
    (submit,) = sent(session.take(0.0, [packed(), packed(3)]))
    assert isinstance(submit, Submit)
    assert (submit.first_seq, submit.count, session.sent_steps) == (0, 2, 5)
    session.on_message(0.1, ack(2, 0, accepted_steps=5))
    assert (session.in_flight, session.received) == (2, 2)
    session.on_message(0.1, ack(2, 1, accepted_steps=5))
    assert session.in_flight == 1
    session.on_message(0.1, ack(2, 2, accepted_steps=5))
    assert (session.in_flight, session.submitted) == (0, 2)


def test_what_was_not_received_is_sent_again_ever_more_slowly(session):
    session.take(0.0, [packed(), packed()])
    session.on_message(0.1, ack(1, 0, accepted_steps=2))
    times, now = [], 0.1
    while now < 20.0 and len(times) < 4:
        now += 0.1
        session.on_message(now, ack(1, 0, accepted_steps=2))
        for message in sent(session.tick(now, (0, 0))):
            if isinstance(message, Submit):
                assert (message.first_seq, message.count) == (1, 1)
                times.append(now)
    gaps = np.diff(times)
    assert all(later > earlier for earlier, later in itertools.pairwise(gaps))


def test_a_gap_is_filled_once_and_a_hopeless_one_by_a_hello(session):
    session.take(0.0, [packed(), packed(), packed()])
    session.on_message(0.0, ack(3, 1, accepted_steps=6))
    first = sent(session.on_message(0.1, refused("gap", 1)))
    assert [(m.first_seq, m.count) for m in first] == [(1, 2)]
    assert session.on_message(0.1, refused("gap", 1)) == []
    assert session.on_message(0.1, refused("gap", 99)) == []
    assert session.state is SessionState.JOINED
    session.on_message(0.1, refused("gap", 0))
    assert session.state is SessionState.JOINING
    assert sent(session.tick(1.0, (0, 0)))[0].first_seq == 1


def test_a_stream_behind_the_window_is_not_a_wedge(session, counters):
    """A HELLO from before the last acks reached a new learner, which then waits for what nobody holds any more."""
    session.take(0.0, [packed() for _ in range(4)])
    session.on_message(0.0, ack(4, 3, accepted_steps=8))
    session.on_message(0.0, refused("no_session"))
    table = StreamTable("c", silence_s=3, lease_s=30, max_actors=1)
    stream, _ = table.open(Hello("c", "a", 1, 1, 0, 0), b"p", 0.0)
    assert stream.received == 1
    (hello,) = sent(session.tick(0.0, (0, 0)))
    assert hello.first_seq == 3
    table.open(hello, b"p", 0.0)
    assert stream.received == 3
    actions = session.on_message(0.0, welcome(stream.received, stream.durable, 0, generation=2))
    assert [m.first_seq for m in sent(actions)] == [3]
    assert stream.admit(3, 1) == 0


def test_silence_ends_a_session(session, counters):
    (redial,) = session.tick(3.5, (0, 0))
    assert isinstance(redial, Redial)
    assert session.state is SessionState.JOINING
    assert counters.get("sessions_lost.silence") == 1
    assert isinstance(sent(session.open(3.5, (0, 0)))[0], Hello)
    assert isinstance(session.tick(7.0, (0, 0))[0], Redial)


def test_a_refusal_for_good_is_told_and_tried_again_slowly(session, counters):
    session.on_message(0.0, refused("no_session"))
    (rejected,) = session.on_message(0.0, refused("mismatch"))
    assert isinstance(rejected, Rejected)
    assert session.state is SessionState.REFUSED
    assert session.tick(REFUSED_RETRY_S / 2, (0, 0)) == []
    assert isinstance(sent(session.tick(REFUSED_RETRY_S, (0, 0)))[0], Hello)
    assert isinstance(session.tick(REFUSED_RETRY_S * 4, (0, 0))[0], Redial)
    session.on_message(20.0, welcome())
    assert session.state is SessionState.JOINED


@pytest.mark.parametrize("code", ["no_session", "closing", "conflict", "gap", "checksum"])
def test_a_refusal_that_passes_is_no_rejection(counters, code):
    session = ActorSession(HELLO, counters, random.Random(1))
    session.open(0.0, (0, 0))
    assert not any(isinstance(action, Rejected) for action in session.on_message(0.0, refused(code)))
    assert session.state is SessionState.JOINING


def test_a_failed_client_is_told_even_in_a_session(session):
    assert isinstance(session.on_message(0.0, refused("failed"))[0], Rejected)


def test_nonsense_from_a_learner_is_ignored_and_counted(session, counters):
    session.take(0.0, [packed(), packed()])
    for bad in (ack(9, 9), ack(1, 2), ack(1 << 62, 1 << 62)):
        assert session.on_message(0.0, bad) == []
    assert (session.in_flight, counters.get("ignored.ack")) == (2, 3)
    for n in range(3):
        session.on_message(0.0, Refused(f"word-{n}", "", ""))
    assert counters.get("refused_by_learner.malformed") == 3
    session.on_message(0.0, Heartbeat(3))
    session.on_message(0.0, refused("no_session"))
    session.on_message(0.0, welcome(99))
    assert counters.get("ignored.welcome") == 1
    assert session.state is SessionState.JOINING


def test_wishes_are_told_once_and_may_shrink(session):
    assert session.want(0.0, 50) == []
    assert session.credit_steps == 50
    assert session.want(0.0, 50) == []
    assert sent(session.want(0.0, 60)) == [Heartbeat(60)]
    session.on_message(0.0, ack(credit_steps=100))
    assert session.credit_steps == 60
    assert sent(session.tick(1.5, (0, 0))) == [Heartbeat(60)]


def test_steps_are_counted_from_what_the_learner_says(session):
    session.take(0.0, [packed(2), packed(3), packed(4)])
    session.on_message(0.0, ack(2, 1, accepted_steps=2))  # the second was refused as an item, its steps not counted
    assert session.sent_steps == 2 + 4
    session.on_message(0.0, ack(1, 1, accepted_steps=2))  # late: says nothing new
    assert session.sent_steps == 6
    session.on_message(0.0, ack(3, 3, accepted_steps=6))
    assert session.sent_steps == 6


def test_verdicts_are_not_counted_twice(session):
    session.take(0.0, [packed() for _ in range(9)])
    session.on_message(0.0, ack(9, 9, accepted_steps=18, trained=4))
    session.on_message(0.0, ack(9, 9, accepted_steps=18, trained=3))
    session.on_message(0.0, ack(9, 9, accepted_steps=18, trained=5))
    assert session.verdicts[Verdict.TRAINED] == 5
    session.on_message(0.0, refused("no_session"))
    session.on_message(0.0, welcome(9, 9, 18))
    session.on_message(0.0, ack(9, 9, accepted_steps=18, trained=6))
    assert session.verdicts[Verdict.TRAINED] == 6
    session.on_message(0.0, refused("no_session"))
    session.on_message(0.0, welcome(9, 9, 0, generation=2))
    session.on_message(0.0, ack(9, 9, trained=2, generation=2))
    assert session.verdicts[Verdict.TRAINED] == 8


def test_a_rejoin_sends_the_window_again_and_counts_the_gap(session, counters):
    session.take(0.0, [packed(), packed(3), packed()])
    session.on_message(0.0, ack(3, 1, accepted_steps=7))
    session.on_message(0.0, refused("no_session"))
    joined, *again = session.on_message(0.0, welcome(0, 0, 0, generation=2))
    assert (joined.gap, counters.get("gap_segments")) == (1, 1)
    assert [(m.first_seq, m.count) for m in sent(again)] == [(1, 2)]
    assert session.sent_steps == 5
    assert not session.can_take()


def test_a_new_life_that_found_an_old_hello_is_joined(session):
    """The learner died, and its successor answers a HELLO that was still in a queue: nobody says NO_SESSION."""
    session.take(0.0, [packed(), packed()])
    session.on_message(0.0, ack(2, 1, accepted_steps=4))
    assert session.on_message(0.0, welcome(1, 1, 0, generation=1)) == []
    joined, submit = session.on_message(0.0, welcome(1, 1, 0, generation=2))
    assert isinstance(joined, Joined)
    assert submit.message.first_seq == 1
    assert session.sent_steps == 2
    assert session.on_message(0.0, welcome(0, 0, 0, generation=1)) == []


def test_heartbeats_of_a_learner_are_kept_within_reason(counters):
    session = ActorSession(HELLO, counters, random.Random(1))
    session.open(0.0, (0, 0))
    session.on_message(0.0, welcome(heartbeat_s=0.0))
    assert session.heartbeat_s == 0.05


def test_goodbye_is_the_last_word(session):
    assert sent(session.close(0.0)) == [Bye()]
    assert session.on_message(0.0, welcome()) == []
    assert session.tick(99.0, (0, 0)) == []
    assert session.close(1.0) == []
    assert session.state is SessionState.CLOSED


def test_big_windows_are_sent_in_several_messages(session):
    session.on_message(0.0, ack(credit_steps=10_000, credit_items=1000))
    session.want(0.0, 10_000)
    session.on_message(0.0, ack(credit_steps=10_000, credit_items=1000))
    session.take(0.0, [packed() for _ in range(150)])
    session.on_message(0.0, refused("no_session"))
    again = sent(session.on_message(0.0, welcome(0, generation=2)))
    assert [(m.first_seq, m.count) for m in again] == [(0, 64), (64, 64), (128, 22)]
