"""The trajectory buffer behaves like a plain list of steps with their trajectories."""

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import raising

from rl4sys_zmq.errors import Closed, ConfigError, DataError, StoreEmpty, StoreFileError
from rl4sys_zmq.serving import TrajectoryBuffer, TrajectoryBufferDataStore
from rl4sys_zmq.serving.data import (
    DataShape,
    FutureSampler,
    LatestSampler,
    PrioritySampler,
    SampledRows,
    Sampler,
    SequenceSampler,
)


def step(number: int, trajectory: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": number, "trajectory": trajectory, "next": {"id": number + 1}, **more}


def filled(count: int, capacity: int = 10, **options: Any) -> TrajectoryBuffer:
    """Return a buffer with this many steps of one trajectory."""
    buffer = TrajectoryBuffer(capacity, **options)
    buffer.batch_insert([step(i) for i in range(count)])
    return buffer


def pairs(buffer: TrajectoryBuffer) -> set[tuple[int, int]]:
    """Return the neighbours that samples have."""
    buffer.register_sample_config("pairs", {"id": SequenceSampler(begin=0, end=2)}, (0, 2))
    return {tuple(pair) for pair in buffer.sample("pairs", 200)[0]["id"].tolist()}


@dataclass
class Twin:
    """The trajectory of every item that was ever inserted, by number."""

    capacity: int
    min_length: int
    trajectories: list[int] = field(default_factory=list)

    @property
    def held(self) -> range:
        return range(max(0, len(self.trajectories) - self.capacity), len(self.trajectories))

    def mates(self, number: int) -> list[int]:
        return [i for i in self.held if self.trajectories[i] == self.trajectories[number]]

    def allowed(self, low: int, high: int) -> list[int]:
        return [
            i
            for i in self.held
            if len(self.mates(i)) >= self.min_length and all(i + k in self.mates(i) for k in range(low, high))
        ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[TrajectoryBuffer, Twin]:
    """Draw a buffer with some trajectories, inserted one by one and in batches, and its twin."""
    capacity, min_length = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    buffer = TrajectoryBuffer(capacity, seed=draw(st.integers(0, 99)), min_trajectory_length=min_length)
    twin = Twin(capacity, min_length)
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=9))
    batch: list[dict[str, Any]] = []
    ending = ""
    for trajectory, length in enumerate(lengths):
        previous, ending = ending, draw(st.sampled_from(["argument", "key", "call", "start"]))
        for t in range(length):
            row = step(len(twin.trajectories), trajectory)
            if t == 0:
                row["start_of_trajectory"] = previous == "start"
            last = t == length - 1 and trajectory < len(lengths) - 1  # the newest trajectory has not ended
            if last and ending == "key":
                row["end_of_trajectory"] = np.bool_(True)
            twin.trajectories.append(trajectory)
            if last and ending in ("argument", "call"):
                buffer.batch_insert(batch)
                batch = []
                buffer.insert(row, ending == "argument")
                if ending == "call":
                    buffer.end_trajectory()
                    buffer.end_trajectory()
            else:
                batch.append(row)
        if draw(st.booleans()):
            buffer.batch_insert(batch)
            batch = []
    buffer.batch_insert(batch)
    return buffer, twin


@given(history=histories(), low=st.integers(-3, 0), high=st.integers(1, 4), begin=st.integers(-5, 3), size=st.integers(1, 6))
def test_a_window_stays_in_its_trajectory(
    history: tuple[TrajectoryBuffer, Twin], low: int, high: int, begin: int, size: int
) -> None:
    buffer, twin = history
    samplers = {"id": LatestSampler(), "trajectory": LatestSampler(), "window": SequenceSampler(False, begin, begin + size, "id")}
    buffer.register_sample_config("windows", samplers, (low, high))
    allowed = twin.allowed(low, high)
    if not allowed:
        with pytest.raises(StoreEmpty):
            buffer.sample("windows", 1)
        return
    data, mask = buffer.sample("windows", 30)
    assert set(data["id"]) <= set(allowed)
    forced, forced_mask = buffer.sample("windows", 1, force_indices=allowed)
    assert forced["id"].tolist() == allowed
    for rows, masks in ((data, mask), (forced, forced_mask)):
        assert masks["id"].all()
        assert masks["window"].shape == rows["window"].shape == (len(rows["id"]), size)
        for index, number in enumerate(rows["id"]):
            assert rows["trajectory"][index] == twin.trajectories[number]
            mates = twin.mates(number)
            for k in range(size):
                wanted = number + begin + k
                assert masks["window"][index, k] == (wanted in mates)
                assert rows["window"][index, k] == min(max(wanted, mates[0]), mates[-1])
    refused = [i for i in range(-1, len(twin.trajectories) + 1) if i not in allowed]
    for number in refused:
        with pytest.raises(DataError, match="force_indices"):
            buffer.sample("windows", 1, force_indices=[number])


