"""Algorithms that a worker process can import: one that trains, and one that causes harm at certain rewards."""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeParameters, fake_spec
from rl4sys_zmq.values import Segment

DEADLY, TALKATIVE, FRUITFUL = 666.0, 7.0, 8.0
log = logging.getLogger(__name__)


class Mortal(FakeAlgorithm):
    """An off-policy algorithm that aborts its process, misuses the log or starts a process, at one reward each."""

    kind = "offpolicy"

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Abort at `DEADLY`. Log a line, a wrong one and a long one at `TALKATIVE`. Start a process at `FRUITFUL`."""
        if (segment.rewards == DEADLY).any():
            os.abort()
        if (segment.rewards == TALKATIVE).any():
            log.warning("a wrong line %d", "x")
            log.warning("\U0001f600" * 16_000)
            logging.getLogger("long\udcff" * 100).warning("a name that is no name")
            log.warning("a talkative segment")
        if (segment.rewards == FRUITFUL).any():
            child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
            log.warning("a child %d", child.pid)
        super().observe(segment, correct=correct)


def make(observation_space: Any, action_space: Any, parameters: Mapping[str, Any], seed: int) -> Mortal:
    return Mortal(fake_spec(), FakeParameters(**{"steps_per_update": 4, "rollout_length": 4, **parameters}), seed)


register_algorithm("MORTAL_OFF", make)
register_algorithm("IMPORTABLE", FakeAlgorithm.factory(steps_per_update=4, rollout_length=4))
