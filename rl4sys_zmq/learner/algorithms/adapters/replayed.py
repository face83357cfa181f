"""The pace of training from a replay buffer, and the search for transitions that make a gradient step fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["STEPS_PER_VERSION", "ReplayPace", "failing_rows"]

STEPS_PER_VERSION = 256
"""The default number of environment steps from one published policy version to the next."""


@dataclass(slots=True, kw_only=True)
class ReplayPace:
    """The count of observed steps and of the trainings that they make due. It does not depend on time.

    Attributes:
        learning_starts: Steps that are observed before the first training.
        every: Steps from one training to the next.
        steps: Steps observed so far.
        trainings: Trainings done so far.
    """

    learning_starts: int
    every: int
    steps: int = 0
    trainings: int = 0

    @property
    def due(self) -> bool:
        """True if a training is due."""
        return self.trainings < max(0, self.steps - self.learning_starts) // self.every

    def missing(self, publish_every: int) -> int:
        """Return the number of steps until the next policy version, which comes after every `publish_every` trainings."""
        version = (self.trainings // publish_every + 1) * publish_every
        return max(0, self.learning_starts + version * self.every - self.steps)

    def state(self) -> dict[str, int]:
        """Return the two counts."""
        return {"steps": self.steps, "trainings": self.trainings}

    def load(self, state: Mapping[str, int]) -> None:
        """Restore counts that `state` has returned."""
        self.steps, self.trainings = int(state["steps"]), int(state["trainings"])


def failing_rows(rows: NDArray[np.int64], survives: Callable[[NDArray[np.int64]], bool]) -> NDArray[np.int64]:
    """Find the rows of a failing batch that make it fail, by trying its halves again and again.

    Args:
        rows: Row numbers of the replay buffer, without duplicates. A gradient step on them fails.
        survives: Tries a gradient step on some rows, and returns True if all numbers are finite after it.

    Returns:
        The row numbers. If no half fails by itself, all of `rows`.
    """
    if len(rows) <= 1:
        return rows
    failing = [half for half in np.array_split(rows, 2) if not survives(half)]
    return np.concatenate([failing_rows(half, survives) for half in failing]) if failing else rows