@given(history=histories(), max_future=st.none() | st.integers(1, 5), lambda_=st.none() | st.floats(0.1, 50))
def test_a_goal_is_a_later_step_of_the_same_trajectory(
    history: tuple[TrajectoryBuffer, Twin], max_future: int | None, lambda_: float | None
) -> None:
    buffer, twin = history
    kind = FutureSampler.Distribution.UNIFORM if lambda_ is None else FutureSampler.Distribution.GEOMETRIC
    buffer.register_sample_config("goals", {"id": LatestSampler(), "goal": FutureSampler(kind, max_future, lambda_, "next")})
    allowed = twin.allowed(0, 1)
    if not allowed:
        return
    data, mask = buffer.sample("goals", 1, force_indices=allowed * 3)
    goals, offsets = data["goal"]["data"]["id"] - 1, data["goal"]["offset"]
    np.testing.assert_array_equal(goals - data["id"], offsets)
    assert mask["goal"]["data"].all()
    for number, goal in zip(data["id"], goals, strict=True):
        assert goal in twin.mates(number)
        assert 0 <= goal - number < (max_future or 100)


@given(history=histories(), low=st.integers(-2, 0), high=st.integers(1, 3), data=st.data())
def test_what_is_drawn_by_priority_is_what_the_range_allows(
    history: tuple[TrajectoryBuffer, Twin], low: int, high: int, data: st.DataObject
) -> None:
    buffer, twin = history
    buffer.register_sample_config("some", {"id": LatestSampler(), "priority": PrioritySampler()}, (low, high))
    numbers = data.draw(st.lists(st.integers(0, len(twin.trajectories) - 1), max_size=20))
    priorities = data.draw(st.lists(st.floats(0, 1e6), min_size=len(numbers), max_size=len(numbers)))
    assert buffer.update_priorities(np.array(numbers, np.int64), priorities) == sum(n in twin.held for n in numbers)
    allowed = twin.allowed(low, high)
    if not allowed:
        with pytest.raises(StoreEmpty):
            buffer.sample("some", 1)
        return
    found, _ = buffer.sample("some", 25)
    assert set(found["id"]) <= set(allowed)
    np.testing.assert_array_equal(found["priority"]["indices"], found["id"])
    assert found["priority"]["weights"].max() == 1
    assert found["priority"]["weights"].min() > 0


@given(history=histories(), from_ids=st.lists(st.integers(0, 60), max_size=4))
def test_a_buffer_that_is_fed_from_another_has_its_trajectories_also_over_gaps(
    history: tuple[TrajectoryBuffer, Twin], from_ids: list[int]
) -> None:
    buffer, twin = history
    fed, last = TrajectoryBuffer(1000, min_trajectory_length=1), -1
    sources: list[Any] = []
    for jump in [*sorted(from_ids), len(twin.trajectories)]:
        first, items = buffer.read_after(last, limit=jump)
        fed.batch_insert(items)
        sources += range(first, first + len(items))
        last = max(last, first + len(items) - 1)
    assert sources == list(twin.held)
    fed.register_sample_config("all", {"window": SequenceSampler(begin=-30, end=30, source="trajectory")})
    data, mask = fed.sample("all", 1, force_indices=np.arange(len(sources)))
    for index, number in enumerate(sources):
        assert set(data["window"][index]) == {twin.trajectories[number]}
        assert mask["window"][index].sum() == len(twin.mates(number))


def test_steps_on_both_sides_of_a_loss_are_not_neighbours() -> None:
    edge, trainer = filled(4, capacity=4), TrajectoryBuffer(100, min_trajectory_length=1)
    trainer.batch_insert(edge.read_after(-1)[1])
    edge.batch_insert([step(i) for i in range(4, 10)])
    first, items = edge.read_after(3)
    assert first == 6  # 4 and 5 were overwritten before they were read
    trainer.batch_insert(items)
    assert pairs(trainer) == {(0, 1), (1, 2), (2, 3), (6, 7), (7, 8), (8, 9)}


