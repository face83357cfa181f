"""The forms of action masks that an agent takes, for actions of one part and of several parts."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.actor.inputs import InputValidator
from rl4sys_zmq.errors import MaskError
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, TupleSpace

HYBRID = DictSpace({"aim": BoxSpace((2,)), "gear": DiscreteSpace(3), "keys": MultiBinarySpace(2)})
PAIR = TupleSpace((DiscreteSpace(2), DiscreteSpace(2)))
CASES: dict[str, tuple[Any, list[int], Any]] = {
    "discrete": (DiscreteSpace(3), [1, 0, 1], None),
    "multidiscrete": (MultiDiscreteSpace((2, 2)), [1, 0, 0, 1], (np.array([1, 0]), np.array([0, 1]))),
    "multibinary": (MultiBinarySpace(2), [1, 0, 1, 1], np.array([0, 2], np.int8)),
    "multibinary of two dimensions": (MultiBinarySpace((1, 2)), [1, 0, 1, 1], np.array([[0, 2]], np.int8)),
    "dict": (HYBRID, [0, 1, 1, 1, 0, 1, 1], {"aim": None, "gear": np.array([0, 1, 1]), "keys": np.array([0, 2])}),
    "tuple": (PAIR, [1, 0, 1, 1], (np.array([1, 0]), None)),
}
"""A space, a mask as a list, and the same mask in Gymnasium's form, or None if the form is the same."""


def lists_of(mask: Any) -> Any:
    if isinstance(mask, dict):
        return {key: lists_of(part) for key, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(lists_of(part) for part in mask)
    return mask.tolist() if isinstance(mask, np.ndarray) else mask


@pytest.mark.parametrize("name", CASES)
def test_a_single_mask_can_have_every_form(name: str) -> None:
    space, flat, form = CASES[name]
    inputs = InputValidator(BoxSpace((1,)), space)
    forms = [flat, tuple(flat), [flat], np.array(flat), np.array([flat]), np.array(flat, bool), np.array(flat, np.float32)]
    forms += [] if form is None else [form, lists_of(form)]
    for given in forms:
        mask = inputs.mask(given)
        assert mask is not None and mask.dtype == bool
        assert mask.astype(int).tolist() == flat, given


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_masks_can_have_every_form(name: str, count: int) -> None:
    space, flat, form = CASES[name]
    inputs = InputValidator(BoxSpace((1,)), space)
    forms: list[Any] = [[flat] * count, np.array([flat] * count), [np.array(flat)] * count]
    if form is not None:
        forms += [[form] * count, [lists_of(form)] * count, [form, *[flat] * (count - 1)]]
    if isinstance(form, np.ndarray):
        forms.append(np.stack([form] * count))
    for given in forms:
        masks = inputs.mask(given, count)
        assert masks is not None and masks.dtype == bool
        assert masks.astype(int).tolist() == [flat] * count, given


@pytest.mark.parametrize("name", CASES)
def test_a_mask_of_another_length_or_count_is_refused(name: str) -> None:
    space, flat, _ = CASES[name]
    inputs = InputValidator(BoxSpace((1,)), space)
    for given in ([*flat, 1], np.array([*flat, 1]), np.array([flat, flat]), "mask", np.array(flat) * 3):
        with pytest.raises(MaskError):
            inputs.mask(given)
    for batch in ([flat], np.array([flat]), np.array([flat] * 3), flat, 1):
        with pytest.raises(MaskError):
            inputs.mask(batch, 2)
