"""The features of observations of every kind of space."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ObservationError
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    TupleSpace,
    feature_size,
    observation_space_from,
)
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of

gym = pytest.importorskip("gymnasium")

TREE = DictSpace(
    {
        "speed": BoxSpace((2,), "<f8"),
        "place": TupleSpace((DiscreteSpace(3, start=1), MultiDiscreteSpace((2, 3), start=(0, -1)))),
        "doors": MultiBinarySpace((2, 2)),
        "pixels": BoxSpace((1, 2), "|u1", low=0.0, high=255.0),
    }
)
OBSERVATION: dict[str, Any] = {
    "speed": np.array([0.5, -1.5]),
    "place": (np.array(3), np.array([1, 0])),
    "doors": np.array([[0, 1], [1, 1]], np.int8),
    "pixels": np.array([[7, 255]], np.uint8),
}


def test_features_follow_each_other_in_the_order_of_sorted_keys() -> None:
    layout = feature_layout(TREE)
    doors, pixels, place, speed = [0, 1, 1, 1], [7, 255], [0, 0, 1, 0, 1, 0, 1, 0], [0.5, -1.5]
    assert layout.one(OBSERVATION).tolist() == [*doors, *pixels, *place, *speed]
    assert layout.continuous().tolist() == [False] * 4 + [True] * 2 + [False] * 8 + [True] * 2
    assert layout.size == feature_size(TREE) == 16


@pytest.mark.parametrize(
    "given",
    [
        gym.spaces.Discrete(5, start=-2),
        gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 1]])),
        gym.spaces.MultiBinary(3),
        gym.spaces.Box(-1.0, 1.0, (2, 3)),
        gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,)), b=gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiBinary(2)))),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_batch_has_the_features_of_each_observation_which_are_gymnasiums(given: Any) -> None:
    space = observation_space_from(given)
    layout = feature_layout(space)
    given.seed(3)
    samples = [given.sample() for _ in range(6)]
    trees = [space.to_tree(sample) for sample in samples]
    batch = layout.batch(leaves_of(space).stack(trees))
    np.testing.assert_array_equal(batch, [layout.one(tree) for tree in trees])
    np.testing.assert_array_equal(batch, [gym.spaces.flatten(given, sample) for sample in samples])
    assert batch.dtype == np.float32


def test_contiguous_numbers_of_a_box_are_not_copied() -> None:
    own = np.zeros((4, 2, 3), np.float32)
    assert feature_layout(BoxSpace((2, 3))).batch(own).ctypes.data == own.ctypes.data


def test_the_layout_of_a_huge_space_takes_no_memory() -> None:
    assert feature_layout(DiscreteSpace(1 << 60)).size == 1 << 60
    assert not feature_layout(DiscreteSpace(1 << 60)).has_continuous


@pytest.mark.parametrize("wrong", [0, 4])
def test_an_integer_outside_its_space_is_refused(wrong: int) -> None:
    place = (np.array(wrong), np.array([1, 0]))
    layout = feature_layout(TREE)
    with pytest.raises(ObservationError, match=r"observations\['place'\]\[0\] is outside"):
        layout.one({**OBSERVATION, "place": place})
    with pytest.raises(ObservationError, match=r"observations\['place'\]\[0\] is outside"):
        layout.batch(_stacked(place))


def _stacked(place: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {key: np.stack([leaf]) for key, leaf in OBSERVATION.items() if key != "place"}
    return {**rows, "place": tuple(np.stack([leaf]) for leaf in place)}


@pytest.mark.parametrize("dtype", ["|u1", "<u8", "<i2", "<i8"])
def test_integers_of_every_dtype_are_one_hot(dtype: str) -> None:
    layout = feature_layout(MultiDiscreteSpace((3, 4), dtype=dtype))
    given = np.array([[1, 2], [0, 3]], dtype)
    assert layout.one(given[0]).tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert layout.batch(given).tolist() == [[0, 1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 1]]
    for bad in (np.array([1, 4], dtype), np.array([np.iinfo(dtype).max, 0], dtype)):
        with pytest.raises(ObservationError, match="outside"):
            layout.one(bad)