def test_an_end_that_came_after_its_step_was_read_is_told_with_the_next() -> None:
    edge, trainer = filled(2), TrajectoryBuffer(10)
    trainer.batch_insert(edge.read_after(-1)[1])
    edge.end_trajectory()
    assert edge.get_latest_data(0)[0]["end_of_trajectory"]
    edge.batch_insert([step(2), step(3)])
    trainer.batch_insert(edge.read_after(1)[1])
    assert pairs(trainer) == {(0, 1), (2, 3)}


def test_steps_are_drawn_uniformly_from_all_that_are_allowed() -> None:
    buffer = TrajectoryBuffer(40, seed=1)
    for trajectory, length in enumerate((9, 1, 5, 2, 12)):
        buffer.batch_insert([step(0, trajectory) for _ in range(length)])
        buffer.end_trajectory()
    buffer.register_sample_config("middle", {"trajectory": LatestSampler()}, (-1, 2))
    counts = Counter(buffer.sample("middle", 40_000)[0]["trajectory"].tolist())
    shares = {0: 7, 2: 3, 4: 10}
    assert counts.keys() == shares.keys()
    for trajectory, share in shares.items():
        assert counts[trajectory] / 40_000 == pytest.approx(share / 20, abs=0.01)


@pytest.mark.parametrize(("lambda_", "max_future"), [(None, None), (None, 4), (3.0, None), (0.5, 6), (100.0, 5)])
def test_goals_have_the_distribution_of_the_slow_twin(lambda_: float | None, max_future: int | None) -> None:
    kind = FutureSampler.Distribution
    sampler = FutureSampler(kind.UNIFORM if lambda_ is None else kind.EXPONENTIAL, max_future, lambda_)
    count, length = 40_000, 8
    many = np.ones(count, np.int64)
    draw = sampler.draw(2 * many, 0 * many, (2 + length) * many, np.random.default_rng(5))
    choices = min(length, max_future or length)
    shares = [1.0 if lambda_ is None else math.exp(-ahead / lambda_) for ahead in range(choices)]
    assert draw.offset is not None
    found = np.bincount(draw.offset, minlength=choices) / count
    np.testing.assert_allclose(found, np.array(shares) / sum(shares), atol=0.012)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (0.6, 0.4), (1.0, 1.0)])
def test_priorities_have_the_distribution_and_the_weights_of_the_paper(alpha: float, beta: float) -> None:
    buffer = filled(20, 16, seed=2, min_trajectory_length=1)
    epsilon = 0.01
    sampler = PrioritySampler(alpha, beta, epsilon)
    buffer.register_sample_config("per", {"id": LatestSampler(), "priority": sampler}, (0, 2))
    priorities = {i: float(i % 5) for i in range(4, 20)}
    buffer.update_priorities(list(priorities), list(priorities.values()))
    data, _ = buffer.sample("per", 60_000)
    allowed = range(4, 19)
    masses = np.array([(priorities[i] + epsilon) ** alpha for i in allowed])
    probabilities = masses / masses.sum()
    found = np.bincount(data["id"], minlength=20)[4:19] / 60_000
    np.testing.assert_allclose(found, probabilities, atol=0.008)
    weights = (len(allowed) * probabilities) ** -beta
    drawn = weights[data["id"] - 4]
    np.testing.assert_allclose(data["priority"]["weights"], drawn / drawn.max(), rtol=1e-5)


def test_new_steps_have_the_greatest_priority_so_far_and_overwritten_ones_none() -> None:
    buffer = TrajectoryBuffer(8, seed=3, min_trajectory_length=1)
    buffer.register_sample_config("per", {"id": LatestSampler(), "priority": PrioritySampler(alpha=1.0)})
    buffer.batch_insert([step(i) for i in range(8)])
    assert buffer.update_priorities([0, 7], [1000.0, 50.0]) == 2
    buffer.insert(step(8))
    assert buffer.update_priorities([0, 1], [1e9, 2.0]) == 1  # 0 was overwritten by 8
    counts = np.bincount(buffer.sample("per", 20_000)[0]["id"], minlength=9) / 20_000
    assert counts[0] == 0
    assert counts[8] == pytest.approx(1000 / 1057, abs=0.01)


