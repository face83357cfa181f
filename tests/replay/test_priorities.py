"""Tests of draws by priority against a slow form of the paper's formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import segment_with
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import PriorityOptions, ReplayMemory, ReplayOptions, importance_weights
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment


def make_replay(capacity: int, alpha: float = 1.0, epsilon: float = 0.25) -> ReplayMemory:
    priority = PriorityOptions(alpha=alpha, epsilon=epsilon)
    return ReplayMemory(BoxSpace((1,)), DiscreteSpace(2), ReplayOptions(capacity=capacity, gamma=0.9, priority=priority))


def steps(first: int, count: int) -> Segment:
    return segment_with(count, observations=np.arange(first, first + count, dtype=np.float32)[:, None])


def numbers(replay: ReplayMemory, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.asarray(replay.gather(rows).observations)[:, 0].astype(np.int64)
    return found


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (0.6, 0.4), (1.0, 1.0)])
def test_rows_are_drawn_in_proportion_and_weighted_as_in_the_paper(alpha: float, beta: float) -> None:
    replay = make_replay(30, alpha)
    replay.add(steps(0, 40))  # 10 to 39 are left
    replay.update_priorities(np.arange(30), np.arange(30.0))
    probability = {int(n): (p + 0.25) ** alpha for n, p in zip(numbers(replay, np.arange(30)), range(30), strict=True)}
    total = sum(probability.values())
    rows = replay.draw(60_000, np.random.default_rng(1))
    found = np.bincount(numbers(replay, rows), minlength=40) / 60_000
    np.testing.assert_allclose(found[10:], [probability[n] / total for n in range(10, 40)], atol=0.006)
    slow = [(30 * probability[int(n)] / total) ** -beta for n in numbers(replay, rows[:64])]
    np.testing.assert_allclose(replay.weights(rows[:64], beta), np.array(slow) / max(slow), rtol=1e-5)


@given(
    operations=st.lists(st.one_of(st.integers(1, 9), st.lists(st.floats(0, 100), min_size=1, max_size=5)), max_size=12),
    capacity=st.integers(1, 12),
)
def test_a_new_row_has_the_greatest_mass_so_far(operations: list[int | list[float]], capacity: int) -> None:
    replay, written, greatest = make_replay(capacity), 0, 1.0
    twin: dict[int, float] = {}
    for operation in operations:
        if isinstance(operation, int):
            replay.add(steps(written, operation))
            twin |= dict.fromkeys(range(written, written + operation), greatest)
            written += operation
        elif len(replay):
            rows = np.arange(len(operation)) % len(replay)
            replay.update_priorities(rows, np.array(operation))
            for number, error in zip(numbers(replay, rows).tolist(), operation, strict=True):
                twin[number] = error + 0.25
            greatest = max(greatest, *(error + 0.25 for error in operation))
    if written:
        held = range(max(0, written - capacity), written)
        masses = replay.state()["priorities"]["masses"]
        np.testing.assert_allclose(masses, [twin[n] for n in held])


def test_errors_that_are_not_finite_change_nothing_and_a_uniform_replay_has_no_priorities() -> None:
    replay = make_replay(4)
    replay.add(steps(0, 4))
    before = replay.state()["priorities"]["masses"]
    replay.update_priorities(np.array([0, 1]), np.array([np.nan, np.inf]))
    np.testing.assert_array_equal(replay.state()["priorities"]["masses"], before)
    uniform = ReplayMemory(BoxSpace((1,)), DiscreteSpace(2), ReplayOptions(capacity=4, gamma=0.9))
    with pytest.raises(ConfigError, match="draws uniformly"):
        uniform.update_priorities(np.zeros(1, np.int64), np.zeros(1))
    assert uniform.checkpoint() is None


@given(capacity=st.integers(2, 9), more=st.integers(0, 12), empty=st.booleans())
def test_a_return_gives_later_rows_the_greatest_mass_of_that_time(capacity: int, more: int, empty: bool) -> None:
    replay = make_replay(capacity)
    replay.add(steps(0, capacity - 1))
    replay.update_priorities(np.arange(capacity - 1), np.arange(2.0, capacity + 1))
    kept = replay.checkpoint()
    if empty:
        replay.discard(np.arange(len(replay)))
        assert len(replay) == 0
    replay.add(steps(100, more + 1))
    replay.update_priorities(np.arange(len(replay)), np.full(len(replay), 77.0))
    for _ in range(2):  # a kept state can be restored several times
        replay.restore(kept)
        order = numbers(replay, np.arange(len(replay)))
        expected = [n + 2.25 if n < 100 else capacity + 0.25 for n in order.tolist()]
        rows = np.argsort((np.arange(len(replay)) - replay._ring.begin) % capacity)
        np.testing.assert_allclose(replay.state()["priorities"]["masses"], np.array(expected)[rows])


@pytest.mark.parametrize(("old", "new"), [((0.5, 0.25), (1.0, 0.25)), ((1.0, 0.25), (0.5, 0.5)), ((2.0, 0.5), (0.0, 1e-6))])
def test_a_state_of_other_options_gives_the_same_priorities(old: tuple[float, float], new: tuple[float, float]) -> None:
    before, after = make_replay(4, *old), make_replay(4, *new)
    before.add(steps(0, 4))
    errors = np.array([0.0, 1.0, 4.0, 9.0])
    before.update_priorities(np.arange(4), errors)
    after.load(before.state())
    found = after.state()["priorities"]
    np.testing.assert_allclose(found["masses"], (errors + new[1]) ** new[0])
    assert found["greatest"] == pytest.approx((9.0 + new[1]) ** new[0])


def test_a_state_that_was_drawn_uniformly_gives_equal_priorities() -> None:
    before, after = make_replay(3, 0.0), make_replay(3, 0.5)
    before.add(steps(0, 3))
    before.update_priorities(np.arange(3), np.array([1.0, 2.0, 3.0]))
    after.load(before.state())
    assert set(after.state()["priorities"]["masses"]) == {1.25**0.5}


def test_removed_rows_take_the_priorities_of_those_that_replace_them() -> None:
    replay = make_replay(6)
    replay.add(steps(0, 3))
    replay.add(steps(10, 3))
    replay.update_priorities(np.arange(6), np.array([1.0, 2, 3, 40, 50, 60]))
    assert replay.discard(np.array([4])) == [1]
    np.testing.assert_allclose(replay.state()["priorities"]["masses"], np.array([1.0, 2, 3, 1, 2, 3]) + 0.25)


def test_the_largest_weight_of_a_batch_is_one() -> None:
    assert importance_weights(np.array([4.0, 1.0, 16.0]), 0.5).tolist() == [0.5, 1.0, 0.25]
