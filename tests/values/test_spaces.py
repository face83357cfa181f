"""Spaces: the elements that they accept, their texts, and the conversion of Gymnasium's spaces."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import DTYPES, BoxSpace, DiscreteSpace, space_from, space_to_json
from rl4sys_zmq.values.spaces import MAX_ELEMENTS, MultiBinarySpace


def test_a_space_of_ours_is_itself() -> None:
    space = DiscreteSpace(3)
    assert space_from(space) is space


def test_what_a_space_says() -> None:
    box = BoxSpace((2, 3), "<f4", -1.0, (1.0, 2.0, 3.0, 4.0, 5.0, np.inf))
    assert box.size == 6
    assert not box.bounded
    assert box.low_array().tolist() == [[-1] * 3] * 2
    assert box.high_array()[1, 1] == 5
    assert BoxSpace((2,), low=0.0, high=1.0).bounded
    assert BoxSpace(()).size == 1
    assert (DiscreteSpace(4).shape, DiscreteSpace(4).dtype) == ((), "<i8")


@pytest.mark.parametrize("form", [list, np.array])
def test_bounds_of_a_box_can_be_lists_and_arrays(form: Callable[..., Any]) -> None:
    space = BoxSpace((2,), low=form([-1.0, 0.0]), high=form([1.0, 2.0]))
    assert space == BoxSpace((2,), low=(-1.0, 0.0), high=(1.0, 2.0))
    assert hash(space) == hash(BoxSpace((2,), low=(-1.0, 0.0), high=(1.0, 2.0)))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: BoxSpace((2,), "<U4"), "dtype"),
        (lambda: BoxSpace((2,), "|O"), "dtype"),
        (lambda: BoxSpace((2,), ">f4"), "dtype"),
        (lambda: space_from(BoxSpace((0,))), "shape"),
        (lambda: BoxSpace((-1,)), "shape"),
        (lambda: BoxSpace((True,)), "shape"),
        (lambda: BoxSpace((2.0,)), "shape"),  # type: ignore[arg-type]
        (lambda: space_from(BoxSpace((1,) * 8)), "shape"),
        (lambda: BoxSpace((MAX_ELEMENTS + 1,)), "shape"),
        (lambda: BoxSpace((2,), low=(1.0,)), "low"),
        (lambda: BoxSpace((2,), high=(1.0, 2.0, 3.0)), "high"),
        (lambda: BoxSpace((2,), low=1.0, high=0.0), "low"),
        (lambda: BoxSpace((2,), low=float("nan")), "low"),
        (lambda: DiscreteSpace(2.0), "n"),  # type: ignore[arg-type]
        (lambda: DiscreteSpace(True), "n"),
        (lambda: DiscreteSpace(2, "0"), "start"),  # type: ignore[arg-type]
        (lambda: space_from({}), "type"),
        (lambda: space_from({"type": "Tuple", "spaces": []}), "action_space"),
        (lambda: space_from(MultiBinarySpace(0)), "shape"),
        (lambda: space_from({"type": [1]}), "type"),
        (lambda: space_from({"type": np.zeros(2)}), "type"),
        (lambda: space_from({"type": "Box", "shape": [2], "dtype": "f4,f4"}), "dtype"),
        (lambda: space_from({"type": "Box", "shape": [2], "dtype": "(1,"}), "dtype"),
        (lambda: space_from({"type": "Box", "shape": [2], "dtype": ["a"]}), "dtype"),
        (lambda: space_from({"type": "Box", "shape": [2], "colour": 1}), "colour"),
        (lambda: space_from({"type": "Discrete", "n": 2, 3: 1}), None),
        (lambda: space_from({"type": "Box"}), ""),
        (lambda: space_from({"type": "Box", "shape": 2}), ""),
        (lambda: space_from({"type": "Box", "shape": [2.0]}), ""),
        (lambda: space_from({"type": "Box", "shape": [2], "low": "low"}), ""),
        (lambda: space_from({"type": "Box", "shape": [2], "low": {}}), ""),
        (lambda: space_from({"type": "Discrete"}), ""),
        (lambda: space_from({"type": "Discrete", "n": "2"}), ""),
        (lambda: space_from("Box"), ""),
        (lambda: space_from(None), ""),
    ],
)
def test_other_spaces_are_refused_by_key(make: Callable[..., Any], key: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert key is None or caught.value.key == key


def test_names_of_dtypes_are_looked_up() -> None:
    for dtype in DTYPES:
        for name in (dtype, np.dtype(dtype).name):
            assert space_from({"type": "Box", "shape": [1], "dtype": name}).dtype == dtype


def test_infinite_bounds_have_names() -> None:
    form = space_to_json(BoxSpace((2,), low=(-np.inf, 0.0), high=np.inf))
    assert form == {"type": "Box", "shape": [2], "dtype": "float32", "low": ["-inf", 0.0]}


def test_spaces_by_duck_typing_need_no_gymnasium() -> None:
    box = type("Box", (), {"low": np.zeros(2, ">f4"), "high": np.ones(2, ">f4")})
    assert space_from(box()) == BoxSpace((2,), "<f4", 0.0, 1.0)
    discrete = type("Discrete", (), {"n": np.int64(3)})
    assert space_from(discrete()) == DiscreteSpace(3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_bounds_of_a_box_in_a_file_are_those_of_gymnasium(dtype: str) -> None:
    """Gymnasium rounds the bounds to the dtype of the box. A learner's file and an actor's environment must agree."""
    gym = pytest.importorskip("gymnasium")
    low, high = [-1.2, -0.07], [0.6, 0.07]
    given = gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
    written = space_from({"type": "Box", "shape": [2], "dtype": dtype, "low": low, "high": high})
    assert written == space_from(given) and hash(written) == hash(space_from(given))
    document = space_to_json(written)
    assert document == space_to_json(space_from(given))
    assert space_from(json.loads(json.dumps(document))) == written
    one = space_from({"type": "Box", "shape": [2], "dtype": dtype, "low": -0.1, "high": 0.1})
    assert one == space_from(gym.spaces.Box(np.full(2, -0.1, dtype), np.full(2, 0.1, dtype), dtype=dtype))


def test_a_bound_beyond_the_dtype_of_a_box_is_infinite() -> None:
    box = BoxSpace((2,), "<f4", (-1e39, 0.0), 1e300)
    assert (box.low, box.high) == ((-np.inf, 0.0), np.inf) and not box.bounded
    assert BoxSpace((1,), "<f2", -7e4, 1.0).low == -np.inf
    assert BoxSpace((1,), "<f8", -1e300, 0.1) == BoxSpace((1,), "<f8", -1e300, 0.1)
    assert BoxSpace((1,), "<f8", -1e300, 0.1).high == 0.1
    assert BoxSpace((1,), "<i8", -(2**63), 2**63 - 1).high == 2**63 - 1