def test_the_only_allowed_steps_are_found_however_small_their_priority() -> None:
    buffer = TrajectoryBuffer(3000, seed=4, min_trajectory_length=3)
    for i in range(2900):
        buffer.insert(step(i), end_of_trajectory=i != 1000 and i != 1001)  # a single trajectory of three steps
    buffer.register_sample_config("per", {"id": LatestSampler(), "priority": PrioritySampler()}, (-1, 2))
    buffer.update_priorities(np.arange(2900), np.full(2900, 1e6))
    buffer.update_priorities([1001], [0.0])
    assert set(buffer.sample("per", 10)[0]["id"]) == {1001}


@pytest.mark.parametrize(
    ("indices", "priorities", "key"),
    [
        ([0], [1.0, 2.0], "priorities"),
        ([0.5], [1.0], "indices"),
        ([[0]], [[1.0]], "indices"),
        ([7], [1.0], "indices"),
        ([-1], [1.0], "indices"),
        ([0], [-1.0], "priorities"),
        ([0], [np.nan], "priorities"),
        ([0, 1], [1.0, np.inf], "priorities"),
        ([0], [1e308], "priorities"),
        ([0], ["a"], "priorities"),
    ],
)
def test_wrong_priorities_are_refused_and_none_is_set(indices: Any, priorities: Any, key: str) -> None:
    buffer = filled(2, 8, seed=3)
    with pytest.raises(ConfigError, match="PrioritySampler"):
        buffer.update_priorities([0], [1.0])
    buffer.register_sample_config("per", {"priority": PrioritySampler(alpha=1.0)})
    with raising(DataError, key=key):
        buffer.update_priorities(indices, priorities)
    assert buffer.sample("per", 50)[0]["priority"]["weights"].tolist() == [1.0] * 50


