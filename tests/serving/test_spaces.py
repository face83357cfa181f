"""Gymnasium's spaces and their elements are equal after a round trip."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.serving.gymnasium_spaces import element_reader, to_gymnasium
from rl4sys_zmq.values.space_conversion import any_space_from, space_from_text, space_to_text
from rl4sys_zmq.wire.trees import drop_unsupported, pack_tree, unpack_tree

from .trees import same

BOX = spaces.Box(-1.0, 1.0, (2, 3), np.float32)
ALL = [
    BOX,
    spaces.Box(np.array([-np.inf, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(-1.0, 1.0, (), np.float32),
    spaces.Box(0, 1, (0, 3)),
    spaces.Box(np.array([-(2**63), 2**62 + 1]), np.array([2**63 - 1, 2**63 - 3]), dtype=np.int64),
    spaces.Discrete(200, dtype=np.uint8),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.MultiBinary([3]),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32),
    spaces.MultiDiscrete([3, 4], start=[1, -2]),
    spaces.Text(6),
    spaces.Text(6, min_length=0, charset="αβγ"),
    spaces.Dict({"b": BOX, "a": spaces.Dict({"c": spaces.Discrete(2)})}),
    spaces.Dict([("z", spaces.Dict([("y", BOX), ("x", spaces.Discrete(2))])), ("a", BOX)]),
    spaces.Tuple((BOX, spaces.Tuple((spaces.Discrete(2),)))),
    spaces.Sequence(BOX),
    spaces.Sequence(spaces.Discrete(3), stack=True),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.Graph(spaces.Box(0, 1, (2,)), None),
    spaces.OneOf((BOX, spaces.Discrete(3))),
    spaces.Dict({"g": spaces.Graph(spaces.Discrete(3), None)}),
    spaces.Tuple((spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)), BOX)),
    spaces.Sequence(spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3))),
    spaces.OneOf((spaces.Discrete(3), spaces.Graph(spaces.Box(0, 1, (2,)), None))),
]


def travel(tree: Any) -> Any:
    skeleton, frames = pack_tree(tree)
    return unpack_tree(skeleton, frames)


@pytest.mark.parametrize("space", ALL, ids=str)
def test_a_space_and_its_elements_come_back(space: Any) -> None:
    ours = any_space_from(space)
    received = space_from_text(travel(space_to_text(ours)))
    assert received == ours
    built = to_gymnasium(received)
    assert built == space
    assert str(built) == str(space)  # includes the order of a Dict: seeds and `flatten` depend on it
    assert type(built) is type(space)
    assert built.dtype == space.dtype
    space.seed(3)
    for _ in range(5):
        value = space.sample()
        back = element_reader(received)(travel(ours.to_tree(value, cast=True)))
        assert back in space
        assert same(back, value)
        assert received.mismatch(travel(ours.to_tree(value))) == ""


def test_what_comes_back_may_be_written() -> None:
    space = spaces.Dict({"x": BOX, "y": spaces.Tuple((BOX, BOX))})
    ours = any_space_from(space)
    back = element_reader(ours)(travel(ours.to_tree(space.sample())))
    back["x"][:] = 0
    back["y"][1][:] = 0


class Mine(spaces.Discrete):
    """A custom space, derived from a Gymnasium space."""


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Mine(3), "Mine"),
        (spaces.Dict({"a": spaces.Tuple((Mine(3),))}), r"space\['a'\]\[0\] is a .*Mine"),
        (spaces.Dict({1: spaces.Discrete(2)}), "the key 1"),  # type: ignore[dict-item]
    ],
)
def test_another_space_is_refused_by_its_name_and_place(space: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        any_space_from(space)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, np.zeros((3, 2), np.float32)),
        (BOX, "left"),
        (spaces.Discrete(3), 1.5),
        (spaces.Discrete(3), np.zeros(2, int)),
        (spaces.Dict({"a": BOX}), {"a": np.zeros((2, 3)), "b": 1}),
        (spaces.Dict({"a": BOX}), np.zeros(3)),
        (spaces.Tuple((BOX, BOX)), (np.zeros((2, 3)),)),
        (spaces.Tuple((BOX, spaces.Discrete(2))), (np.zeros((2, 3)), None)),
        (spaces.Text(3), 7),
        (spaces.OneOf((BOX, BOX)), ("0", 1)),
        (spaces.OneOf((BOX, BOX)), (np.zeros(2), 1)),
        (spaces.OneOf((BOX, BOX)), (2, np.zeros((2, 3)))),
        (spaces.Graph(BOX, None), (1, None, None)),
        (spaces.Graph(BOX, None), (np.zeros((1, 3)), None, None)),
        (spaces.Sequence(BOX), 7),
        (spaces.Sequence(BOX, stack=True), 7),
        (spaces.Sequence(spaces.Graph(BOX, None)), ((1, 2, 3),)),
    ],
)
def test_what_does_not_fit_is_found(space: Any, value: Any) -> None:
    ours = any_space_from(space)
    assert ours.mismatch(ours.to_tree(value))


def test_what_cannot_travel_is_named() -> None:
    kept, dropped = drop_unsupported({"a": 1, "b": {"c": object(), "d": [1, object()]}, 3: 3, "e": 1 << 70}, "info")
    assert kept == {"a": 1, "b": {}}
    assert dropped == ["info['b']['c']", "info['b']['d']", "info[3]", "info['e']"]


def test_what_has_no_end_is_left_out_once_it_comes_again() -> None:
    info: dict[str, Any] = {"fine": 1, "inner": {"n": 2}}
    info["self"] = info["inner"]["back"] = info
    kept, dropped = drop_unsupported(info, "info")
    assert kept == {"fine": 1, "inner": {"n": 2}}
    assert dropped == ["info['inner']['back']", "info['self']"]
