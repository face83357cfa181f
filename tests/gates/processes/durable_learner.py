"""A learner with a run directory, at addresses that it may have to wait for; answers what it is asked."""

from __future__ import annotations

import time
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq.errors import AddressInUse
from rl4sys_zmq.learner import Learner, LearnerConfig

WAIT_S = 20.0

given = options()
given.pop("torch", None)  # says to the process that starts this one that torch is needed
config = LearnerConfig.from_mapping(given)


def started() -> Learner:
    """A learner; its addresses were another process's a moment ago."""
    deadline = time.monotonic() + WAIT_S
    while True:
        learner = Learner(config)
        try:
            return learner.start()
        except AddressInUse:
            learner.close()
            if time.monotonic() > deadline:
                raise


def drain(timeout_s: float) -> dict[str, Any]:
    """Trains on all that is pending; the status then."""
    learner.drain(timeout_s=timeout_s)
    return learner.status()


with started() as learner:
    say({"address": learner.address, "resumed": list(learner.resumed_clients)})
    obey(status=learner.status, drain=drain)
