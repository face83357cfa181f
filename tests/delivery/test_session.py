"""Tests of `ActorSession`, the actor's side of the protocol, message by message on a virtual clock.

If the compiled form is here, each test runs with the session in Python, and with both sessions in lock-step.
"""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from kit import segment_with
from simulation.native_session import PairedSession

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import (
    FIELD_RATE,
    ActorSession,
    Reconnect,
    ReplaceSockets,
    SendMessage,
    SessionJoined,
    SessionRefused,
    SessionState,
    SessionTemporarilyRefused,
)
from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.images import ImageFormat
from rl4sys_zmq.liveness import REFUSED_RETRY_S
from rl4sys_zmq.wire import PackedSegment, pack_segment
from rl4sys_zmq.wire.messages import Ack, Bye, Heartbeat, Hello, Refused, Verdict, Welcome

PurePython = ActorSession
HELLO = Hello("c", "a", 1, 0, 0, 0)
LEDGER, OTHER = 77, 78


def packed(steps: int = 2) -> PackedSegment:
    return pack_segment(segment_with(steps, episode_return=0.0, episode_length=steps))


def welcome(
    received: int = 0,
    durable: int | None = None,
    accepted_steps: int = 0,
    generation: int = 1,
    heartbeat_s: float = 1.0,
    journal_id: int = LEDGER,
    gap: int = 0,
) -> Welcome:
    return Welcome(
        policy_id=b"12345678",
        topic=b"87654321",
        journal_id=journal_id,
        gap=gap,
        generation=generation,
        version=0,
        digest=0,
        spec={},
        pub="",
        received=received,
        durable=received if durable is None else durable,
        accepted_steps=accepted_steps,
        algorithm_name="PPO",
        algorithm_type="onpolicy",
        rollout_length=0,
        max_policy_lag=-1,
        on_lag="drop",
        max_message_bytes=1 << 20,
        max_segment_steps=100,
        heartbeat_s=heartbeat_s,
    )


def ack(
    received: int = 0,
    durable: int = 0,
    credit_steps: int = 100,
    credit_items: int = 100,
    accepted_steps: int = 0,
    generation: int = 1,
    credit_bytes: int = 1 << 20,
    trained_mark: int | None = None,
    **verdicts: Any,
) -> Ack:
    trained = durable if trained_mark is None else trained_mark
    return Ack(generation, received, durable, trained, 0, accepted_steps, credit_steps, credit_items, credit_bytes, 0, verdicts)


def refused(code: str, expected_seq: int = 0) -> Refused:
    return Refused(code, "", "", expected_seq)


def sent(actions: Iterable[object]) -> list[Any]:
    return [a.message for a in actions if isinstance(a, SendMessage)]


def spooled(first_seq: int, counters: Counters, incarnation: int = 4, journal_id: int = LEDGER) -> ActorSession:
    """Return a session of an actor that has a spool. It has sent its HELLO."""
    hello = Hello("c", "a", incarnation, first_seq, 0, 0, origin=2, journal_id=journal_id, spooled=True)
    session = ActorSession(hello, counters, random.Random(1))
    assert sent(session.open(0.0, (0, 0))) == [hello]
    return session


def law(session: ActorSession) -> int:
    """Return the number of segments that are accepted, refused, unreceived or in doubt. Together these are all segments."""
    return session.accepted + session.verdicts[Verdict.REFUSED] + session.unreceived + session.in_doubt


def joined(counters: Counters, **options: Any) -> ActorSession:
    """Return a session that has joined, with credit for a hundred steps."""
    session = ActorSession(HELLO, counters, random.Random(1), **options)
    session.open(0.0, (0, 0))
    session.on_message(0.0, welcome())
    session.want(0.0, 100)
    session.on_message(0.0, ack())
    return session


