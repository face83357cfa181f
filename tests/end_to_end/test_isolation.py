"""The failure of one client is reported, does not affect other clients, and can be fixed without a restart of the learner."""

from typing import Any

import pytest
from kit import until

from rl4sys_zmq.errors import ClientFailed, ConfigError, HandshakeRefused
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

register_algorithm("BRITTLE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16, fail_after_updates=2))


def test_a_failed_client_is_loud_and_alone(lab: Any) -> None:
    learner = lab.learner()
    good, bad = lab.agent(learner, "good"), lab.agent(learner, "bad", algorithm_name="BRITTLE")
    for version in (1, 2):
        for agent in (good, bad):
            lab.train(agent, 16, version)
    lab.episode(bad, 16)
    with pytest.raises(ClientFailed, match="RuntimeError"):
        bad.wait_version(3, 20.0)
    with pytest.raises(ClientFailed, match="restart"):
        learner.wait(client_id="bad", version=3, timeout_s=20.0)
    with pytest.raises(ClientFailed):
        bad.flush(1.0)
    lab.episode(bad, 16)  # the embedded host gets no exception
    status = learner.status()["clients"]
    assert status["bad"]["state"] == "failed"
    assert "RuntimeError" in status["bad"]["error"]
    assert "RuntimeError" in bad.stats()["error"]
    lab.train(good, 16, *range(3, 8))
    assert good.digest == learner.digest("good", 7)
    assert learner.status()["clients"]["good"]["state"] == "running"


def test_a_failed_client_can_be_restarted(lab: Any) -> None:
    learner = lab.learner()
    agent = lab.agent(learner, algorithm_name="BRITTLE")
    lab.train(agent, 16, 1, 2)
    generation = agent.generation
    lab.episode(agent, 16)
    with pytest.raises(ClientFailed):
        agent.wait_version(3, 20.0)
    learner.restart("lab")
    until(lambda: agent.generation != generation, "another generation")
    lab.train(agent, 16, 1)
    assert agent.digest == learner.digest("lab", 1)
    client = learner.status()["clients"]["lab"]
    assert client["state"] == "running"
    assert client["restarts"] == 1
    assert client["accepted"] == client["verdicts"]["trained"] + client["pending"] + client["rolled_back"]
    assert client["rolled_back"] == 1  # the segment that the failed update held
    assert agent.stats()["error"] == ""


def test_a_client_that_cannot_be_built_fails_by_its_reason(inproc_lab: Any) -> None:
    learner = inproc_lab.learner()
    good = inproc_lab.agent(learner, "good")
    with pytest.raises(HandshakeRefused, match="steps_per_updat"):
        inproc_lab.agent(learner, "typo", algorithm_parameters={"steps_per_updat": 3})
    with pytest.raises(ConfigError, match=r"could not be built.*steps_per_updat"):
        learner.wait(client_id="typo", version=0, timeout_s=5.0)
    corrected = inproc_lab.agent(learner, "typo", algorithm_parameters={"steps_per_update": 3})
    assert corrected.digest == learner.digest("typo", 0)
    with pytest.raises(HandshakeRefused, match="unknown algorithm"):
        inproc_lab.agent(learner, "unknown", algorithm_name="NO_SUCH")
    inproc_lab.train(good, 16, 1)


def test_a_batch_of_more_segments_than_the_queue_holds(inproc_lab: Any) -> None:
    """Segments that the algorithm holds are not in the queue. They must not use up the credit for the queue."""
    register_algorithm("LARGE", FakeAlgorithm.factory(steps_per_update=5000, rollout_length=1))
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="LARGE", overflow="wait", send_frequency=50)
    for _ in range(5000):
        inproc_lab.episode(agent, 1)
    agent.wait_version(1, 30.0)
    assert agent.stats()["dropped_at_source"] == 0
