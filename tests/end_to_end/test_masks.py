"""Action masks that an algorithm would ignore. The first one is refused, with the algorithms that take masks."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.algorithms import AlgorithmEntry
from rl4sys_zmq.errors import MaskError
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

from .conftest import Lab

MASK = np.array([True, False])
OBSERVATION = np.zeros(4, np.float32)


@pytest.fixture(autouse=True, scope="module")
def _maskless() -> None:
    factory = FakeAlgorithm.factory(steps_per_update=4, rollout_length=4)
    register_algorithm(AlgorithmEntry(name="MASKLESS", factory=factory, takes_masks=False))


def test_the_first_mask_is_refused_with_the_algorithms_that_take_masks(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="MASKLESS")
    expected = r"MASKLESS ignores action masks; give none, or .*A2C, .*PPO, .*sb3:MaskablePPO"
    with pytest.raises(MaskError, match=expected):
        agent.request_for_action(None, OBSERVATION, MASK)
    with pytest.raises(MaskError, match=expected):
        agent.request_for_actions(None, OBSERVATION[None], MASK[None])
    traj: Any = None
    traj, action = agent.request_for_action(traj, OBSERVATION)
    agent.add_to_trajectory(traj, action)
    action.update_reward(1.0)
    with pytest.raises(MaskError, match=expected):
        agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=OBSERVATION, final_mask=MASK)
    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=OBSERVATION)
    inproc_lab.episode(agent, 3)  # without masks, the client trains
    assert learner.wait(client_id="lab", version=1, timeout_s=20.0) == 1


def test_a_host_that_drops_bad_input_goes_on(inproc_lab: Lab) -> None:
    agent = inproc_lab.agent(inproc_lab.learner(), algorithm_name="MASKLESS", on_bad_input="drop")
    _, action = agent.request_for_action(None, OBSERVATION, MASK)
    assert action.act is not None
    assert agent.stats()["counters"]["bad_input.MaskError"] == 1


def test_an_agent_that_only_evaluates_may_obey_masks(inproc_lab: Lab) -> None:
    agent = inproc_lab.agent(inproc_lab.learner(), algorithm_name="MASKLESS", explore=False)
    assert {int(agent.request_for_action(None, OBSERVATION, MASK)[1].act) for _ in range(8)} == {0}
