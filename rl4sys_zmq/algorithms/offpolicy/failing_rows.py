"""The search for the transitions of a replay that make a gradient step of an off-policy algorithm non-finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
T = TypeVar("T")


def find_failing_rows(
    steps: int, draw: Callable[[], Rows], checkpoint: Callable[[], T], survives: Callable[[Rows, T], bool]
) -> Rows:
    """Try the gradient steps of the next update, and return the replay rows that make the first failing step fail.

    The rows of this step are halved again and again, as long as a half still fails.
    """
    for _ in range(steps):
        rows = draw()
        before = checkpoint()
        if not survives(rows, before):
            return _halve(np.unique(rows), before, survives)
    return np.empty(0, np.int64)


def _halve(rows: Rows, before: T, survives: Callable[[Rows, T], bool]) -> Rows:
    if len(rows) <= 1:
        return rows
    failing = [half for half in np.array_split(rows, 2) if not survives(half, before)]
    return np.concatenate([_halve(half, before, survives) for half in failing]) if failing else rows
