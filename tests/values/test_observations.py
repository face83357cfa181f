"""The comparison of a configured space with that of an environment."""

import pytest

from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Space, TupleSpace
from rl4sys_zmq.values.observations import have_same_form

SAME: list[tuple[Space, Space]] = [
    (BoxSpace((2,)), BoxSpace((2,), "<f8", -1.0, 1.0)),
    (DiscreteSpace(3), DiscreteSpace(3, dtype="<i4")),
    (DictSpace({"a": BoxSpace((2,)), "b": DiscreteSpace(3)}), DictSpace({"b": DiscreteSpace(3), "a": BoxSpace((2,), high=1.0)})),
]
DIFFERENT: list[tuple[Space, Space]] = [
    (BoxSpace((2,)), BoxSpace((3,))),
    (BoxSpace((2,)), MultiBinarySpace(2)),
    (DiscreteSpace(3), DiscreteSpace(4)),
    (DiscreteSpace(3), DiscreteSpace(3, start=5)),
    (MultiDiscreteSpace((3, 2)), MultiDiscreteSpace((3, 2), start=(0, 5))),
    (MultiDiscreteSpace((3, 2)), MultiDiscreteSpace((2, 3))),
    (MultiDiscreteSpace((3, 2)), MultiBinarySpace(2)),
    (TupleSpace((DiscreteSpace(3),)), DiscreteSpace(3)),
    (TupleSpace((DiscreteSpace(3),)), TupleSpace((DiscreteSpace(3), DiscreteSpace(3)))),
    (DictSpace({"a": DiscreteSpace(3)}), DictSpace({"b": DiscreteSpace(3)})),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_bounds_dtypes_and_the_order_of_keys_can_differ(one: Space, other: Space) -> None:
    assert have_same_form(one, other) and have_same_form(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_structures_shapes_and_values_of_integers_cannot_differ(one: Space, other: Space) -> None:
    assert not have_same_form(one, other) and not have_same_form(other, one)