def test_a_transform_has_the_last_word() -> None:
    buffer = filled(4)

    def halves(data: dict[str, Any], mask: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        assert len(buffer)  # the lock is free
        return {"observations": data["id"][:, 0], "next_observations": data["id"][:, 1]}, {"valid": mask["id"].all(axis=1)}

    buffer.register_sample_config("pairs", {"id": SequenceSampler(begin=0, end=2)}, (0, 2), halves)
    data, mask = buffer.sample("pairs", 6)
    np.testing.assert_array_equal(data["next_observations"], data["observations"] + 1)
    assert mask["valid"].all()


def test_one_row_can_be_squeezed_and_a_dict_is_taken_whole() -> None:
    buffer = TrajectoryBuffer(10)
    buffer.batch_insert([step(i, camera={"left": np.full(2, i), "depth": {"far": i}}) for i in range(4)])
    buffer.register_sample_config(
        "rows",
        {"before": SequenceSampler(True, -1, 0, "id"), "camera": LatestSampler(), "far": LatestSampler("camera/depth/far")},
    )
    data, mask = buffer.sample("rows", 1, force_indices=[0, 3])
    assert data["before"].tolist() == [0, 2]
    assert mask["before"].tolist() == [False, True]
    assert data["camera"]["left"].tolist() == [[0, 0], [3, 3]]
    assert data["camera"]["depth"]["far"].tolist() == data["far"].tolist() == [0, 3]


class Wild(Sampler):
    """A sampler that leaves its trajectory."""

    def draw(self, anchors: Any, begins: Any, ends: Any, rng: np.random.Generator) -> SampledRows:
        return SampledRows(ends, np.ones(ends.shape, np.bool_))


def test_wrong_configs_are_refused() -> None:
    buffer = filled(3)
    one = {"id": LatestSampler()}
    for samplers, sample_range, key in (
        (one, (1, 2), "sample_range"),
        (one, (0, 0), "sample_range"),
        (one, (0, 1.5), "sample_range"),
        (one, (0, 1, 2), "sample_range"),
        (one, ("0", "1"), "sample_range"),
        (one, (0, 1 << 70), "sample_range"),
        (one, None, "sample_range"),
        ({"id": 5}, (0, 1), "id"),
        (None, (0, 1), "config"),
        ({"speed": LatestSampler()}, (0, 1), "speed"),
        ({"a": LatestSampler("next/i")}, (0, 1), "a"),
        ({"a": PrioritySampler(), "b": PrioritySampler()}, (0, 1), "config"),
    ):
        with raising(ConfigError, key=key):
            buffer.register_sample_config("config", samplers, sample_range)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no sample config 'config'"):
        buffer.sample("config", 1)
    buffer.register_sample_config("wild", {"id": Wild()})
    with pytest.raises(ConfigError, match="Wild chose rows outside"):
        buffer.sample("wild", 1)
    buffer.register_sample_config("per", {"p": PrioritySampler(alpha=0.5)})
    with pytest.raises(ConfigError, match="alpha"):
        buffer.register_sample_config("other", {"p": PrioritySampler(alpha=0.6)})
    early = TrajectoryBuffer(10)
    early.register_sample_config("late", {"speed": LatestSampler()})
    with pytest.raises(StoreEmpty):
        early.sample("late", 1)
    early.batch_insert([step(i) for i in range(3)])
    with pytest.raises(ConfigError, match="speed"):
        early.sample("late", 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SequenceSampler(begin=1, end=1),
        lambda: SequenceSampler(squeeze=True, begin=0, end=2),
        lambda: FutureSampler("uniform"),  # type: ignore[arg-type]
        lambda: SequenceSampler(end=1.5),  # type: ignore[arg-type]
        lambda: SequenceSampler(begin="0"),  # type: ignore[arg-type]
        lambda: FutureSampler(max_future=0),
        lambda: FutureSampler(max_future=1.5),  # type: ignore[arg-type]
        lambda: FutureSampler(FutureSampler.Distribution.GEOMETRIC, lambda_="1"),  # type: ignore[arg-type]
        lambda: FutureSampler(FutureSampler.Distribution.GEOMETRIC),
        lambda: FutureSampler(FutureSampler.Distribution.GEOMETRIC, lambda_=0.0),
        lambda: FutureSampler(lambda_=2.0),
        lambda: PrioritySampler(alpha=-1),
        lambda: PrioritySampler(alpha="a"),  # type: ignore[arg-type]
        lambda: PrioritySampler(beta=math.nan),
        lambda: PrioritySampler(epsilon=0),
        lambda: TrajectoryBuffer(10, min_trajectory_length=0),
        lambda: TrajectoryBuffer(10, [5]),  # type: ignore[list-item]
        lambda: TrajectoryBuffer(10, [DataShape(5)]),  # type: ignore[arg-type]
        lambda: TrajectoryBuffer(10, 5),  # type: ignore[arg-type]
        lambda: TrajectoryBuffer(10, [DataShape("a"), DataShape("a")]),
        lambda: TrajectoryBuffer(10, [DataShape("a"), DataShape("a/b")]),
        lambda: TrajectoryBuffer(10, [DataShape("end_of_trajectory", (), "bool")]),  # and no other
        lambda: TrajectoryBuffer(10, [DataShape("start_of_trajectory")]),
        lambda: TrajectoryBuffer(10, use_jax=True),
        lambda: TrajectoryBuffer(10, device="cpu:0"),  # type: ignore[arg-type]
        lambda: TrajectoryBuffer.load("no.npz", use_jax=True),
        lambda: LatestSampler(use_jax=True),
        lambda: TrajectoryBuffer(10, [DataShape("a", dtype="object")]),
        lambda: TrajectoryBuffer(10, [DataShape("a", (-1,))]),
        lambda: TrajectoryBuffer(10, []),
    ],
)
def test_wrong_arguments(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ([1], ""),
        ({"end_of_trajectory": True}, ""),
        (step(1, end_of_trajectory="yes"), "end_of_trajectory"),
        (step(1, end_of_trajectory=[True]), "end_of_trajectory"),
        (step(1, start_of_trajectory=2), "start_of_trajectory"),
        ({"id": 1}, "next/id"),
        (step(1.5), "id"),  # type: ignore[arg-type]
        (step(1, speed=1), "speed"),
    ],
)
def test_a_mistake_is_refused_by_its_key_and_nothing_is_stored(data: Any, key: str) -> None:
    for shapes in (None, [DataShape(name, (), "int64") for name in ("id", "trajectory", "next/id")]):
        buffer = TrajectoryBuffer(10, shapes)
        buffer.insert(step(0))
        inserts: list[tuple[Callable[[Any], object], Any]] = [(buffer.insert, data), (buffer.batch_insert, [step(1), data])]
        for insert, argument in inserts:
            with raising(DataError, key=key):
                insert(argument)
        assert len(buffer) == 1


