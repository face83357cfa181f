"""Over a network that cuts, resets and corrupts connections, each segment is trained exactly once. The learner does not end."""

from __future__ import annotations

from typing import Any

import pytest

from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import ChaosProxy, FakeAlgorithm, NetworkFaults

SEGMENTS = 300


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_or_trained_twice(inproc_lab: Any, seed: int) -> None:
    print(f"seed {seed}")
    factory = FakeAlgorithm.factory(steps_per_update=4, rollout_length=4)
    register_algorithm("EXACT", factory)
    learner = inproc_lab.learner(bind="tcp://127.0.0.1:0")
    with ChaosProxy(learner.address, seed=seed) as proxy:
        agent = inproc_lab.agent(proxy.address, algorithm_name="EXACT")
        proxy.faults = NetworkFaults(cut_probability=0.01, reset=True, corrupt_probability=0.01)
        for index in range(SEGMENTS):
            inproc_lab.episode(agent, 4)
            if index % 100 == 50:
                proxy.cut()
        proxy.faults = NetworkFaults()
        agent.flush(60.0)
        assert agent.wait_version(1, 30.0) >= 1
        learner.drain(timeout_s=30.0)  # the `durable` mark is not checked here
    keys = factory.made[-1].keys
    assert len(keys) == len(set(keys)) == SEGMENTS
    stats = agent.stats()
    assert stats["accepted"] == SEGMENTS == stats["submitted"]
    assert stats["dropped_at_source"] == stats["in_actor"] == 0
