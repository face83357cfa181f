"""Actors of different speeds share a learner thread: each gets what it can use, and none slows the fast ones down."""

from collections.abc import Iterable

import pytest
from simulation.mix import Actor, Mix

from rl4sys_zmq.delivery.credit import CreditAllocator
from rl4sys_zmq.delivery.stream import SegmentStream

FAST = Actor(10_000, segments=8)
"""An actor that uses all that the learner thread can train on."""

PART = 0.9
"""The least part of its rate alone that an actor must get."""

MIXES = {
    "slow": [Actor(1, steps=1), Actor(5), Actor(20), Actor(20, steps=1), Actor(50), Actor(50, waits=False)],
    "many slow": [Actor(50)] * 5 + [Actor(20, steps=1, waits=False)] * 5,
    "faster": [Actor(100), Actor(300), Actor(500, waits=False)],
    "greedy": [Actor(13, greedy=True, waits=False)] * 5 + [Actor(50)],
    "quarantined": [Actor(13, greedy=True, waits=False, useless=True)] * 8,
    "a flood of quarantined data": [Actor(1000, greedy=True, waits=False, useless=True)],
    "silent": [Actor(fickle=True)] * 10,
}


@pytest.mark.parametrize("others", MIXES.values(), ids=MIXES)
def test_each_actor_of_a_mix_gets_what_it_can_use(others: list[Actor]) -> None:
    alone = Mix([FAST]).rates().useful[0]
    together = Mix([FAST, *others]).rates().useful
    print(f"fast: alone {alone:.0f}, together {together[0]:.0f}; others {[round(rate) for rate in together[1:]]}")
    assert together[0] >= PART * alone
    for actor, rate in zip(others, together[1:], strict=True):
        if not (actor.useless or actor.fickle):
            assert rate >= PART * actor.hz - actor.steps / 2, "one segment more or less in the 2 s that are counted"


def test_two_fast_actors_get_the_same() -> None:
    alone = Mix([FAST]).rates().useful[0]
    first, second = Mix([FAST, FAST]).rates().useful
    assert min(first, second) >= PART * max(first, second)
    assert first + second >= alone


@pytest.mark.parametrize(
    ("actors", "batch_steps"),
    [
        ([Actor(93.0 + place) for place in range(8)], 48),
        ([Actor(1000)] * 16, 24),
        ([Actor(100)] * 16, 24),
    ],
    ids=["one segment of each", "fast, too many", "slow, too many"],
)
def test_actors_of_one_speed_collect_with_the_newest_version(actors: list[Actor], batch_steps: int) -> None:
    rates = Mix(actors, batch_steps=batch_steps, training_s=0.03).rates()
    assert rates.old < 0.05
    assert min(rates.useful) >= 0.7 * max(rates.useful) > 0


class WaitsForAll(CreditAllocator):
    """An allocator that sets all unused credit aside."""

    def _set_aside(self, streams: object, credited: Iterable[SegmentStream], pace_s: float, now: float) -> float:
        return sum(stream.unused_steps for stream in credited)


class WaitsForNone(CreditAllocator):
    """An allocator that sets nothing aside."""

    def _set_aside(self, streams: object, credited: object, pace_s: float, now: float) -> float:
        return 0.0


def test_a_fast_actor_that_waits_for_slow_ones_is_detected() -> None:
    alone = Mix([FAST]).rates().useful[0]
    assert Mix([FAST, *MIXES["greedy"]], pool=WaitsForAll).rates().useful[0] < 0.5 * alone


def test_more_credit_than_the_batch_is_detected() -> None:
    rates = Mix([Actor(100)] * 16, batch_steps=24, training_s=0.03, pool=WaitsForNone).rates()
    assert rates.old > 0.5
