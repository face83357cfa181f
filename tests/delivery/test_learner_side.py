"""Streams, the table of a client's streams, credit and the ledger: one rule each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.delivery import CreditPool, Entry, MemoryLedger, Stream, StreamTable, take_submit
from rl4sys_zmq.delivery.credit import IDLE_S
from rl4sys_zmq.delivery.table import MAX_EXPIRED
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment
from rl4sys_zmq.wire import SegmentSchema, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Hello, Verdict

SCHEMA = SegmentSchema(BoxSpace((1,)), DiscreteSpace(2), 5)


def stream_of(first_seq=0, actor_id="a"):
    return Stream("c", actor_id, 1, first_seq, 0.0)


def hello(incarnation=1, first_seq=0, actor_id="a"):
    return Hello("c", actor_id, incarnation, first_seq, 0, 0)


def packed(steps=2, dtype=np.float32):
    rows = np.zeros(steps, np.float32)
    columns = np.zeros((steps, 1), dtype), np.zeros(steps, np.int64), rows, rows, np.zeros(steps, np.uint64)
    return pack_segment(Segment(*columns, None, 1, 7, 0, True, False, False, 0.0, steps))


def table(**kwargs):
    return StreamTable("c", **{"silence_s": 3.0, "lease_s": 30.0, "max_actors": 2, **kwargs})


# ---- Stream


def test_what_was_seen_is_skipped_and_counted():
    stream = stream_of()
    stream.accept(5, 10)
    assert stream.admit(3, 4) == 2
    assert stream.admit(0, 2) == 2
    assert stream.verdicts[Verdict.DUPLICATE] == 4
    assert stream.received == 5


def test_a_gap_is_refused_and_moves_nothing():
    stream = stream_of()
    with pytest.raises(ProtocolError) as caught:
        stream.admit(1, 1)
    assert caught.value.code is Refusal.GAP
    assert stream.received == 0


def test_marks_follow_the_ledger_and_the_verdicts():
    stream = stream_of(10)
    stream.accept(4, 8)
    assert (stream.received, stream.durable, stream.trained, stream.pending) == (14, 10, 10, 4)
    stream.commit(14)
    stream.commit(12)
    assert stream.durable == 14
    assert stream.dispose([[11, 13]], Verdict.TRAINED) == 2
    assert (stream.trained, stream.pending) == (10, 2)
    assert stream.dispose([[10, 12]], Verdict.STALE) == 1
    assert (stream.trained, stream.pending) == (13, 1)
    assert stream.dispose([[0, 99]], Verdict.TRAINED) == 1
    assert stream.dispose([[0, 99]], Verdict.TRAINED) == 0
    assert stream.verdicts[Verdict.TRAINED] == 3
    assert stream.verdicts[Verdict.STALE] == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=20), st.integers(0, 30))
def test_no_segment_is_disposed_of_twice(ranges, count):
    stream = stream_of()
    stream.accept(count, count)
    total = sum(stream.dispose([[first, first + length]], Verdict.TRAINED) for first, length in ranges)
    covered = {n for first, length in ranges for n in range(first, min(first + length, count))}
    assert total == len(covered) == stream.verdicts[Verdict.TRAINED]
    assert stream.pending == count - len(covered)
    assert stream.trained == next(n for n in range(count + 1) if n not in covered)


def test_what_the_actor_no_longer_holds_is_not_waited_for():
    stream = stream_of()
    stream.accept(2, 4)
    assert stream.resume(1) == 0
    assert stream.resume(1 << 60) == (1 << 60) - 2
    assert stream.received == stream.durable == 1 << 60
    assert (stream.pending, stream.trained) == (2, 0)
    stream.accept(1, 2)
    assert stream.pending == 3
    stream.dispose([[0, 2]], Verdict.TRAINED)
    assert (stream.pending, stream.trained) == (1, 1 << 60)
    assert stream.accepted == 3


def test_a_roll_back_gives_up_what_is_pending():
    stream = stream_of()
    stream.accept(5, 10)
    stream.dispose([[1, 2]], Verdict.TRAINED)
    stream.resume(9)
    assert stream.roll_back() == 4
    assert (stream.pending, stream.trained, stream.received) == (0, 9, 9)


def test_an_ack_says_all_of_it():
    stream = stream_of(3)
    stream.accept(2, 7)
    stream.credit_steps = 20
    ack = stream.ack(generation=9, free_items=4, min_version=6)
    assert ack.generation == 9
    assert (ack.received, ack.durable, ack.trained, ack.accepted_steps) == (5, 3, 3, 7)
    assert (ack.credit_steps, ack.credit_items, ack.min_version) == (20, 9, 6)
    stream.verdicts[Verdict.TRAINED] += 1
    assert ack.verdicts[Verdict.TRAINED] == 0


# ---- take_submit


def test_a_submit_is_taken_once():
    stream = stream_of()
    message = join_submit(0, 0, [packed(), packed(3)])
    frames = encode(message)
    intake = take_submit(stream, SCHEMA, message, frames)
    assert (intake.duplicates, intake.refused, intake.accepted) == (0, (), 2)
    assert intake.entry == Entry("c", "a", 1, 0, 2, 5, 0, tuple(frames)) or intake.entry.end_seq == 2
    again = take_submit(stream, SCHEMA, message, frames)
    assert (again.entry, again.duplicates, again.accepted) == (None, 2, 0)
    assert (stream.received, stream.accepted_steps) == (2, 5)


def test_a_bad_item_uses_up_its_number_and_its_neighbours_go_on():
    stream = stream_of()
    message = join_submit(0, 0, [packed(), packed(9), packed(dtype=np.float64), packed(1)])
    intake = take_submit(stream, SCHEMA, message, encode(message))
    assert [e.code for e in intake.refused] == [Refusal.RANGE, Refusal.SPEC]
    assert (intake.accepted, intake.entry.steps, stream.received) == (2, 3, 4)
    assert (stream.pending, stream.verdicts[Verdict.REFUSED]) == (2, 2)


def test_a_message_that_does_not_hold_together_moves_nothing():
    stream = stream_of()
    message = join_submit(0, 0, [packed()])
    message.segments[0][7] += 1
    with pytest.raises(ProtocolError):
        take_submit(stream, SCHEMA, message, [])
    assert stream.received == 0


# ---- StreamTable


def test_an_older_incarnation_is_fenced_and_a_live_one_defended():
    streams = table()
    streams.open(hello(5), b"p", 0.0)
    for incarnation, code in ((4, Refusal.FENCED), (6, Refusal.CONFLICT)):
        with pytest.raises(ProtocolError) as caught:
            streams.open(hello(incarnation), b"q", 1.0)
        assert caught.value.code is code
    stream, old = streams.open(hello(6), b"q", 4.0)
    assert (stream.incarnation, stream.received, old) == (6, 0, b"p")
    assert streams.get("a", 5) is None


def test_the_same_incarnation_takes_up_its_stream_again():
    streams = table()
    stream, _ = streams.open(hello(), b"p", 0.0)
    stream.accept(3, 6)
    assert streams.open(hello(), b"p", 1.0) == (stream, None)
    assert streams.open(hello(), b"q", 1.0) == (stream, b"p")
    assert streams.peer_of(stream) == b"q"


def test_a_hello_says_what_will_never_come():
    streams = table()
    stream, _ = streams.open(hello(first_seq=2), b"p", 0.0)
    streams.open(hello(first_seq=6), b"p", 1.0)
    assert stream.received == stream.trained == 6
    streams.open(hello(first_seq=4), b"p", 2.0)
    assert stream.received == 6


def test_the_marks_outlive_the_lease():
    streams = table(max_actors=1)
    stream, _ = streams.open(hello(), b"p", 0.0)
    stream.accept(3, 6)
    stream.dispose([[0, 3]], Verdict.TRAINED)
    assert streams.silent(3.5) == [stream]
    streams.hang_up(stream)
    streams.expire(30.5)
    assert streams.all() == []
    streams.open(hello(actor_id="b"), b"q", 31.0)
    with pytest.raises(ProtocolError) as caught:
        streams.open(hello(), b"p", 31.0)
    assert caught.value.code is Refusal.QUOTA
    streams.hang_up(streams.get("b", 1))
    streams.expire(99.0)
    assert streams.open(hello(), b"p", 99.0)[0] is stream
    assert stream.admit(0, 3) == 3


def test_a_lease_does_not_end_while_something_is_pending():
    streams = table()
    stream, _ = streams.open(hello(), b"p", 0.0)
    stream.accept(1, 1)
    streams.hang_up(stream)
    streams.expire(99.0)
    assert streams.all() == [stream]


def test_marks_that_outlive_a_lease_are_bounded():
    streams = table(max_actors=10**9)
    for n in range(MAX_EXPIRED + 5):
        streams.hang_up(streams.open(hello(actor_id=str(n)), b"p", 0.0)[0])
    streams.expire(99.0)
    assert len(streams._expired) == MAX_EXPIRED


# ---- CreditPool


def wanting(want, accepted=0, actor_id="a"):
    stream = stream_of(actor_id=actor_id)
    stream.accepted_steps, stream.want_steps = accepted, want
    return stream


def test_credit_is_granted_to_those_who_want_up_to_the_demand():
    pool, first, second = CreditPool(), wanting(30), wanting(100, accepted=50)
    pool.demand(60, 0)
    assert pool.grant([second, first], 0.0) == [first, second]
    assert (first.credit_steps, second.credit_steps) == (30, 80)
    assert pool.grant([first, second], 0.0) == []
    pool.demand(50, 3)
    assert (pool.limit_steps, pool.min_version) == (60, 3)


@given(st.integers(0, 200), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=5))
def test_promises_never_exceed_the_demand(limit, actors):
    pool = CreditPool()
    pool.demand(limit, 0)
    streams = [wanting(want, accepted) for want, accepted in actors]
    pool.grant(streams, 0.0)
    promised = sum(max(0, s.credit_steps - s.accepted_steps) for s in streams)
    assert promised <= limit
    hungry = any(s.want_steps > max(s.credit_steps, s.accepted_steps) for s in streams)
    assert promised == limit or not hungry


def test_idle_credit_is_offered_once_more():
    pool, idle, busy = CreditPool(), wanting(10), wanting(10)
    pool.demand(10, 0)
    pool.grant([idle, busy], 0.0)
    assert (idle.credit_steps, busy.credit_steps) == (10, 0)
    pool.grant([idle, busy], IDLE_S / 2)
    assert busy.credit_steps == 0
    pool.grant([idle, busy], IDLE_S)
    assert (idle.credit_steps, busy.credit_steps) == (10, 10)


def test_who_wants_less_gives_credit_back():
    stream = wanting(10)
    stream.credit_steps = 10
    stream.wish(4)
    assert (stream.want_steps, stream.credit_steps) == (4, 4)
    stream.accepted_steps = 6
    stream.wish(2)
    assert stream.credit_steps == 4
    CreditPool.reclaim(stream)
    assert (stream.want_steps, stream.credit_steps) == (2, 4)


def test_an_overshoot_is_paid_back_by_all():
    pool, stream = CreditPool(), wanting(100)
    pool.demand(10, 0)
    pool.grant([stream], 0.0)
    pool.delivered(13)
    stream.accept(1, 13)
    pool.demand(12, 0)
    assert pool.grant([stream], 0.0) == []


# ---- MemoryLedger


def test_the_memory_ledger_keeps_the_order():
    ledger = MemoryLedger()
    entries = [Entry("c", "a", 1, n, n + 1, 1, 0, ()) for n in range(3)]
    ledger.append(entries[:2])
    ledger.append(entries[2:])
    assert ledger.committed() == entries
    assert ledger.committed() == []


def test_an_idle_actor_is_not_granted_its_own_credit_again():
    pool, idle = CreditPool(), wanting(10)
    pool.demand(10, 0)
    pool.grant([idle], 0.0)
    idle.wish(30)
    pool.grant([idle], 10 * IDLE_S)
    assert idle.credit_steps == 10
