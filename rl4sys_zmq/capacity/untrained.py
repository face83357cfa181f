"""A learning algorithm without training, with which the way of data and weights is measured alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.values import PolicySpec, Segment

__all__ = ["UntrainedAlgorithm"]

DEMAND = 1 << 50


class UntrainedAlgorithm:
    """An algorithm that counts what it observes, and never updates or makes actors wait.

    Attributes:
        segments: Number of observed segments.
        steps: Number of steps in them.
        updates: Number of updates; here always 0.
    """

    kind: ClassVar[str] = "offpolicy"
    rollout_length = 16
    publish_every_updates = 1
    max_policy_lag: int | None = None

    def __init__(self, spec: PolicySpec) -> None:
        self.segments = self.steps = self.updates = 0
        self._spec = spec

    def spec(self) -> PolicySpec:
        """Return the description of the policy."""
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Count a segment and its steps."""
        self.segments += 1
        self.steps += segment.steps

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Return None: there is nothing to update."""
        return None

    def demand(self) -> int:
        """Return a number so large that actors never wait."""
        return DEMAND

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return zeros."""
        return self._spec.views(np.zeros(self._spec.size, np.float32))

    def state(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def checkpoint(self) -> Any:
        """Return the number of updates."""
        return self.updates

    def restore(self, kept: Any) -> None:
        """Set the number of updates."""
        self.updates = kept

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return the number of updates, which is finite."""
        return [np.array([self.updates], np.float32)]

    def discard(self) -> Sequence[int]:
        """Return an empty list: no data make an update fail."""
        return []
