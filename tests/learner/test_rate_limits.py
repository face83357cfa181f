"""Fair shares of the gateway, and what the watch on memory does when."""

import pytest

from rl4sys_zmq.errors import MemoryExceeded
from rl4sys_zmq.learner import memory_watch
from rl4sys_zmq.learner.connections import BURST_S, CUT_AFTER, CUT_BYTES, FREE_MESSAGES, MAX_REST_S, RateLimiter
from rl4sys_zmq.learner.memory_watch import CUT_ALL_S, END_S, MemoryWatch, available_bytes, resident_bytes

FIELD_RATE = 8.0


def say(shares, rate, now, count, *, sessionless=False, cost=1.0):
    """How many of so many messages at one time are handled."""
    handled = 0
    for _ in range(count):
        if not shares.exceeds(rate, now, sessionless=sessionless):
            shares.charge(rate, cost, 0, now, sessionless=sessionless)
            handled += 1
    return handled


def test_a_connection_has_its_rate_and_twice_that_at_once():
    shares = RateLimiter(FIELD_RATE, 1e6)
    rate = shares.add(b"a", 3, 0.0)
    assert say(shares, rate, 0.0, 100) == FIELD_RATE * BURST_S + 1
    assert say(shares, rate, 1.0, 100) == FIELD_RATE
    assert say(shares, rate, 100.0, 100) == FIELD_RATE * BURST_S + 1


def test_what_is_asked_for_pays_for_the_rest():
    shares = RateLimiter(FIELD_RATE, 1e6)
    rate = shares.add(b"a", 3, 0.0)
    for _ in range(1000):
        assert say(shares, rate, 0.0, 2) == 2
        shares.charge(rate, -2.0, 0, 0.0, sessionless=False)
    assert rate.owes_until < 0.1, "nothing can be saved up"


def test_strangers_share_and_a_newcomer_is_heard():
    shares = RateLimiter(FIELD_RATE, 1e6)
    flood = [shares.add(bytes([n]), n, 0.0) for n in range(50)]
    assert say(shares, flood[0], 0.0, 100, sessionless=True) < 100
    handled = sum(say(shares, rate, 0.0, 100, sessionless=True) for rate in flood[1:])
    assert handled < 49 * FIELD_RATE * BURST_S / 2
    newcomer = shares.add(b"new", 99, 0.0)
    assert say(shares, newcomer, 0.0, FREE_MESSAGES, sessionless=True) == FREE_MESSAGES
    assert say(shares, newcomer, 0.0, 1, sessionless=True) == 0
    assert say(shares, newcomer, 0.0, 1) == 1, "with a session it is no stranger"


def test_bytes_count_too():
    shares = RateLimiter(1e9, 1000.0)
    rate = shares.add(b"a", 3, 0.0)
    shares.charge(rate, 1.0, 2100, 0.0, sessionless=False)
    assert shares.exceeds(rate, 0.0, sessionless=False)
    assert not shares.exceeds(rate, 0.2, sessionless=False)


def test_excess_is_answered_now_and_then_and_ends_the_connection():
    shares = RateLimiter(FIELD_RATE, 1e6)
    rate = shares.add(b"a", 3, 0.0)
    assert sum(shares.should_reply(rate, 0.0) for _ in range(1000)) in (10, 11)
    assert [n for n in range(2 * CUT_AFTER) if shares.count_excess(rate, 10)] == [CUT_AFTER - 1, 2 * CUT_AFTER - 1]
    assert shares.count_excess(rate, CUT_BYTES)
    shares.rest_after(1.0, 5.0)
    assert (shares.rest_s(5.0), shares.rest_s(6.0)) == (pytest.approx(MAX_REST_S), 0.0)


def test_who_finishes_no_message():
    shares = RateLimiter(FIELD_RATE, 1e6)
    shares.add(b"a", 3, 0.0)
    shares.add(b"b", 4, 0.0).last_message_s = 9.0
    assert shares.silent_connections([3, 4, 5], 10.0, 5.0, 1.0) == [3]
    assert shares.silent_connections([3, 4, 5], 11.0, 5.0, 1.0) == [3, 5]
    shares.add(b"c", 3, 11.0)  # the number has another connection now
    assert shares.silent_connections([3, 4, 5], 11.0, 5.0, 1.0) == [5]
    shares.forget(100.0, {b"b"}, [3, 4, 5])
    assert set(shares.rates) == {b"b"}


def test_a_connection_that_ended_is_forgotten_unless_it_owes():
    shares = RateLimiter(FIELD_RATE, 1e6)
    for number, peer in enumerate((b"open", b"ended", b"joined", b"owes", b"no descriptor")):
        shares.add(peer, number if peer != b"no descriptor" else -1, 0.0)
    say(shares, shares.rates[b"owes"], 0.0, 100)
    shares.forget(1.0, {b"joined"}, [0])
    assert set(shares.rates) == {b"open", b"joined", b"owes", b"no descriptor"}
    shares.forget(3.0, {b"joined"}, [0])
    assert set(shares.rates) == {b"open", b"joined", b"no descriptor"}


def test_the_watch_goes_from_one_means_to_the_next(monkeypatch):
    monkeypatch.setattr(memory_watch, "give_back_memory", lambda: None)
    cuts, ends = [], []
    watch = MemoryWatch(100, lambda all_connections: cuts.append(all_connections) or 1, lambda: ends.append(True))
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
