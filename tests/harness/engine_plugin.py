"""Algorithms that a worker process can import: one that trains, and one that aborts the process at a reward of 666."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeParameters, fake_spec
from rl4sys_zmq.values import Segment

__all__ = ["DEADLY", "TALKATIVE"]

DEADLY, TALKATIVE = 666.0, 7.0
log = logging.getLogger(__name__)


class Mortal(FakeAlgorithm):
    """An off-policy algorithm that ends the process as native code does, or logs a warning, at one reward each."""

    kind = "offpolicy"

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Abort at `DEADLY`."""
        if (segment.rewards == DEADLY).any():
            os.abort()
        if (segment.rewards == TALKATIVE).any():
            log.warning("a talkative segment")
        super().observe(segment, correct=correct)


def make(observation_space: Any, action_space: Any, parameters: Mapping[str, Any], seed: int) -> Mortal:
    """A `Mortal` algorithm."""
    return Mortal(fake_spec(), FakeParameters(**{"steps_per_update": 4, "rollout_length": 4, **parameters}), seed)


register_algorithm("MORTAL_OFF", make)
register_algorithm("IMPORTABLE", FakeAlgorithm.factory(steps_per_update=4, rollout_length=4))