def test_the_callers_dict_stays_as_it_is() -> None:
    row = step(0, end_of_trajectory=True)
    TrajectoryBuffer(3).insert(row)
    assert row["end_of_trajectory"] is True


@given(history=histories())
def test_a_saved_buffer_comes_back(tmp_path_factory: pytest.TempPathFactory, history: tuple[TrajectoryBuffer, Twin]) -> None:
    buffer, twin = history
    path = tmp_path_factory.mktemp("saved") / "buffer.npz"
    buffer.save(path)
    loaded = TrajectoryBuffer.load(path, seed=1)
    assert loaded.capacity == buffer.capacity
    assert loaded.oldest_data_id() == buffer.oldest_data_id()
    for one in (buffer, loaded):
        one.insert(step(len(twin.trajectories), -1))
        one.insert(step(len(twin.trajectories) + 1, -1), True)
    for ours, theirs in zip(buffer.get_latest_data(-1), loaded.get_latest_data(-1), strict=True):
        assert ours == theirs
    samplers = {"window": SequenceSampler(begin=-2, end=3, source="id")}
    for one in (buffer, loaded):
        one.register_sample_config("windows", samplers)
    allowed = Twin(twin.capacity, twin.min_length, twin.trajectories + [twin.trajectories[-1]] * 2).allowed(0, 1)
    if allowed:
        one_sample, other_sample = (one.sample("windows", 1, allowed) for one in (buffer, loaded))
        np.testing.assert_array_equal(one_sample[0]["window"], other_sample[0]["window"])
        np.testing.assert_array_equal(one_sample[1]["window"], other_sample[1]["window"])


def test_files_that_are_none_of_ours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFileError, match="No such file"):
        TrajectoryBuffer.load(tmp_path / "missing.npz")
    buffer = filled(5)
    buffer.save(path := tmp_path / "buffer.npz")
    assert list(tmp_path.iterdir()) == [path]
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"text", b""):
        path.write_bytes(content)
        with pytest.raises(StoreFileError, match="is not a saved trajectory buffer"):
            TrajectoryBuffer.load(path)
    arrays: dict[str, Any] = {"a": np.zeros(3), "meta/format": np.array([{}], dtype=object)}
    for name, array in arrays.items():
        np.savez(path, **{name: array})
        with pytest.raises(StoreFileError):
            TrajectoryBuffer.load(path)
    with pytest.raises(StoreFileError, match="cannot be written"):
        buffer.save(tmp_path / "no" / "such.npz")
    buffer.close()
    with pytest.raises(Closed):
        buffer.save(path)


def test_a_file_whose_headers_are_damaged_is_refused(tmp_path: Path) -> None:
    buffer = filled(5)
    buffer.save(path := tmp_path / "buffer.npz")
    whole = path.read_bytes()
    refused = 0
    for header, size in ((whole.index(b"PK\x03\x04"), 26), (whole.index(b"PK\x01\x02"), 46)):
        for bit in range(8 * header, 8 * (header + size)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                assert len(TrajectoryBuffer.load(path)) == 5  # the changed bit is in a date or another field without effect
            except StoreFileError:
                refused += 1
    assert refused > 100


def test_agentlaces_arguments_that_change_nothing_are_accepted_and_others_name_the_remedy() -> None:
    buffer = TrajectoryBuffer(10, [DataShape("a")], 0, 2, None, False)
    buffer.register_sample_config("default", {"a": LatestSampler(None, False)})
    buffer.batch_insert([{"a": 1.0}] * 3)
    assert buffer.sample(sampler_name="default", batch_size=2)[0]["a"].tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match=r"use_jax is True, and the steps are numpy arrays; .* jax.device_put"):
        TrajectoryBuffer(10, use_jax=True)


