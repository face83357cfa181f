"""Every version that an actor holds equals the version that the learner published, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from rl4sys_zmq.errors import LearnerUnavailable


def test_every_version_has_the_learners_digest(lab: Any) -> None:
    learner = lab.learner()
    agent = lab.agent(learner)
    assert agent.version == 0
    assert agent.digest == learner.digest("lab", 0)
    seen = {0}
    for version in range(1, 26):
        lab.episode(agent, 16)
        held = agent.wait_version(version, 20.0)
        assert agent.digest == learner.digest("lab", held)
        seen.add(held)
    assert seen == set(range(26))
    assert agent.stats()["counters"]["weights_applied"] == 26
    assert not [k for k in agent.stats()["counters"] if k.startswith("weights_refused")]


def test_waiting_for_a_version_that_does_not_come_says_so(inproc_lab: Any) -> None:
    agent = inproc_lab.agent(inproc_lab.learner())
    with pytest.raises(LearnerUnavailable, match="version 3"):
        agent.wait_version(3, 0.05)
