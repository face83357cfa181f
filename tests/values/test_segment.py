"""The fast constructor of segments gives the same segments as the class."""

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from kit import segment_with

from rl4sys_zmq.values import Segment, evaluation_of
from rl4sys_zmq.values.segment import segment_of


def test_segment_of_equals_the_class() -> None:
    slow = segment_with(3, "truncated", episode_return=4.0, episode_length=5, source="human")
    values: tuple[Any, ...] = tuple(getattr(slow, field.name) for field in fields(Segment))
    fast = segment_of(*values)
    assert type(fast) is Segment
    assert all(getattr(fast, f.name) is getattr(slow, f.name) for f in fields(Segment))
    assert fast.steps == 3 and fast.ended and fast.nbytes == slow.nbytes
    assert replace(fast, generation=9).generation == 9
    with pytest.raises(FrozenInstanceError):
        fast.generation = 2  # type: ignore[misc]


@pytest.mark.parametrize("terminated", [True, False])
def test_an_evaluation_is_the_last_step_with_the_return(terminated: bool) -> None:
    rows = 3 + (not terminated)
    column = np.arange(rows, dtype=np.float32)
    whole = segment_with(
        3,
        "terminated" if terminated else "truncated",
        observations={"b": column, "a": (column[:, None],)},
        actions=np.arange(3),
        rewards=np.array([1, 2, 3], np.float32),
        versions=np.array([4, 4, 5], np.uint64),
        masks=np.ones((rows, 2), np.bool_),
        episode_return=6.0,
        episode_length=9,
        extras={"value": np.array([7, 8, 9])},
        initial={"state": np.zeros(2)},
    )
    found = evaluation_of(whole)
    assert found.evaluation and not whole.evaluation
    assert (found.steps, found.episode_return, found.episode_length, found.ended) == (1, 6.0, 9, True)
    assert isinstance(found.observations, dict)
    np.testing.assert_array_equal(found.observations["b"], column[2:])
    np.testing.assert_array_equal(found.observations["a"][0][:, 0], column[2:])
    assert (found.actions.tolist(), found.rewards.tolist(), found.versions.tolist()) == ([2], [3.0], [5])
    assert found.masks is not None and len(found.masks) == rows - 2
    assert found.extras["value"].tolist() == [9] and found.initial is whole.initial
