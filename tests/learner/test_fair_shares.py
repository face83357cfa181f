"""Fair shares of the gateway, and what the watch on memory does when."""

import pytest

from rl4sys_zmq.errors import MemoryExceeded
from rl4sys_zmq.learner import memory_watch
from rl4sys_zmq.learner.fair_shares import BURST_S, CUT_AFTER, CUT_BYTES, FIRST_WORDS, MAX_REST_S, FairShares
from rl4sys_zmq.learner.memory import available_bytes, resident_bytes
from rl4sys_zmq.learner.memory_watch import CUT_ALL_S, END_S, MemoryWatch

RATE = 8.0


def say(shares, line, now, count, *, stranger=False, cost=1.0):
    """How many of so many messages at one time are handled."""
    handled = 0
    for _ in range(count):
        if not shares.over(line, now, stranger=stranger):
            shares.charge(line, cost, 0, now, stranger=stranger)
            handled += 1
    return handled


def test_a_connection_has_its_rate_and_twice_that_at_once():
    shares = FairShares(RATE, 1e6)
    line = shares.meet(b"a", 3, 0.0)
    assert say(shares, line, 0.0, 100) == RATE * BURST_S + 1
    assert say(shares, line, 1.0, 100) == RATE
    assert say(shares, line, 100.0, 100) == RATE * BURST_S + 1


def test_what_is_asked_for_pays_for_the_rest():
    shares = FairShares(RATE, 1e6)
    line = shares.meet(b"a", 3, 0.0)
    for _ in range(1000):
        assert say(shares, line, 0.0, 2) == 2
        shares.charge(line, -2.0, 0, 0.0, stranger=False)
    assert line.owes_until < 0.1, "nothing can be saved up"


def test_strangers_share_and_a_newcomer_is_heard():
    shares = FairShares(RATE, 1e6)
    flood = [shares.meet(bytes([n]), n, 0.0) for n in range(50)]
    assert say(shares, flood[0], 0.0, 100, stranger=True) < 100
    handled = sum(say(shares, line, 0.0, 100, stranger=True) for line in flood[1:])
    assert handled < 49 * RATE * BURST_S / 2
    newcomer = shares.meet(b"new", 99, 0.0)
    assert say(shares, newcomer, 0.0, FIRST_WORDS, stranger=True) == FIRST_WORDS
    assert say(shares, newcomer, 0.0, 1, stranger=True) == 0
    assert say(shares, newcomer, 0.0, 1) == 1, "with a session it is no stranger"


def test_bytes_count_too():
    shares = FairShares(1e9, 1000.0)
    line = shares.meet(b"a", 3, 0.0)
    shares.charge(line, 1.0, 2100, 0.0, stranger=False)
    assert shares.over(line, 0.0, stranger=False)
    assert not shares.over(line, 0.2, stranger=False)


def test_excess_is_answered_now_and_then_and_ends_the_connection():
    shares = FairShares(RATE, 1e6)
    line = shares.meet(b"a", 3, 0.0)
    assert sum(shares.may_be_told(line, 0.0) for _ in range(1000)) in (10, 11)
    assert [n for n in range(2 * CUT_AFTER) if shares.to_be_cut(line, 10)] == [CUT_AFTER - 1, 2 * CUT_AFTER - 1]
    assert shares.to_be_cut(line, CUT_BYTES)
    shares.rest_after(1.0, 5.0)
    assert (shares.rest_s(5.0), shares.rest_s(6.0)) == (pytest.approx(MAX_REST_S), 0.0)


def test_who_finishes_no_message():
    shares = FairShares(RATE, 1e6)
    shares.meet(b"a", 3, 0.0)
    shares.meet(b"b", 4, 0.0).heard = 9.0
    assert shares.mute([3, 4, 5], 10.0, 5.0, 1.0) == [3]
    assert shares.mute([3, 4, 5], 11.0, 5.0, 1.0) == [3, 5]
    shares.meet(b"c", 3, 11.0)  # the number has another connection now
    assert shares.mute([3, 4, 5], 11.0, 5.0, 1.0) == [5]
    shares.forget(100.0, {b"b"}, [3, 4, 5])
    assert set(shares.lines) == {b"b"}


def test_a_connection_that_ended_is_forgotten_unless_it_owes():
    shares = FairShares(RATE, 1e6)
    for number, peer in enumerate((b"open", b"ended", b"joined", b"owes", b"no descriptor")):
        shares.meet(peer, number if peer != b"no descriptor" else -1, 0.0)
    say(shares, shares.lines[b"owes"], 0.0, 100)
    shares.forget(1.0, {b"joined"}, [0])
    assert set(shares.lines) == {b"open", b"joined", b"owes", b"no descriptor"}
    shares.forget(3.0, {b"joined"}, [0])
    assert set(shares.lines) == {b"open", b"joined", b"no descriptor"}


def test_the_watch_goes_from_one_means_to_the_next(monkeypatch):
    monkeypatch.setattr(memory_watch, "give_back_memory", lambda: None)
    cuts, ends = [], []
    watch = MemoryWatch(100, lambda everybody: cuts.append(everybody) or 1, lambda: ends.append(True))
    watch.look(100, 0.0)
    assert not cuts
    for now in (1.0, 1.2, 1.0 + CUT_ALL_S, 1.2 + CUT_ALL_S):
        watch.look(101, now)
    assert cuts == [False, False, True, False]
    watch.look(99, 4.0)
    watch.look(101, 5.0)
    with pytest.raises(MemoryExceeded, match="max-memory"):
        watch.look(101, 5.0 + END_S)


def test_memory_is_measured():
    assert 1 << 20 < resident_bytes() < available_bytes()
