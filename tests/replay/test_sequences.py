"""Tests of sequences against a slow twin that cuts each segment step by step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import segment_with

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import PriorityOptions, SequenceMemory, SequenceOptions
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment
from rl4sys_zmq.values.segment import ColumnSpec

STATE = ColumnSpec("state", (2,), per="segment")


def make_replay(capacity: int = 1000, **options: Any) -> SequenceMemory:
    given = {"length": 4, **options}
    return SequenceMemory(BoxSpace((1,)), DiscreteSpace(2), SequenceOptions(capacity=capacity, **given), (STATE,))


def make_segment(first: int, steps: int, end: str = "cut", masks: bool = False) -> Segment:
    """Return a segment whose observations and rewards count up from `first`, with the recurrent state (first, first + 0.5)."""
    rows = steps + (end != "terminated")
    return segment_with(
        steps,
        end,
        observations=np.arange(first, first + rows, dtype=np.float32)[:, None],
        actions=np.arange(first, first + steps) % 2,
        rewards=np.arange(first, first + steps, dtype=np.float32),
        masks=np.arange(rows)[:, None] % 2 == np.arange(2) if masks else None,
        initial={"state": np.array([first, first + 0.5], np.float32)},
    )


def everything(replay: SequenceMemory) -> Any:
    ring = replay._sequences
    return replay.gather(np.arange(ring.begin, ring.end) % replay.options.capacity)


def slow_sequences(first: int, steps: int, end: str, length: int, burn_in: int, overlap: int) -> list[dict[str, Any]]:
    """Return the sequences of one segment, with the expected columns of each step."""
    found, start, covered = [], 0, 0
    while start == 0 or covered < steps:
        window = range(start - burn_in, start + length)
        last = steps - (end == "terminated")  # the index of the last observation
        found.append(
            {
                "valid": [0 <= t < steps for t in window],
                "observations": [first + t if 0 <= t <= last else None for t in (*window, start + length)],
                "terminated": [end == "terminated" and t == steps - 1 for t in window],
                "initial": [first, first + 0.5] if start <= burn_in else [0, 0],
            }
        )
        covered = start + length
        start += length - overlap
    return found


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.sampled_from(["cut", "terminated", "truncated"])), min_size=1, max_size=8),
    length=st.integers(1, 6),
    burn_in=st.integers(0, 5),
    overlap=st.integers(0, 5),
    capacity=st.integers(21, 60),
)
def test_sequences_match_the_slow_twin(
    lengths: list[tuple[int, str]], length: int, burn_in: int, overlap: int, capacity: int
) -> None:
    overlap = min(overlap, length - 1)
    replay = make_replay(capacity, length=length, burn_in=burn_in, overlap=overlap)
    expected: list[list[dict[str, Any]]] = []
    rows: list[int] = []
    for index, (steps, end) in enumerate(lengths):
        replay.add(make_segment(100 * index, steps, end))
        expected.append(slow_sequences(100 * index, steps, end, length, burn_in, overlap))
        rows.append(steps + 1)
    while sum(rows) > capacity:  # a segment with an overwritten step is removed
        rows.pop(0)
        expected.pop(0)
    slow = [sequence for segment in expected for sequence in segment]
    state = replay.state()
    twin = make_replay(capacity, length=length, burn_in=burn_in, overlap=overlap)
    twin.load(state)
    for one in (replay, twin):
        batch = everything(one)
        assert len(one) == len(slow)
        for row, wanted in enumerate(slow):
            assert batch.valid[row].tolist() == wanted["valid"]
            observed = batch.observations[row, :, 0]
            for at, value in enumerate(wanted["observations"]):
                assert value is None or observed[at] == value
            steps = batch.valid[row]
            np.testing.assert_array_equal(batch.rewards[row][steps], observed[:-1][steps])
            np.testing.assert_array_equal(batch.actions[row][steps], observed[:-1][steps] % 2)
            assert batch.terminated[row].tolist() == wanted["terminated"]
            assert batch.initial["state"][row].tolist() == wanted["initial"]


def test_every_step_is_trained_on_at_least_once_and_masks_come_late_or_never() -> None:
    replay = make_replay(length=5, overlap=2, burn_in=3)
    replay.add(make_segment(0, 17))
    assert everything(replay).masks is None
    replay.add(make_segment(100, 7, masks=True))
    batch = everything(replay)
    trained = batch.observations[:, 3:-1, 0][batch.valid[:, 3:]]
    assert set(trained) == {*range(17), *range(100, 107)}
    here = batch.observations[..., 0]
    real = np.concatenate([batch.valid, batch.valid[:, -1:]], axis=1)
    assert batch.masks[real & (here < 100)].all()
    np.testing.assert_array_equal(batch.masks[real & (here >= 100)][:, 0], here[real & (here >= 100)] % 2 == 0)


def test_priorities_mix_the_largest_and_the_mean_error_and_follow_their_sequences() -> None:
    replay = make_replay(length=4, priority=PriorityOptions(alpha=1.0, epsilon=0.5))
    for first in (0, 100, 200):
        replay.add(make_segment(first, 6))
    rows = np.arange(6)  # each segment has a whole sequence and one of two steps
    errors = np.array([[1.0, -3, 0, 0], [2, 2, 0, 0]] * 3)
    replay.update_priorities(rows, errors)
    masses = replay.state()["priorities"]["masses"]
    np.testing.assert_allclose(masses, [0.9 * 3 + 0.1 * 1 + 0.5, 0.9 * 2 + 0.1 * 2 + 0.5] * 3)
    kept = replay.checkpoint()
    replay.update_priorities(np.array([4]), np.full((1, 4), 50.0))
    assert set(replay.draw(50, np.random.default_rng(0))) & {4}
    replay.restore(kept)
    np.testing.assert_array_equal(replay.state()["priorities"]["masses"], masses)
    np.testing.assert_allclose(replay.weights(np.array([0, 1]), 1.0), [2.5 / 3.3, 1.0], rtol=1e-6)
    replay.update_priorities(np.array([4]), np.full((1, 4), 50.0))
    assert replay.discard(np.array([2])) == [1]
    assert set(everything(replay).observations[:, 0, 0]) == {0, 4, 200, 204}
    np.testing.assert_allclose(replay.state()["priorities"]["masses"], [3.3, 2.5, 50.5, 2.5])
    assert replay.discard(replay.draw(4, np.random.default_rng(0))[:1]) in ([0], [2])


def test_draws_are_uniform_and_of_a_segment_that_is_too_long_the_beginning_is_stored() -> None:
    replay = make_replay(30, length=2)
    for first in (0, 100, 200, 300):
        replay.add(make_segment(first, 8))
    found = everything(replay).observations[:, 0, 0]
    assert found.min() == 100
    drawn = replay.gather(replay.draw(12_000, np.random.default_rng(0))).observations[:, 0, 0]
    counts = [np.count_nonzero(drawn == value) for value in found]
    assert np.abs(np.array(counts) - 1000).max() < 150
    for end in ("cut", "terminated"):
        replay.add(make_segment(500, 35, end))
        batch = everything(replay)
        assert batch.observations[:, 0, 0].tolist() == list(range(500, 529, 2)) and not batch.terminated.any()
        assert batch.observations[-1, :, 0].tolist() == [528, 529, 529] and batch.valid[-1].tolist() == [True, False]


@pytest.mark.parametrize("wrong", [{"length": 0}, {"burn_in": -1}, {"overlap": 4}, {"overlap": -1}, {"capacity": 1}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"expected"):
        make_replay(**wrong)


def test_priorities_of_overwritten_sequences_draw_nothing() -> None:
    """A segment of many sequences is overwritten by segments of few."""
    replay = make_replay(40, length=1, priority=PriorityOptions())
    replay.add(make_segment(0, 16))
    replay.update_priorities(np.arange(16), np.full((16, 1), 1e6))
    for first in range(100, 500, 100):
        replay.add(make_segment(first, 12))
        replay.draw(1, np.random.default_rng(0))
    drawn = replay.gather(replay.draw(6000, np.random.default_rng(0))).observations[:, 0, 0]
    counts = [np.count_nonzero(drawn == value) for value in everything(replay).observations[:, 0, 0]]
    assert len(counts) == 36 and 100 < min(counts) <= max(counts) < 250


def test_a_replay_that_discard_has_emptied_comes_back_from_its_state() -> None:
    priority = PriorityOptions()
    replay, again = (make_replay(priority=priority) for _ in range(2))
    replay.add(make_segment(0, 10))
    assert len(replay) == 3
    assert replay.discard(np.arange(3)) == [0]
    assert len(replay) == 0
    again.load(replay.state())
    for one in (replay, again):
        one.add(make_segment(100, 10))
    assert len(replay) == len(again) == 3
    one, other = everything(replay), everything(again)
    np.testing.assert_array_equal(one.observations, other.observations)
    np.testing.assert_array_equal(one.initial["state"], other.initial["state"])
