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
    """An algorithm that counts what it observes, and never updates or makes actors wait."""

    kind: ClassVar[str] = "offpolicy"
    rollout_length = 16
    publish_every_updates = 1
    max_policy_lag: int | None = None

    def __init__(self, spec: PolicySpec) -> None:
        self.segments = self.steps = self.updates = 0
        self._spec = spec

    def spec(self) -> PolicySpec:
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self.segments += 1
        self.steps += segment.steps

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        return None

    def demand(self) -> int:
        return DEMAND

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return self._spec.views(np.zeros(self._spec.size, np.float32))

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def checkpoint(self) -> Any:
        return self.updates

    def restore(self, kept: Any) -> None:
        self.updates = kept

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        return [np.array([self.updates], np.float32)]

    def discard(self) -> Sequence[int]:
        return []
