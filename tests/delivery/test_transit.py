"""Tests of the counts of data on the way to a learner thread, and of the detection of stalled clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.delivery.credit import STALL_S, CreditAllocator, DataAmount, LearnerThreadBacklog, StallTimer, stall_reason
from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.errors import ProtocolError

ONE = DataAmount(10, 1, 500)


def test_data_wait_then_travel_then_are_taken() -> None:
    transit = LearnerThreadBacklog()
    transit.accept(ONE)
    assert (transit.waiting, transit.steps, transit.items, transit.nbytes) == (ONE, 10, 1, 500)
    transit.send(DataAmount(10, 1, 500), waited=True)
    transit.send(DataAmount(4, 2, 300), waited=False)  # replayed by the journal; a part was trained before
    assert (transit.waiting, transit.in_transit, transit.messages_on_way) == (DataAmount(), DataAmount(14, 3, 800), 2)
    transit.take(1)
    transit.take(1)
    assert (transit.in_transit, transit.taken) == (DataAmount(4, 2, 300), ONE)
    transit.take(2)
    assert not transit.in_transit
    assert transit.correct_waiting() is None


@pytest.mark.parametrize("messages", [-1, 2, 1 << 62])
def test_more_than_was_sent_can_not_be_taken(messages: int) -> None:
    transit = LearnerThreadBacklog()
    transit.send(DataAmount(1, 1, 1), waited=False)
    with pytest.raises(ProtocolError, match="1 are on the way"):
        transit.take(messages)


def test_a_wrong_count_is_corrected_and_said() -> None:
    transit = LearnerThreadBacklog()
    transit.accept(ONE)
    wrong = transit.correct_waiting()
    assert str(wrong) == "10 steps in 1 segments of 500 bytes"
    assert (transit.steps, transit.correct_waiting()) == (0, None)


loads = st.builds(DataAmount, st.integers(0, 50), st.integers(0, 9), st.integers(1, 999))


@given(st.lists(st.tuples(st.sampled_from(["accept", "send", "again", "take"]), loads), max_size=60))
def test_nothing_is_lost_between_the_ends(moves: list[tuple[str, DataAmount]]) -> None:
    transit, waiting, in_transit, taken = LearnerThreadBacklog(), [], [], []
    for move, load in moves:
        if move == "accept":
            transit.accept(load)
            waiting.append(load)
        elif move == "send" and waiting:
            in_transit.append(waiting.pop(0))
            transit.send(in_transit[-1], waited=True)
        elif move == "again":
            in_transit.append(load)
            transit.send(load, waited=False)
        elif move == "take" and in_transit:
            taken.append(in_transit.pop(0))
            transit.take(len(taken))
        for count, real in (transit.waiting, waiting), (transit.in_transit, in_transit), (transit.taken, taken):
            assert count == DataAmount(sum(x.steps for x in real), sum(x.items for x in real), sum(x.nbytes for x in real))


def actor(want: int = 100, accepted: int = 0, credit: int = 0) -> SegmentStream:
    stream = SegmentStream("c", "a", 1, 0, 0.0)
    stream.want_steps, stream.accepted_steps, stream.credit_steps = want, accepted, credit
    return stream


def test_a_client_stands_still_only_if_nobody_can_do_anything() -> None:
    pool = CreditAllocator()
    assert stall_reason(pool, [actor()]) == ""  # the learner thread wants nothing
    pool.demand(50, 0, 0)
    assert stall_reason(pool, []) == ""
    assert stall_reason(pool, [actor(want=0)]) == ""
    assert stall_reason(pool, [actor(credit=8)]) == ""
    assert "can use 50 more steps; 1 of 2 actors" in stall_reason(pool, [actor(), actor(want=0)])
    pool.transit.send(ONE, waited=False)
    assert stall_reason(pool, [actor()]) == ""  # the learner thread has work


def test_the_watch_starts_anew_whenever_something_moves() -> None:
    watch = StallTimer()
    looks = [(0.0, 1, "why"), (0.9, 1, "why"), (1.5, 1, "why"), (2.0, 2, "why"), (2.5, 2, ""), (9.0, 2, "why"), (9.5, 2, "why")]
    assert [watch.look(*look) for look in looks] == [0.0, 0.9, 1.5, 0.0, 0.0, 0.0, 0.5]
    assert STALL_S == 1.0
