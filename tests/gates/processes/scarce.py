"""A learner with few file descriptors, or a relay of another one. It can also use up the descriptors itself."""

import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.relay import Relay
from rl4sys_zmq.testing import FakeAlgorithm

given = options()
register_algorithm("FAKE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
taken: list[int] = []


def take() -> int:
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return len(taken)


def release() -> None:
    while taken:
        os.close(taken.pop())


with ExitStack() as stack:
    keys = Path(given["keys"]) if given["keys"] else None
    run_dir = Path(given["run_dir"])
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=run_dir, keys=keys, checkpoint_every_s=0.5, inference="auto")
    learner = stack.enter_context(Learner(config))
    ports = [learner.address, learner.pub_address, learner.inference_address]
    served: Any = learner
    if given["relay"]:
        served = stack.enter_context(Relay(RelayConfig(upstream=learner.address, bind="tcp://127.0.0.1:0")))
        ports += [served.address, served.pub_address]
    resource.setrlimit(resource.RLIMIT_NOFILE, (given["limit"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    say(ports)

    def status() -> Any:
        for part in (learner, served):
            part.raise_if_dead()
        return {**learner.status(), "relay": served.status()["counters"]}

    obey(status=status, take=take, release=release)
