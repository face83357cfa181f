"""Tests of the sum tree against a list of numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.replay.priorities import SumTree

MASSES = st.floats(0, 1e6, allow_subnormal=False)


@given(size=st.integers(1, 40), data=st.data())
def test_masses_sums_and_finding_match_the_slow_twin(size: int, data: st.DataObject) -> None:
    tree, twin = SumTree(size), [0.0] * size
    for _ in range(data.draw(st.integers(1, 4))):
        updates = data.draw(st.lists(st.tuples(st.integers(0, size - 1), MASSES), max_size=20))
        tree.set(np.array([slot for slot, _ in updates], np.int64), np.array([mass for _, mass in updates]))
        for slot, mass in updates:
            twin[slot] = mass
    assert tree[np.arange(size)].tolist() == twin
    assert tree.total == pytest.approx(sum(twin))
    if not any(twin):
        return
    shares = np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20)))
    for mark, slot in zip(shares * tree.total, tree.find(shares * tree.total), strict=True):
        before = sum(twin[:slot])
        slack = 1e-9 * tree.total
        assert twin[slot] > 0
        assert before - slack <= mark <= before + twin[slot] + slack


def test_slots_are_found_in_proportion_to_their_masses() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 3.0, 2.0, 4.0]))
    counts = np.bincount(tree.find(np.random.default_rng(0).random(100_000) * tree.total), minlength=5)
    np.testing.assert_allclose(counts / 100_000, [0.1, 0.0, 0.3, 0.2, 0.4], atol=0.01)


def test_many_updates_do_not_add_up_rounding() -> None:
    tree, rng = SumTree(64), np.random.default_rng(1)
    for _ in range(300):
        tree.set(rng.integers(0, 64, 16), np.float64(10.0) ** rng.integers(-8, 8, 16).astype(np.float64))
    tree.set(np.arange(64), 1.0)
    assert tree.total == 64.0


def test_rounding_at_the_end_never_finds_an_empty_slot() -> None:
    tree = SumTree(7)
    tree.set(np.array([0, 1, 2]), np.array([0.1, 0.2, 0.3]))
    assert tree.find(np.array([tree.total, np.nextafter(tree.total, 0)])).tolist() == [2, 2]
