"""A learner on a run directory whose algorithm ends the process when it trains on a segment with the reward 666.

Its first line is its address; it ends with its stdin.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.testing.fakes import FakeParameters, fake_spec
from rl4sys_zmq.values import Segment

given = options()


def die() -> None:
    """As native code does that reads where there is nothing."""
    signal.raise_signal(signal.SIGSEGV)  # in this thread, before it returns


class OnPolicy(FakeAlgorithm):
    """Dies in an update."""

    poisoned = False

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Notes if there is one."""
        super().observe(segment, correct=correct)
        self.poisoned |= bool((segment.rewards == 666.0).any())

    def update(self, *, partial: bool = False) -> Any:
        """Dies if one is part of the batch."""
        if self.poisoned and (partial or not self.demand()):
            die()
        return super().update(partial=partial)

    def restore(self, kept: Any) -> None:
        """Forgets what was observed."""
        super().restore(kept)
        self.poisoned = False


class OffPolicy(FakeAlgorithm):
    """Dies as soon as it observes one, or in the update after."""

    kind = "offpolicy"
    poisoned = False

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Dies, or notes it."""
        super().observe(segment, correct=correct)
        self.poisoned |= bool((segment.rewards == 666.0).any())
        if self.poisoned and given["at"] == "observe":
            die()

    def update(self, *, partial: bool = False) -> Any:
        """Dies."""
        if self.poisoned:
            die()
        return super().update(partial=partial)


def build(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    """One of the two."""
    kind = OnPolicy if given["at"] == "batch" else OffPolicy
    return kind(fake_spec(), FakeParameters(steps_per_update=given["steps_per_update"], rollout_length=4), seed)


register_algorithm("MORTAL", build)
config = LearnerConfig(bind=given["bind"], run_dir=Path(given["run_dir"]), checkpoint_every_s=0.2)
with Learner(config) as learner:
    say({"address": learner.address})
    obey(status=learner.status)
