"""A learner with a run directory whose algorithm crashes the process when it trains on a segment with the reward 666."""

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
    """Crash as native code does that reads an invalid address."""
    signal.raise_signal(signal.SIGSEGV)  # in this thread, before it returns


class OnPolicy(FakeAlgorithm):
    """An on-policy algorithm that crashes in an update."""

    poisoned = False

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        self.poisoned |= bool((segment.rewards == 666.0).any())

    def update(self, *, partial: bool = False) -> Any:
        """Crash if the batch contains a poisoned segment."""
        if self.poisoned and (partial or not self.demand()):
            die()
        return super().update(partial=partial)

    def restore(self, kept: Any) -> None:
        """Restore the state, and forget the poisoned segment."""
        super().restore(kept)
        self.poisoned = False


class OffPolicy(FakeAlgorithm):
    """An off-policy algorithm that crashes when it observes a poisoned segment, or in the next update."""

    kind = "offpolicy"
    poisoned = False

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        self.poisoned |= bool((segment.rewards == 666.0).any())
        if self.poisoned and given["at"] == "observe":
            die()

    def update(self, *, partial: bool = False) -> Any:
        if self.poisoned:
            die()
        return super().update(partial=partial)


def build(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    kind = OnPolicy if given["at"] == "batch" else OffPolicy
    return kind(fake_spec(), FakeParameters(steps_per_update=given["steps_per_update"], rollout_length=4), seed)


register_algorithm("MORTAL", build)
config = LearnerConfig(bind=given["bind"], run_dir=Path(given["run_dir"]), checkpoint_every_s=0.2)
with Learner(config) as learner:
    say({"address": learner.address})
    obey(status=learner.status)
