"""Tests of incarnations: they are unique although the clock stands still, and within their bounds for any clock."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.delivery.incarnation import MAX_FIRST, MAX_STEP, first_incarnation, next_incarnation


@given(st.floats(-1e12, 1e12), st.integers())
def test_a_start_has_a_number_whatever_the_clock_says(unix_s: float, seed: int) -> None:
    assert 0 < first_incarnation(unix_s, random.Random(seed)) < MAX_FIRST


@given(st.integers(0, (1 << 62) + (1 << 24)), st.integers())
def test_a_higher_one_is_within_what_the_learner_lets_in(known: int, seed: int) -> None:
    assert known < next_incarnation(known, random.Random(seed)) <= known + MAX_STEP


def test_a_clock_that_stands_still_makes_no_two_alike() -> None:
    rng = random.Random(1)
    assert len({first_incarnation(0.0, rng) for _ in range(200)}) == 200


def test_a_right_clock_keeps_starts_in_order() -> None:
    rng = random.Random(1)
    starts = [first_incarnation(1.8e9 + 0.1 * n, rng) for n in range(200)]
    assert starts == sorted(starts)