@pytest.fixture(autouse=True)
def sessions(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests use both sessions. A spool and images stay with the session in Python."""

    def session_of(hello: Hello, counters: Counters, rng: random.Random, **options: Any) -> Any:
        pure = hello.spooled or options.get("images") is not None
        return (PurePython if pure else PairedSession)(hello, counters, rng, **options)

    if form == "compiled":
        monkeypatch.setitem(globals(), "ActorSession", session_of)


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def joining(counters: Counters) -> ActorSession:
    """A session that has sent its HELLO."""
    session = ActorSession(HELLO, counters, random.Random(1))
    session.open(0.0, (0, 0))
    return session


@pytest.fixture
def session(counters: Counters) -> ActorSession:
    """A session that has joined, with credit for a hundred steps."""
    return joined(counters)


def test_a_client_that_starts_is_asked_for_again_on_the_same_sockets(joining: ActorSession) -> None:
    now = 0.0
    while now < 10.0:
        now = joining.next_deadline()
        assert isinstance(sent(joining.tick(now, (0, 0)))[0], Hello)
        starting = Refused(RefusalReason.STARTING.value, "", "it starts", 0, 0)
        assert joining.on_message(now, starting) == [SessionTemporarilyRefused(starting)]
        assert joining.state is SessionState.JOINING
    joining.on_message(now, welcome())
    assert joining.on_message(now, Refused(RefusalReason.STARTING.value, "", "it was late", 0, 0)) == []
    assert joining.state is SessionState.JOINED


def test_no_credit_no_segment(session: ActorSession) -> None:
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
    assert not session.has_room(0, 0)


def test_a_session_that_is_left_sends_beyond_its_credit_what_the_learner_can_store(session: ActorSession) -> None:
    session.on_message(0.0, ack(credit_steps=0, credit_items=2))
    assert not session.can_take()
    session.leaving = True
    assert session.has_room(1, 2) and not session.has_room(2, 4)
    session.take(0.0, [packed(2), packed(2)])
    assert not session.can_take()
    session.on_message(0.0, ack(2, 2, credit_steps=0, credit_items=9, credit_bytes=0, accepted_steps=4))
    assert not session.can_take()


def test_a_message_asks_for_the_credit_of_the_next(session: ActorSession) -> None:
    session.on_message(0.0, ack(credit_steps=2))
    (submit,) = sent(session.take(0.0, [packed(2)], ahead_steps=2))
    assert (submit.want_steps, session.can_take()) == (100, False)  # a SUBMIT never lowers the requested credit
    session.want(0.0, 2)
    session.on_message(0.0, ack(1, 1, accepted_steps=2, credit_steps=4))
    assert not session.can_take()
    (heartbeat,) = sent(session.want(0.0, 4))
    assert heartbeat.want_steps == 4
    session.on_message(0.0, ack(1, 1, accepted_steps=2, credit_steps=4))
    (submit,) = sent(session.take(0.0, [packed(2)], ahead_steps=2))
    assert submit.want_steps == 6
    assert session.want(0.0, 6) == []
    session.on_message(0.0, ack(2, 2, accepted_steps=4, credit_steps=6))
    assert session.can_take()


def test_a_gap_is_filled_once_and_a_hopeless_one_by_a_hello(session: ActorSession) -> None:
    session.take(0.0, [packed(), packed(), packed()])
    session.on_message(0.0, ack(3, 1, accepted_steps=6))
    first = sent(session.on_message(0.1, refused("gap", 1)))
    assert [(m.first_seq, m.count) for m in first] == [(1, 2)]
    assert session.on_message(0.1, refused("gap", 1)) == []
    assert session.on_message(0.1, refused("gap", 99)) == []
    assert (session.state, session.on_message(0.1, refused("gap", 0))) == (SessionState.JOINED, [])
    assert session.state is SessionState.JOINING
    assert sent(session.tick(1.0, (0, 0)))[0].first_seq == 1


def test_silence_ends_a_session(session: ActorSession, counters: Counters) -> None:
    (redial,) = session.tick(3.5, (0, 0))
    assert isinstance(redial, Reconnect)
    assert session.state is SessionState.JOINING
    assert counters.get("sessions_lost.silence") == 1
    assert isinstance(sent(session.open(3.5, (0, 0)))[0], Hello)
    assert isinstance(session.tick(7.0, (0, 0))[0], Reconnect)


def test_a_refusal_for_good_is_told_and_tried_again_slowly(session: ActorSession, counters: Counters) -> None:
    session.on_message(0.0, refused("no_session"))
    (rejected,) = session.on_message(0.0, refused("mismatch"))
    assert (type(rejected), session.state) == (SessionRefused, SessionState.REFUSED)
    assert session.tick(REFUSED_RETRY_S / 2, (0, 0)) == []
    assert isinstance(sent(session.tick(REFUSED_RETRY_S, (0, 0)))[0], Hello)
    assert isinstance(session.tick(REFUSED_RETRY_S * 4, (0, 0))[0], Reconnect)
    session.on_message(20.0, welcome())
    assert session.state is SessionState.JOINED


@pytest.mark.parametrize("code", ["no_session", "closing", "conflict", "gap", "checksum"])
def test_a_refusal_that_passes_is_no_rejection(joining: ActorSession, code: str) -> None:
    assert not any(isinstance(action, SessionRefused) for action in joining.on_message(0.0, refused(code)))
    assert joining.state is SessionState.JOINING


def test_a_failed_client_is_told_even_in_a_session(session: ActorSession) -> None:
    assert isinstance(session.on_message(0.0, refused("failed"))[0], SessionRefused)


def test_nonsense_from_a_learner_is_ignored_and_counted(session: ActorSession, counters: Counters) -> None:
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


def test_wishes_are_told_once_and_may_shrink(session: ActorSession) -> None:
    assert session.want(0.0, 50) == []
    assert session.credit_steps == 50
    assert session.want(0.0, 50) == []
    assert sent(session.want(0.0, 60)) == [Heartbeat(60)]
    session.on_message(0.0, ack(credit_steps=100))
    assert session.credit_steps == 60
    assert sent(session.tick(1.5, (0, 0))) == [Heartbeat(60)]


def test_steps_are_counted_from_what_the_learner_says(session: ActorSession) -> None:
    session.take(0.0, [packed(2), packed(3), packed(4)])
    session.on_message(0.0, ack(2, 1, accepted_steps=2))  # the second was refused, and its steps do not count
    assert session.sent_steps == 2 + 4
    session.on_message(0.0, ack(1, 1, accepted_steps=2))  # a late ack changes nothing
    assert session.sent_steps == 6
    session.on_message(0.0, ack(3, 3, accepted_steps=6))
    assert session.sent_steps == 6


def test_a_new_life_that_found_an_old_hello_is_joined(session: ActorSession) -> None:
    """The learner died, and its successor answers a HELLO that was still in a queue. The actor gets no NO_SESSION."""
    session.take(0.0, [packed(), packed()])
    session.on_message(0.0, ack(2, 1, accepted_steps=4))
    assert session.on_message(0.0, welcome(1, 1, 0, generation=1)) == []
    joined, submit = session.on_message(0.0, welcome(1, 1, 0, generation=2))
    assert isinstance(joined, SessionJoined)
    assert [m.first_seq for m in sent([submit])] == [1]
    assert session.sent_steps == 2
    assert session.on_message(0.0, welcome(0, 0, 0, generation=1)) == []


def test_heartbeats_of_a_learner_are_kept_within_reason(joining: ActorSession) -> None:
    joining.on_message(0.0, welcome(heartbeat_s=0.0))
    assert joining.next_deadline() == 0.05


def test_goodbye_is_the_last_word(session: ActorSession) -> None:
    assert sent(session.close(0.0)) == [Bye()]
    assert session.on_message(0.0, welcome()) == []
    assert session.tick(99.0, (0, 0)) == []
    assert session.close(1.0) == []
    assert session.state is SessionState.CLOSED


def test_big_windows_are_sent_in_several_messages(session: ActorSession) -> None:
    session.on_message(0.0, ack(credit_steps=10_000, credit_items=1000))
    session.want(0.0, 10_000)
    session.on_message(0.0, ack(credit_steps=10_000, credit_items=1000))
    session.take(0.0, [packed() for _ in range(150)])
    session.on_message(0.0, refused("no_session"))
    again = sent(session.on_message(0.0, welcome(0, generation=2)))
    assert [(m.first_seq, m.count) for m in again] == [(0, 64), (64, 64), (128, 22)]


def test_credit_in_bytes_counts_what_is_in_flight(session: ActorSession) -> None:
    one = packed().nbytes
    session.on_message(0.0, ack(credit_bytes=0))
    assert not session.can_take()
    session.on_message(0.0, ack(credit_bytes=one + 1))
    session.take(0.0, [packed()])
    assert session.can_take()  # one segment may exceed the credit
    session.take(0.0, [packed()])
    assert not session.can_take()
    session.on_message(0.0, ack(1, 0, credit_bytes=one, accepted_steps=2))  # one segment is in flight
    assert not session.can_take()
    session.on_message(0.0, ack(1, 0, credit_bytes=one + 1, accepted_steps=2))
    assert session.can_take()
    session.on_message(0.0, ack(2, 0, credit_bytes=1, accepted_steps=4))
    assert session.can_take()  # a received segment is not in flight, even before it is durable
    session.take(0.0, [packed()])
    assert not session.can_take()
    session.on_message(0.0, ack(3, 3, credit_bytes=1, accepted_steps=6))
    assert session.can_take()


def test_a_welcome_alone_gives_no_credit(session: ActorSession) -> None:
    session.take(0.0, [packed()])
    session.on_message(0.0, refused("no_session"))
    session.on_message(0.0, welcome(0, generation=2))
    session.want(0.0, 100)
    assert not session.can_take()
    session.on_message(0.0, ack(generation=2))
    assert session.can_take()


def test_the_late_ack_of_an_earlier_life_changes_no_count(session: ActorSession, counters: Counters) -> None:
    session.take(0.0, [packed() for _ in range(9)])
    session.on_message(0.0, ack(9, 9, accepted_steps=18, trained=6))
    session.on_message(0.0, welcome(9, 9, 18, generation=2))
    session.on_message(0.0, ack(9, 9, accepted_steps=18, generation=2, trained=3))
    session.on_message(0.0, ack(9, 9, accepted_steps=18, generation=1, trained=8))
    assert (session.verdicts[Verdict.TRAINED], counters.get("ignored.ack")) == (3, 1)


def test_another_journal_counts_from_zero_and_what_was_before_stays(session: ActorSession) -> None:
    session.take(0.0, [packed() for _ in range(9)])
    session.on_message(0.0, ack(9, 7, accepted_steps=18, trained=4, refused=1))
    session.on_message(0.0, refused("no_session"))
    session.on_message(0.0, welcome(7, 7, 0, generation=2, journal_id=OTHER, gap=7))
    assert (session.journal_id, session.verdicts[Verdict.TRAINED]) == (OTHER, 4)
    session.on_message(0.0, ack(9, 9, accepted_steps=4, generation=2, trained=2))
    assert (session.verdicts[Verdict.TRAINED], session.verdicts[Verdict.REFUSED], session.accepted) == (6, 1, 8)
    session.on_message(0.0, refused("no_session"))
    session.on_message(0.0, welcome(9, 9, 4, generation=3, journal_id=OTHER))
    session.on_message(0.0, ack(9, 9, accepted_steps=4, generation=3, trained=1))  # back to a checkpoint
    assert (session.verdicts[Verdict.TRAINED], law(session)) == (5, 9)


def test_verdicts_that_are_no_numbers_are_left_out(session: ActorSession) -> None:
    session.take(0.0, [packed()])
    session.on_message(0.0, ack(1, 1, trained="many", stale=-3, quarantined=True, refused=None))
    assert set(session.verdicts.values()) == {0}


def fenced(known: int) -> Refused:
    return Refused("fenced", "", "", 0, known)


def test_a_new_start_takes_a_number_above_the_one_on_record(joining: ActorSession, counters: Counters) -> None:
    (raised,) = joining.on_message(0.1, fenced(50))
    assert type(raised) is ReplaceSockets
    assert 50 < raised.incarnation <= 50 + (1 << 24)
    (hello,) = sent(joining.open(0.1, (0, 0)))
    assert (hello.incarnation, hello.origin, hello.previously_welcomed) == (raised.incarnation, 0, False)
    assert joining.origin == raised.incarnation
    assert joining.on_message(0.2, fenced(50)) == []  # the reply to a HELLO that was sent twice
    joining.on_message(0.3, welcome())
    joining.on_message(0.4, refused("no_session"))
    (hello,) = sent(joining.tick(0.4, (0, 0)))
    assert (hello.incarnation, hello.previously_welcomed) == (raised.incarnation, True)
    assert counters.get("raised") == 1


def test_two_new_starts_that_are_told_the_same_do_not_take_the_same() -> None:
    taken = set()
    for seed in range(20):
        session = ActorSession(HELLO, Counters(), random.Random(seed))
        (raised,) = session.on_message(0.0, fenced(50))
        assert isinstance(raised, ReplaceSockets)
        taken.add(raised.incarnation)
    assert len(taken) == 20


def test_one_that_was_overtaken_waits_and_keeps_its_numbers(session: ActorSession) -> None:
    session.take(0.0, [packed(), packed()])
    session.on_message(0.0, refused("no_session"))
    session.tick(0.0, (0, 0))
    (rejected,) = session.on_message(0.1, fenced(0))
    assert (type(rejected), session.state) == (SessionRefused, SessionState.REFUSED)
    (raised,) = session.on_message(2.1, fenced(50))
    assert isinstance(raised, ReplaceSockets)
    assert session.state is SessionState.JOINING
    (hello,) = sent(session.open(2.1, (0, 0)))
    assert (hello.incarnation, hello.origin, hello.first_seq) == (raised.incarnation, 1, 0)
    assert (hello.journal_id, hello.previously_welcomed, session.in_flight) == (LEDGER, True, 2)


def test_in_a_session_nobody_is_fenced(session: ActorSession) -> None:
    assert session.on_message(0.0, fenced(99)) == []
    assert session.state is SessionState.JOINED


def test_a_welcome_of_another_journal_is_news_though_its_clock_went_back(session: ActorSession) -> None:
    """Another learner replies to a queued HELLO. Generations are times, which are in order only within one journal."""
    session.on_message(0.0, welcome(0, 0, 0, generation=0, journal_id=OTHER))
    assert (session.generation, session.journal_id) == (0, OTHER)
    session.want(0.0, 9)
    session.on_message(0.0, ack(0, 0, generation=0))
    assert session.can_take()


@pytest.fixture
def forgotten(session: ActorSession) -> ActorSession:
    """A session that the learner has lost, with nine segments: eight received, two of them refused, and seven durable."""
    session.take(0.0, [packed() for _ in range(9)])
    session.on_message(0.0, ack(8, 7, accepted_steps=18, trained=4, refused=2))
    session.on_message(0.0, refused("no_session"))
    (hello,) = sent(session.tick(0.0, (0, 0)))
    assert (hello.first_seq, hello.journal_id) == (7, LEDGER)
    return session


def test_what_was_accepted_before_stays_so(forgotten: ActorSession) -> None:
    forgotten.on_message(1.0, refused("expired"))
    assert (forgotten.accepted, forgotten.verdicts[Verdict.TRAINED], forgotten.verdicts[Verdict.REFUSED]) == (5, 4, 2)
    assert law(forgotten) == 9
    forgotten.tick(1.0, (0, 0))
    forgotten.on_message(1.0, welcome(0, 0, 0))
    assert law(forgotten) == 9
    forgotten.want(1.0, 50)
    forgotten.on_message(1.0, ack(0, 0))
    assert forgotten.can_take()
    (submit,) = sent(forgotten.take(1.0, [packed(), packed(), packed()]))
    assert (submit.first_seq, submit.count, forgotten.sent_steps, law(forgotten)) == (0, 3, 6, 12)
    forgotten.on_message(1.0, ack(3, 2, accepted_steps=6, trained=1, refused=1))
    assert (forgotten.accepted, forgotten.verdicts[Verdict.TRAINED], forgotten.verdicts[Verdict.REFUSED]) == (7, 5, 3)
    assert (forgotten.in_flight, law(forgotten)) == (1, 12)


def test_in_a_session_nobody_is_forgotten(session: ActorSession) -> None:
    session.take(0.0, [packed()])
    assert session.on_message(0.0, refused("expired")) == []
    assert (session.state, session.in_flight, session.in_doubt) == (SessionState.JOINED, 1, 0)


def test_a_second_answer_does_not_make_it_begin_anew_once_more(forgotten: ActorSession) -> None:
    """The actor had sent two HELLOs, or one reply arrived twice."""
    forgotten.on_message(1.0, refused("expired"))
    (hello,) = sent(forgotten.tick(1.0, (0, 0)))
    assert forgotten.on_message(1.1, refused("expired")) == []
    (again,) = sent(forgotten.tick(2.0, (0, 0)))
    assert again.incarnation == hello.incarnation == 2


@pytest.mark.parametrize("journal_id", [0, LEDGER])
def test_what_is_in_a_spool_is_never_given_up(counters: Counters, journal_id: int) -> None:
    """The session ignores a learner that reports the stream of a spool as expired."""
    session = spooled(5, counters, journal_id=journal_id)
    assert session.on_message(0.0, refused("expired")) == []
    (hello,) = sent(session.tick(1.0, (0, 0)))
    assert (hello.incarnation, hello.origin, hello.first_seq, session.in_doubt) == (4, 2, 5, 0)


def test_bytes_of_what_was_recovered_are_not_in_flight(counters: Counters) -> None:
    session = spooled(5, counters)
    session.on_message(0.0, welcome(9, 7, 18))
    session.recover([packed(), packed()])
    session.want(0.0, 100)
    session.on_message(0.0, ack(9, 7, accepted_steps=18, credit_bytes=1))
    assert session.can_take()
    session.take(0.0, [packed()])
    assert not session.can_take()


def test_a_spool_at_a_journal_that_knows_nothing_of_it(counters: Counters) -> None:
    session = spooled(5, counters)
    session.on_message(0.0, welcome(5, 5, 0, journal_id=OTHER, gap=5))
    session.recover([])
    assert (session.journal_id, session.accepted, session.received, counters.get("gap_segments")) == (OTHER, 5, 5, 5)


@pytest.mark.parametrize("bad", [welcome(99), welcome(1 << 62, generation=9), welcome(3, 4)], ids=["99", "2^62", "durable"])
def test_a_welcome_beyond_what_was_ever_sent_is_ignored(session: ActorSession, counters: Counters, bad: Welcome) -> None:
    session.take(0.0, [packed(), packed(), packed(), packed()])
    session.on_message(0.0, refused("no_session"))
    assert session.on_message(0.0, bad) == []
    assert (session.state, session.in_flight, session.received) == (SessionState.JOINING, 4, 0)
    assert counters.get("ignored.welcome") == 1
    assert isinstance(session.on_message(0.0, welcome(4, 2))[0], SessionJoined)


def test_a_spool_believes_a_higher_number_once(counters: Counters) -> None:
    session = spooled(5, counters)
    assert session.on_message(0.0, welcome(3, 9)) == []  # contradictory: less received than durable
    session.on_message(0.0, welcome(9, 7, 18))
    session.recover([packed(), packed()])
    assert session.on_message(0.0, welcome(50, 50, generation=2)) == []
    assert (session.state, session.received, session.in_flight) == (SessionState.JOINED, 9, 2)
    session.on_message(0.0, refused("no_session"))
    assert session.on_message(0.0, welcome(50, 50, generation=3)) == []
    assert session.state is SessionState.JOINING
    assert counters.get("ignored.welcome") == 3
    assert isinstance(session.on_message(0.0, welcome(9, 9, 18, generation=3))[0], SessionJoined)
    assert session.in_flight == 0


@pytest.mark.parametrize("code", ["fenced", "equivocation", "forbidden", "identity"])
def test_refusals_that_do_not_mend_themselves(joining: ActorSession, code: str) -> None:
    assert joining.on_message(0.0, refused(code)) == [SessionRefused(refused(code))]
    assert joining.state is SessionState.REFUSED


def test_an_equivocation_does_not_end_a_session(session: ActorSession, counters: Counters) -> None:
    session.take(0.0, [packed()])
    assert session.on_message(0.0, refused("equivocation")) == []
    assert (session.state, session.in_flight) == (SessionState.JOINED, 1)
    assert counters.get("refused_by_learner.equivocation") == 1


def test_a_place_that_is_taken_is_waited_for(joining: ActorSession) -> None:
    assert joining.on_message(0.0, refused("conflict")) == [SessionTemporarilyRefused(refused("conflict"))]


def test_a_hello_that_came_too_fast_is_said_again(joining: ActorSession) -> None:
    """A refusal by the rate limit is temporary: many messages of an actor may reach a learner right after its start."""
    too_fast = Refused("quota", FIELD_RATE, "this connection exceeds its rate limit")
    assert joining.on_message(0.0, too_fast) == [SessionTemporarilyRefused(too_fast)]
    assert [type(message) for message in sent(joining.tick(1.0, (0, 0)))] == [Hello]
    assert isinstance(joining.on_message(1.0, refused("quota"))[0], SessionRefused)


def image_packed(steps: int = 8) -> PackedSegment:
    observations = np.linspace(0, 255, steps * 64 * 64 * 3).astype(np.uint8).reshape(steps, 64, 64, 3)
    return pack_segment(segment_with(steps, observations=observations, episode_return=0.0, episode_length=steps))


def test_images_are_coded_once_and_sent_again_as_they_were(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    session = joined(counters, images=ImageFormat("png"))
    plain = [image_packed(), packed(), image_packed()]
    (first,) = sent(session.take(0.0, plain))
    assert [numbers[2] for numbers in first.codings] == [0, 16, 16]
    monkeypatch.setattr("rl4sys_zmq.wire.segments.encode_images", None)
    (again,) = sent(session.on_message(0.1, refused("gap", expected_seq=0)))
    assert (again.heads, again.body, again.codings) == (first.heads, first.body, first.codings)


def test_images_leave_in_messages_that_a_learner_believes(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    plain = [image_packed() for _ in range(5)]
    monkeypatch.setattr("rl4sys_zmq.delivery.session.MAX_IMAGE_BYTES", 2 * plain[0].nbytes)
    messages = sent(joined(counters, images=ImageFormat("png")).take(0.0, plain))
    assert [(m.first_seq, m.count) for m in messages] == [(0, 2), (2, 2), (4, 1)]
    assert [(m.first_seq, m.count) for m in sent(joined(Counters()).take(0.0, plain))] == [(0, 5)]
