"""The fast constructor of segments gives what the class gives."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.values import Segment
from rl4sys_zmq.values.segment import segment_of


def test_segment_of_equals_the_class() -> None:
    floats, versions = np.zeros(3, np.float32), np.zeros(3, np.uint64)
    values: tuple[Any, ...] = (
        np.zeros((4, 2)),
        np.arange(3),
        floats,
        floats,
        versions,
        None,
        1,
        2,
        3,
        False,
        True,
        False,
        4.0,
        5,
        {},
        {},
    )
    fast, slow = segment_of(*values), Segment(*values)
    assert type(fast) is Segment and len(values) == len(fields(Segment))
    assert all(getattr(fast, f.name) is getattr(slow, f.name) for f in fields(Segment))
    assert fast.steps == 3 and fast.ended and fast.nbytes == slow.nbytes
    assert replace(fast, generation=9).generation == 9
    with pytest.raises(FrozenInstanceError):
        fast.generation = 2  # type: ignore[misc]


def test_segment_of_wants_every_field() -> None:
    with pytest.raises(TypeError):
        segment_of(1, 2, 3)
