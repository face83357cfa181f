"""Tests of the ratio of samples to inserted steps against a slow simulation of both sides."""

from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.replay import SamplesPerInsert


@given(
    ratio=st.floats(0.01, 50),
    extra=st.floats(0, 100),
    least=st.integers(0, 50),
    unit=st.integers(1, 64),
    turns=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=40),
)
def test_the_difference_stays_within_the_tolerance_and_neither_side_waits_forever(
    ratio: float, extra: float, least: int, unit: int, turns: list[tuple[bool, int]]
) -> None:
    rate = SamplesPerInsert(ratio=ratio, tolerance=max(unit, ratio) + extra, least=least)
    inserted = sampled = 0
    for acting, wish in turns:
        for _ in range(wish):
            can_insert, can_sample = rate.room(inserted, sampled) > 0, sampled + unit <= rate.samples(inserted)
            assert can_insert or can_sample
            if acting and can_insert:
                inserted += 1
            elif not acting and can_sample:
                sampled += unit
            if inserted >= least:
                assert abs(ratio * (inserted - least) - sampled) <= rate.tolerance + 1e-6
            else:
                assert sampled == 0


@given(ratio=st.floats(0.01, 50), tolerance=st.floats(0, 100), least=st.integers(0, 50), samples=st.integers(0, 500))
def test_the_steps_for_some_samples_are_the_fewest(ratio: float, tolerance: float, least: int, samples: int) -> None:
    rate = SamplesPerInsert(ratio=ratio, tolerance=tolerance, least=least)
    steps = rate.inserts_for(samples)
    assert rate.samples(steps) >= samples
    assert steps == max(1, least) or rate.samples(steps - 1) < samples
