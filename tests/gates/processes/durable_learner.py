"""A learner with a run directory that waits while its addresses are in use, and answers commands."""

from __future__ import annotations

import time
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq.errors import AddressInUse
from rl4sys_zmq.learner import Learner, LearnerConfig

WAIT_S = 20.0

given = options()
given.pop("torch", None)  # for the process that starts this one: torch is needed
# On a busy machine, several threads of torch make each update tens of times slower.
config = LearnerConfig.from_mapping({"torch_threads": 1, **given})


def started() -> Learner:
    """Return a started learner. Its addresses may still be in use by the process before it."""
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
    learner.drain(timeout_s=timeout_s)
    return learner.status()


with started() as learner:
    say({"address": learner.address, "resumed": list(learner.resumed_clients)})
    obey(status=learner.status, drain=drain)
