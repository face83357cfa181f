"""Tests of the gateway's fair rate limits, and of the steps of the memory watch."""

import pytest

from rl4sys_zmq import memory_watch
from rl4sys_zmq.errors import MemoryExceeded
from rl4sys_zmq.learner.gateway.connections import (
    BURST_S,
    CUT_AFTER,
    CUT_BYTES,
    FREE_MESSAGES,
    MAX_REST_S,
    ConnectionRateLimits,
    ConnectionRateState,
)
from rl4sys_zmq.memory_watch import CUT_ALL_S, END_S, MemoryLimitThread, available_bytes, resident_bytes

RATE = 8.0


def say(
    limits: ConnectionRateLimits,
    rate: ConnectionRateState,
    now: float,
    count: int,
    *,
    sessionless: bool = False,
    cost: float = 1.0,
) -> int:
    """Return the number of messages that are handled, of `count` messages at one time."""
    handled = 0
    for _ in range(count):
        if not limits.exceeds(rate, now, sessionless=sessionless):
            limits.charge(rate, cost, 0, now, sessionless=sessionless)
            handled += 1
    return handled


def test_a_connection_has_its_rate_and_twice_that_at_once() -> None:
    limits = ConnectionRateLimits(RATE, 1e6)
    rate = limits.add(b"a", 3, 0.0)
    assert say(limits, rate, 0.0, 100) == RATE * BURST_S + 1
    assert say(limits, rate, 1.0, 100) == RATE
    assert say(limits, rate, 100.0, 100) == RATE * BURST_S + 1


def test_what_is_asked_for_pays_for_the_rest() -> None:
    limits = ConnectionRateLimits(RATE, 1e6)
    rate = limits.add(b"a", 3, 0.0)
    for _ in range(1000):
        assert say(limits, rate, 0.0, 2) == 2
        limits.charge(rate, -2.0, 0, 0.0, sessionless=False)
    assert rate.debt_paid_at < 0.1, "nothing can be saved up"


def test_strangers_share_and_a_newcomer_is_heard() -> None:
    limits = ConnectionRateLimits(RATE, 1e6)
    flood = [limits.add(bytes([n]), n, 0.0) for n in range(50)]
    assert say(limits, flood[0], 0.0, 100, sessionless=True) < 100
    handled = sum(say(limits, rate, 0.0, 100, sessionless=True) for rate in flood[1:])
    assert handled < 49 * RATE * BURST_S / 2
    newcomer = limits.add(b"new", 99, 0.0)
    assert say(limits, newcomer, 0.0, FREE_MESSAGES, sessionless=True) == FREE_MESSAGES
    assert say(limits, newcomer, 0.0, 1, sessionless=True) == 0
    assert say(limits, newcomer, 0.0, 1) == 1, "with a session it is no stranger"


def test_bytes_count_too() -> None:
    limits = ConnectionRateLimits(1e9, 1000.0)
    rate = limits.add(b"a", 3, 0.0)
    limits.charge(rate, 1.0, 2100, 0.0, sessionless=False)
    assert limits.exceeds(rate, 0.0, sessionless=False)
    assert not limits.exceeds(rate, 0.2, sessionless=False)


def test_excess_is_answered_now_and_then_and_ends_the_connection() -> None:
    limits = ConnectionRateLimits(RATE, 1e6)
    rate = limits.add(b"a", 3, 0.0)
    assert sum(limits.should_reply(rate, 0.0) for _ in range(1000)) in (10, 11)
    assert [n for n in range(2 * CUT_AFTER) if limits.count_excess(rate, 10)] == [CUT_AFTER - 1, 2 * CUT_AFTER - 1]
    assert limits.count_excess(rate, CUT_BYTES)
    limits.rest_after(1.0, 5.0)
    assert limits.rest_s(5.0) == pytest.approx(MAX_REST_S)
    assert limits.rest_s(6.0) == 0.0


def test_who_finishes_no_message() -> None:
    limits = ConnectionRateLimits(RATE, 1e6)
    limits.add(b"a", 3, 0.0)
    limits.add(b"b", 4, 0.0).last_message_s = 9.0
    assert limits.silent_connections([3, 4, 5], 10.0, 5.0, 1.0) == [3]
    assert limits.silent_connections([3, 4, 5], 11.0, 5.0, 1.0) == [3, 5]
    limits.add(b"c", 3, 11.0)  # another connection has this descriptor now
    assert limits.silent_connections([3, 4, 5], 11.0, 5.0, 1.0) == [5]
    limits.forget(100.0, {b"b"}, [3, 4, 5])
    assert set(limits.rates) == {b"b"}


def test_a_connection_that_ended_is_forgotten_unless_it_owes() -> None:
    limits = ConnectionRateLimits(RATE, 1e6)
    for number, peer in enumerate((b"open", b"ended", b"joined", b"owes", b"no descriptor")):
        limits.add(peer, number if peer != b"no descriptor" else -1, 0.0)
    say(limits, limits.rates[b"owes"], 0.0, 100)
    limits.forget(1.0, {b"joined"}, [0])
    assert set(limits.rates) == {b"open", b"joined", b"owes", b"no descriptor"}
    limits.forget(3.0, {b"joined"}, [0])
    assert set(limits.rates) == {b"open", b"joined", b"no descriptor"}
    limits.add(b"new", 0, 3.0)  # the system gives the descriptor of an ended connection to the next one
    limits.forget(4.0, {b"joined"}, [0])
    assert set(limits.rates) == {b"new", b"joined", b"no descriptor"}


def test_the_watch_goes_from_one_means_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "give_back_memory", lambda: None)
    cuts: list[bool] = []
    ends: list[bool] = []

    def cut(all_connections: bool) -> int:
        cuts.append(all_connections)
        return 1

    watch = MemoryLimitThread(100, cut, lambda: ends.append(True))
    watch.look(100, 0.0)
    assert not cuts
    for now in (1.0, 1.2, 1.0 + CUT_ALL_S, 1.2 + CUT_ALL_S):
        watch.look(101, now)
    assert cuts == [False, False, True, False]
    watch.look(99, 4.0)
    watch.look(101, 5.0)
    with pytest.raises(MemoryExceeded, match="max-memory"):
        watch.look(101, 5.0 + END_S)


def test_memory_is_measured() -> None:
    assert 1 << 20 < resident_bytes() < available_bytes()
