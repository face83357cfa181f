"""The checks of a replay: its size, its stored returns, and the search for transitions that make a gradient step non-finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error

Rows = NDArray[np.int64]
T = TypeVar("T")


def find_failing_rows(
    steps: int, draw: Callable[[], Rows], checkpoint: Callable[[], T], survives: Callable[[Rows, T], bool]
) -> Rows:
    """Try the gradient steps of the next update, and return the rows that make the first failing step fail; none if none fails.

    The rows of this step are halved again and again, as long as a half still fails. `survives` returns to a checkpoint, takes a
    step on some rows, and returns True if all numbers are then finite.
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


def check_replay_size(steps: int, size: int, available: int, files: str = "") -> None:
    """Check that a full replay is not larger than the available memory. `files` tells what puts it into files."""
    if size > available:
        raise parameter_error(
            "buffer_size",
            f"a full replay of {steps:,} steps needs {size:,} bytes, and the learner's machine "
            f"has {available:,} bytes of memory; use a smaller buffer_size{files and f', or {files}'}",
        )


def check_stored_returns(stored: Mapping[str, float], current: Mapping[str, float]) -> None:
    """Check that the returns in a stored replay were computed with the current parameters, such as ``gamma``."""
    for name, value in current.items():
        if stored[name] != value:
            raise parameter_error(
                name,
                f"{value:g}, but the returns in the stored replay were computed with "
                f"{stored[name]:g}; set {name} to {stored[name]:g} again, or `forget` the client, which discards the replay",
            )
