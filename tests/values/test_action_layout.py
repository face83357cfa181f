"""The layout of actions: the order of their parts, and the forms of masks."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, TupleSpace
from rl4sys_zmq.values.action_layout import MAX_CHOICES, MAX_OPTIONS, action_layout, choice_groups

gym = pytest.importorskip("gymnasium")

HYBRID = DictSpace(
    {
        "turn": BoxSpace((2,), low=-1.0, high=1.0),
        "gear": DiscreteSpace(3, start=-1),
        "keys": TupleSpace((MultiDiscreteSpace((2, 4), start=(5, 0)), MultiBinarySpace(2))),
    }
)


def test_choices_come_before_numbers_in_the_order_of_sorted_keys() -> None:
    layout = action_layout(HYBRID)
    assert [part.name for part in layout.parts] == [
        "actions['gear']", "actions['keys'][0]", "actions['keys'][1]", "actions['turn']",
    ]  # fmt: skip
    assert layout.counts == (3, 2, 4, 2, 2)
    assert (layout.choices, layout.logits, layout.numbers, layout.outputs) == (5, 13, 2, 15)
    groups = {group.options: (group.choices.tolist(), group.logits.tolist()) for group in choice_groups(layout)}
    assert groups == {3: ([0], [0, 1, 2]), 2: ([1, 3, 4], [3, 4, 9, 10, 11, 12]), 4: ([2], [5, 6, 7, 8])}
    assert [layout.name_of(choice) for choice in range(5)] == [
        "actions['gear']", "actions['keys'][0][0]", "actions['keys'][0][1]", "actions['keys'][1][0]", "actions['keys'][1][1]",
    ]  # fmt: skip


def test_a_plain_space_is_a_layout_of_one_part() -> None:
    assert action_layout(DiscreteSpace(4, start=2)).counts == (4,)
    box = action_layout(BoxSpace((2, 3)))
    assert (box.logits, box.numbers, box.outputs) == (0, 6, 6)


def test_joined_actions_are_indices_from_zero_and_then_numbers() -> None:
    actions = {
        "turn": np.array([[0.5, -2.0], [1.0, 0.0]], np.float32),
        "gear": np.array([-1, 1]),
        "keys": (np.array([[5, 3], [6, 0]]), np.array([[0, 1], [1, 1]], np.int8)),
    }
    expected = [[0, 0, 3, 0, 1, 0.5, -2.0], [2, 1, 0, 1, 1, 1.0, 0.0]]
    assert action_layout(HYBRID).join(actions).tolist() == expected


def test_masks_in_gymnasiums_form_are_joined() -> None:
    layout = action_layout(HYBRID)
    given = {
        "gear": np.array([0, 1, 1], np.int8),
        "keys": ((np.array([1, 0], np.int8), np.array([0, 0, 1, 1], np.int8)), np.array([0, 2], np.int8)),
        "turn": None,
    }
    expected = [0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1]
    assert layout.join_mask(given).astype(int).tolist() == expected
    assert layout.join_mask(np.array(expected, bool)).astype(int).tolist() == expected
    given["keys"] = (None, None)
    assert layout.join_mask(given).astype(int).tolist() == [0, 1, 1] + [1] * 10


@pytest.mark.parametrize("seed", range(8))
def test_gymnasiums_masked_samples_fit_the_joined_mask(seed: int) -> None:
    space: Any = gym.spaces.Tuple(
        (gym.spaces.MultiDiscrete(np.array([[2, 3], [3, 2]])), gym.spaces.MultiBinary(3), gym.spaces.Discrete(4, start=3)),
        seed=seed,
    )
    ours = TupleSpace((MultiDiscreteSpace((2, 3, 3, 2), shape=(2, 2)), MultiBinarySpace(3), DiscreteSpace(4, start=3)))
    rng = np.random.default_rng(seed)

    def some(n: int) -> Any:
        mask = (rng.random(n) < 0.5).astype(np.int8)
        mask[rng.integers(n)] = 1
        return mask

    mask = (((some(2), some(3)), (some(3), some(2))), rng.integers(0, 3, 3).astype(np.int8), some(4))
    layout = action_layout(ours)
    joined = layout.join_mask(mask)
    for _ in range(20):
        sample = space.sample(mask=mask)
        indices = layout.join(tuple(np.asarray(leaf)[None] for leaf in sample))[0].astype(int)
        starts = np.cumsum((0, *layout.counts))[:-1]
        assert joined[starts + indices].all()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones(12, bool), r"shape \(12,\)"),
        ({"gear": None, "turn": None}, "keys"),
        ({"gear": np.ones(2, bool), "keys": (None, None), "turn": None}, r"actions\['gear'\] has the shape \(2,\)"),
        ({"gear": np.array([0, 1, 3]), "keys": (None, None), "turn": None}, "other values than 0 and 1"),
        ({"gear": None, "keys": ((np.ones(2),), None), "turn": None}, "has 1 arrays; expected 2"),
        ({"gear": None, "keys": (None, np.array([0, 3])), "turn": None}, "or 2 for both"),
        ({"gear": None, "keys": (None, None), "turn": np.ones(2)}, "a Box has no mask"),
        ({"gear": "all", "keys": (None, None), "turn": None}, "shape"),
    ],
)
def test_a_mask_of_another_form_is_refused(mask: Any, words: str) -> None:
    with pytest.raises(MaskError, match=words):
        action_layout(HYBRID).join_mask(mask)


def test_too_many_choices_or_options_are_refused_before_they_take_memory() -> None:
    with pytest.raises(ConfigError, match="1048579 options; the limit is 1048576"):
        action_layout(MultiDiscreteSpace((MAX_OPTIONS + 1, 2)))
    with pytest.raises(ConfigError, match="67108864 or more choices; the limit is 4096"):
        action_layout(TupleSpace((DiscreteSpace(2), MultiBinarySpace((1 << 26) - 1))))
    assert action_layout(MultiBinarySpace(MAX_CHOICES)).logits == 2 * MAX_CHOICES
    assert action_layout(DiscreteSpace(1 << 60)).logits == 1 << 60
