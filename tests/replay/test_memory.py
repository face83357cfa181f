"""Tests of the replay against a slow twin that walks each window step by step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit import segment_with
from numpy.typing import NDArray

from rl4sys_zmq.algorithms.offpolicy.samplers import TorchDraws
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions, TransitionBatch, n_step_columns
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Segment, TupleSpace
from rl4sys_zmq.values.observations import integer_bounds
from rl4sys_zmq.values.spaces import LeafSpace

ENDS = ("terminated", "truncated", "cut")


def make_segment(
    rewards: list[float], end: str, *, first: int = 0, start: int = 0, masks: NDArray[np.bool_] | None = None, dtype: str = "<f4"
) -> Segment:
    """Return a segment whose observations count up from `first`, so that a row shows its origin."""
    steps = len(rewards)
    rows = steps + (end != "terminated")
    return segment_with(
        steps,
        end,
        observations=np.arange(first, first + rows).reshape(rows, 1).astype(dtype),
        actions=np.arange(steps, dtype=np.int64) % 2 + start,
        rewards=np.asarray(rewards, np.float32),
        masks=masks,
        episode_id=7,
    )


def slow_target(segment: Segment, t: int, n: int, gamma: float, value: NDArray[np.float64]) -> float:
    """Return the n-step target of row `t` as in the textbook, with ``value[i]`` for the i-th observation."""
    total, factor, at = 0.0, 1.0, t
    while at < segment.steps and at < t + n:
        total += factor * float(segment.rewards[at])
        factor *= gamma
        at += 1
    if at == segment.steps and segment.terminated:
        return total
    return total + factor * float(value[at])


def _global_numpy_state() -> NDArray[np.uint32]:
    return np.asarray(np.random.get_state(legacy=False)["state"]["key"]).copy()


def draws(seed: int) -> TorchDraws:
    return TorchDraws(torch.Generator().manual_seed(seed))


def make_replay(capacity: int = 100, n_step: int = 3, **spaces: object) -> ReplayMemory:
    observation = spaces.get("observation", BoxSpace((1,)))
    action = spaces.get("action", DiscreteSpace(2))
    return ReplayMemory(observation, action, ReplayOptions(capacity=capacity, n_step=n_step, gamma=0.9))  # type: ignore[arg-type]


def everything(replay: ReplayMemory) -> TransitionBatch:
    return replay.gather(np.arange(len(replay)))


@given(
    rewards=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12),
    n=st.integers(1, 15),
    gamma=st.floats(0.0, 1.0),
    end=st.sampled_from(ENDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_targets_match_the_slow_twin(rewards: list[float], n: int, gamma: float, end: str, seed: int) -> None:
    segment = make_segment(rewards, end)
    value = np.random.default_rng(seed).normal(size=len(segment.observations))
    columns = n_step_columns(segment, n, gamma)
    fast = columns.returns + columns.discounts * value[columns.reach]
    slow = [slow_target(segment, t, n, gamma, value) for t in range(segment.steps)]
    assert columns.returns.dtype == columns.discounts.dtype == np.float32
    np.testing.assert_allclose(fast, slow, rtol=1e-5, atol=1e-4)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), capacity=st.integers(1, 20), end=st.sampled_from(ENDS))
def test_the_ring_holds_the_last_transitions(lengths: list[int], capacity: int, end: str) -> None:
    replay = make_replay(capacity, n_step=1)
    written: list[float] = []
    for index, length in enumerate(lengths):
        first = 100 * index
        replay.add(make_segment([1.0] * length, end, first=first))
        written += range(first, first + length)
    assert len(replay) == min(capacity, len(written))
    batch = replay.gather(replay.draw(400, draws(0)))
    assert set(batch.observations.ravel()) <= set(written[-capacity:])
    assert sorted(everything(replay).observations.ravel()) == written[-capacity:]
    boot = batch.discounts > 0
    np.testing.assert_array_equal(batch.successors[boot], batch.observations[boot] + 1)


def test_masks_belong_to_the_bootstrap_observation_and_come_late_or_never() -> None:
    replay = make_replay(n_step=2, action=DiscreteSpace(3))
    generator = draws(0)
    replay.add(make_segment([1.0], "terminated", first=50))
    assert replay.gather(replay.draw(4, generator)).masks is None
    masks = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], np.bool_)
    replay.add(make_segment([1.0] * 3, "cut", masks=masks))
    replay.add(make_segment([1.0], "cut", first=70))
    batch = replay.gather(replay.draw(200, generator))
    assert batch.masks is not None
    seen = {int(o): tuple(m.tolist()) for o, m in zip(batch.observations.ravel(), batch.masks, strict=True)}
    free = (True, True, True)
    assert seen == {50: free, 70: free, 0: (False, False, True), 1: free, 2: free}


def test_bytes_stay_bytes_and_doubles_become_floats() -> None:
    for dtype, kept in (("|u1", np.uint8), ("<f8", np.float32), ("<i4", np.float32)):
        replay = make_replay(observation=BoxSpace((1,), dtype))
        replay.add(make_segment([1.0] * 3, "cut", dtype=dtype))
        assert replay.gather(replay.draw(3, draws(0))).observations.dtype == kept


def test_sampling_is_uniform_and_its_own() -> None:
    replay = make_replay()
    replay.add(make_segment([1.0] * 10, "cut"))
    before = torch.get_rng_state(), _global_numpy_state()
    counts = np.bincount(replay.gather(replay.draw(20_000, draws(3))).observations.ravel().astype(int), minlength=10)
    assert np.abs(counts - 2000).max() < 250
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], _global_numpy_state())


def test_state_goes_into_a_fresh_replay_and_shares_nothing() -> None:
    replay = make_replay(capacity=6)
    for first in (0, 10):
        replay.add(make_segment([1.0, 2.0, 3.0, 4.0], "cut", first=first, masks=np.ones((5, 2), np.bool_)))
    state = replay.state()
    twin = make_replay(capacity=6)
    twin.load(state)
    for one in (replay, twin):
        one.add(make_segment([5.0], "terminated", first=20))
    ours, theirs = (one.gather(one.draw(50, draws(1))) for one in (replay, twin))
    for name in ("observations", "actions", "returns", "discounts", "successors", "masks"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert all(20 not in part["piece"].arrays["observations"] for part in state["pieces"])


@pytest.mark.parametrize("capacity", [8, 9, 200])
def test_a_full_replay_comes_back_in_a_larger_one(capacity: int) -> None:
    replay, larger, again = make_replay(7), make_replay(capacity), make_replay(capacity)
    for first in (0, 10, 20):
        replay.add(make_segment([1.0] * 4, "cut", first=first))
    larger.load(replay.state())
    assert len(larger) == 7
    expected = {11, 12, 13, 20, 21, 22, 23}
    assert set(np.asarray(larger.gather(larger.draw(300, draws(0))).observations).ravel()) == expected
    names = [part["piece"].name for part in larger.state()["pieces"]]
    state = larger.state(names)
    assert sum(part["rows"] for part in state["pieces"]) == 7, "no piece of the smaller replay hides a row"
    again.load(larger.state())
    rows = again.draw(300, draws(0))
    np.testing.assert_array_equal(again.gather(rows).observations, larger.gather(rows).observations)
    assert larger.discard(larger.draw(1, draws(0))) == []
    larger.add(make_segment([1.0] * 2, "cut", first=50))
    assert larger.discard(np.array([(12 + 1) % capacity])) == [0]
    assert {50, 51}.isdisjoint(np.asarray(larger.gather(larger.draw(300, draws(0))).observations).ravel())


def test_a_state_of_another_capacity_is_refused() -> None:
    replay = make_replay(capacity=6)
    replay.add(make_segment([1.0] * 6, "cut"))
    with pytest.raises(ConfigError, match="has 6 rows; expected at most 4"):
        make_replay(capacity=4).load(replay.state())


SPACES: dict[str, LeafSpace] = {
    "box": BoxSpace((2, 3)),
    "discrete": DiscreteSpace(3, start=4),
    "multi_discrete": MultiDiscreteSpace((3, 2), start=(1, 5)),
    "multi_binary": MultiBinarySpace(4),
}
DTYPES = {"box": np.float32, "discrete": np.int64, "multi_discrete": np.int64, "multi_binary": np.int8}


def elements(space: LeafSpace, rows: int) -> NDArray[np.generic]:
    rng, bounds = np.random.default_rng(rows), integer_bounds(space)
    if bounds is None:
        return rng.normal(size=(rows, *space.shape)).astype(np.float32)
    return rng.integers(bounds[0], bounds[1] + 1, (rows, *space.shape)).astype(space.dtype)


@pytest.mark.parametrize("kind", SPACES)
def test_every_action_space_comes_back_and_integers_count_from_zero(kind: str) -> None:
    space, first = SPACES[kind], {"discrete": 4, "multi_discrete": np.array((1, 5))}.get(kind, 0)
    actions = elements(space, 5)
    replay = make_replay(action=space)
    replay.add(replace(make_segment([1.0] * 5, "cut"), actions=actions))
    batch = replay.gather(np.array([4, 0, 4]))
    assert batch.actions.dtype == DTYPES[kind]
    np.testing.assert_array_equal(batch.actions + first, actions[[4, 0, 4]])


def test_nested_observations_come_back_in_their_form_and_through_a_state() -> None:
    space = DictSpace(
        {"z": TupleSpace((SPACES["box"], SPACES["discrete"])), "a": SPACES["multi_binary"], "b": BoxSpace((3,), "|u1")}
    )
    camera = np.arange(18, dtype=np.uint8).reshape(6, 3)
    pair = (elements(SPACES["box"], 6), elements(SPACES["discrete"], 6))
    flags = elements(SPACES["multi_binary"], 6)
    tree = {"z": pair, "a": flags, "b": camera}
    segment = replace(make_segment([1.0] * 5, "cut"), observations=tree)
    first, twin = (make_replay(observation=space, n_step=2) for _ in range(2))
    first.add(segment)
    twin.load(first.state())
    for replay in (first, twin):
        batch = replay.gather(np.array([0, 3, 4]))
        for found, rows in ((batch.observations, [0, 3, 4]), (batch.successors, [2, 5, 5])):
            assert list(found) == ["a", "b", "z"] and isinstance(found["z"], tuple)
            assert found["b"].dtype == np.uint8 and found["z"][1].dtype == np.int64
            np.testing.assert_array_equal(found["b"], camera[rows])
            np.testing.assert_array_equal(found["a"], flags[rows])
            for part, whole in zip(found["z"], pair, strict=True):
                np.testing.assert_array_equal(part, whole[rows])


def stacked(first: int, rows: int, shape: str) -> NDArray[np.uint8]:
    """Return successive stacks of 4 frames of 32 x 40 pixels. Frame ``i`` is random, but always the same."""
    frames = np.stack([np.random.default_rng(i).integers(0, 256, (32, 40), np.uint8) for i in range(first, first + rows + 3)])
    stacks = np.stack([frames[i : i + 4] for i in range(rows)])
    return stacks if shape == "first" else np.ascontiguousarray(np.moveaxis(stacks, 1, -1)) if shape == "last" else stacks[:, 0]


@pytest.mark.parametrize(("kind", "shape"), [("first", (4, 32, 40)), ("last", (32, 40, 4)), ("single", (32, 40))])
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4), capacity=st.integers(1, 120), n=st.integers(1, 5))
def test_images_come_back_and_are_stored_once(
    kind: str, shape: tuple[int, ...], lengths: list[int], capacity: int, n: int
) -> None:
    """The segments follow each other, as those of one episode do."""
    replay = make_replay(capacity, n_step=n, observation=BoxSpace(shape, "|u1", 0, 255))
    written: list[tuple[int, int]] = []  # for each transition, the first frames of its two observations
    for length in lengths:
        first = len(written)
        segment = make_segment([1.0] * length, "cut")
        replay.add(replace(segment, observations=stacked(first, length + 1, kind)))
        written += [(first + t, first + min(t + n, length)) for t in range(length)]
    held = len(replay)
    rows = (replay._ring.begin + np.arange(held)) % capacity
    batch = replay.gather(rows)
    for found, index in ((batch.observations, 0), (batch.successors, 1)):
        assert isinstance(found, np.ndarray) and found.dtype == np.uint8
        expected = np.concatenate([stacked(pair[index], 1, kind) for pair in written[-held:]])
        np.testing.assert_array_equal(found, expected)
    span = (0 if kind == "single" else 3) + n + held
    assert replay.frames <= span
    twin = make_replay(capacity, n_step=n, observation=BoxSpace(shape, "|u1", 0, 255))
    twin.load(replay.state())
    np.testing.assert_array_equal(twin.gather(rows).successors, batch.successors)
    assert twin.frames <= span


def test_removed_images_are_freed() -> None:
    replay = make_replay(20, observation=BoxSpace((32, 40), "|u1", 0, 255))
    for first in (0, 100):
        replay.add(replace(make_segment([1.0] * 5, "cut"), observations=stacked(first, 6, "single")))
    assert replay.frames == 12
    replay.discard(np.array([7]))
    assert replay.frames == 6
    expected = np.concatenate([stacked(0, 5, "single")] * 2)
    np.testing.assert_array_equal(replay.gather(np.arange(10)).observations, expected)


def test_a_state_of_another_space_is_refused() -> None:
    replay = make_replay(capacity=6)
    replay.add(make_segment([1.0] * 6, "cut"))
    for wrong, name in (
        (make_replay(action=BoxSpace((3,))), "actions"),
        (make_replay(observation=BoxSpace((40, 40))), "observations"),
    ):
        with pytest.raises(ConfigError, match=f"{name} in the replay state has shape"):
            wrong.load(replay.state())