@given(histories())
def test_the_members_of_agentlaces_buffer(history: tuple[TrajectoryBuffer, Twin]) -> None:
    buffer, twin = history
    dataset, metadata = buffer.dataset, buffer.metadata
    assert buffer.size == len(buffer) == len(twin.held) and dataset.keys() == {"id", "trajectory", "next/id"}
    assert all(len(column) == twin.capacity for column in (*dataset.values(), *metadata.values()))
    assert not any(column.flags.writeable for column in dataset.values())
    newest = twin.trajectories[-1]
    for number in twin.held:
        place, mine = number % twin.capacity, twin.trajectories[number]
        mates = [i for i, one in enumerate(twin.trajectories) if one == mine]
        assert (dataset["id"][place], dataset["next/id"][place]) == (number, number + 1)
        found = {name: column[place].item() for name, column in metadata.items()}
        assert found == {
            "seq_id": number,
            "ep_begin": mates[0],
            "ep_end": -1 if mine == newest else mates[-1] + 1,
            "trajectory_id": mine,
            "trajectory_begin_flag": number == mates[0],
        }
    empty = set(range(twin.capacity)) - {number % twin.capacity for number in twin.held}
    assert all(metadata[name][place] == -1 for place in empty for name in ("seq_id", "ep_begin", "ep_end", "trajectory_id"))
    assert not metadata["trajectory_begin_flag"][list(empty)].any()


@given(histories())
def test_a_sampler_of_the_end_of_trajectories(history: tuple[TrajectoryBuffer, Twin]) -> None:
    buffer, twin = history
    buffer.register_sample_config(
        "ends",
        {"end_of_trajectory": LatestSampler(), "next": SequenceSampler(begin=0, end=2, source="end_of_trajectory")},
    )
    numbers = twin.allowed(0, 1)
    if numbers:
        data, mask = buffer.sample("ends", 1, force_indices=numbers)
        ended = [twin.trajectories[i] != twin.trajectories[-1] and i == twin.mates(i)[-1] for i in numbers]
        assert data["end_of_trajectory"].dtype == np.bool_ and data["end_of_trajectory"].tolist() == ended
        assert mask["end_of_trajectory"].all() and data["next"].shape == (len(numbers), 2)


def test_the_buffer_of_agentlaces_online_example() -> None:
    """Its shapes and its sample config name the flag, and it passes the flag both ways."""
    shapes = [DataShape("observations", (3,), np.float32), DataShape("end_of_trajectory", (), dtype="bool")]  # type: ignore[arg-type]
    buffer = TrajectoryBufferDataStore(50, shapes, None, 1, 2)
    buffer.register_sample_config(
        "training",
        samplers={
            "observations": SequenceSampler(squeeze=False, begin=0, end=2, source="observations"),
            "end_of_trajectory": LatestSampler(),
        },
        sample_range=(0, 2),
    )
    for number in range(20):
        last = number % 5 == 4
        buffer.insert({"observations": np.full(3, number), "end_of_trajectory": last}, end_of_trajectory=last)
    data, mask = buffer.sample("training", 64)
    assert data["observations"].shape == (64, 2, 3) and mask["observations"].all()
    assert (data["observations"][:, 1] == data["observations"][:, 0] + 1).all() and not data["end_of_trajectory"].any()


def test_a_thread_that_samples_never_sees_two_trajectories_in_one_window() -> None:
    buffer = TrajectoryBuffer(64, seed=0)

    def insert() -> None:
        number = 0
        for trajectory in range(700):
            length = 1 + trajectory % 11
            buffer.batch_insert([step(number + t, trajectory) for t in range(length - 1)])
            buffer.insert(step(number + length - 1, trajectory), end_of_trajectory=True)
            number += length

    windows = {"id": SequenceSampler(begin=-2, end=3), "trajectory": SequenceSampler(begin=-2, end=3)}
    buffer.register_sample_config("windows", windows)
    buffer.register_sample_config("per", {**windows, "p": PrioritySampler()}, (-1, 1))
    thread = threading.Thread(target=insert)
    thread.start()
    rounds = 0
    while thread.is_alive() or rounds < 5:
        try:
            for name in ("windows", "per"):
                data, mask = buffer.sample(name, 32)
                assert (data["trajectory"] == data["trajectory"][:, 2:3]).all()
                ids = np.where(mask["id"], data["id"] - data["id"][:, 2:3], np.arange(-2, 3))
                assert (ids == np.arange(-2, 3)).all()
            buffer.update_priorities(data["p"]["indices"], np.abs(data["p"]["weights"]))
        except StoreEmpty:
            continue  # the first trajectory is still too short
        rounds += 1
    thread.join()
