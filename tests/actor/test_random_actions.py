"""Actions of an actor without a policy: random ones, of which every element of a Box can occur, and the idle action."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.actor.acting import _random, idle_action
from rl4sys_zmq.policies import RandomSource
from rl4sys_zmq.values import BoxSpace, PolicySpec, TensorSpec


def spec_of(space: BoxSpace) -> PolicySpec:
    return PolicySpec(BoxSpace((1,)), space, kind="none", tensors=(TensorSpec("n", (0,)),))


def drawn(space: BoxSpace, count: int) -> Any:
    spec, sampler = spec_of(space), RandomSource(1)
    return np.stack([_random(spec, None, sampler) for _ in range(count)])


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (BoxSpace((3,), "|i1", 0, 1), [0, 1]),
        (BoxSpace((3,), "<i8", -1, 1), [-1, 0, 1]),
        (BoxSpace((2, 2), "|b1", 0, 1), [False, True]),
        (BoxSpace((3,), "|u1", 254, 255), [254, 255]),
        (BoxSpace((3,), "<i2", -2.5, -0.5), [-2, -1]),
        (BoxSpace((), "<i4", 7, 7), [7]),
    ],
)
def test_all_integers_of_a_box_are_equally_likely(space: BoxSpace, values: list[Any]) -> None:
    actions = drawn(space, 600)
    assert actions.dtype == space.dtype and actions.shape == (600, *space.shape)
    found, counts = np.unique(actions, return_counts=True)
    assert found.tolist() == values
    assert counts / actions.size == pytest.approx(np.full(len(values), 1 / len(values)), abs=0.06)


@pytest.mark.parametrize("dtype", ["<i8", "<u8"])
def test_the_widest_integers_do_not_wrap_around(dtype: str) -> None:
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    actions = drawn(BoxSpace((2,), dtype, low, high), 300)
    assert actions.dtype == dtype
    assert 0.4 < np.mean(actions.astype(float) > low + (float(high) - low) / 2) < 0.6


def test_an_integer_without_a_bound_is_near_the_other_bound_or_zero() -> None:
    actions = drawn(BoxSpace((2,), "<i4", (-np.inf, 3.0), np.inf), 300)
    assert len(np.unique(actions[:, 0])) > 3 and np.abs(actions[:, 0]).max() < 9
    assert actions[:, 1].min() == 3


def test_the_numbers_of_a_box_of_floats_are_between_its_bounds() -> None:
    actions = drawn(BoxSpace((2,), low=(-1.0, 5.0), high=(1.0, 6.0)), 300)
    assert (actions >= [-1, 5]).all() and (actions <= [1, 6]).all()
    assert actions.mean(axis=0) == pytest.approx([0.0, 5.5], abs=0.15)


@pytest.mark.filterwarnings("error")
def test_the_numbers_of_the_widest_box_of_floats_are_between_its_bounds() -> None:
    """The width of such a box, and the sum of its bounds, are too large for a float64."""
    low, high = (-1.7e308, 1e308), (1.7e308, 1.7e308)
    space = BoxSpace((2,), "<f8", low, high)
    actions = drawn(space, 300)
    assert (actions >= low).all() and (actions <= high).all()
    assert np.mean(actions / 1e308, axis=0) == pytest.approx([0.0, 1.35], abs=0.15)
    assert idle_action(spec_of(space)).tolist() == [0.0, pytest.approx(1.35e308)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("space", "action"),
    [
        (BoxSpace((2,), low=(-np.inf, 3.0), high=np.inf), [0.0, 3.0]),
        (BoxSpace((2,), "<i4", (2.5, -7.0), (np.inf, -2.0)), [3, -4]),
    ],
)
def test_the_idle_action_is_in_the_box(space: BoxSpace, action: list[float]) -> None:
    assert idle_action(spec_of(space)).tolist() == action
