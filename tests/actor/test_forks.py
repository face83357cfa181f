"""A child that is forked while another thread of its parent holds a lock of the agent does not wait for that lock."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from harness.forks import works_in_a_child
from policies.stored import stored
from policies.test_onnx_policy import convolution

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.errors import LearnerUnavailable
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies import build_policy
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def ends_in_a_child(work: Callable[[], object], locks: list[Any]) -> bool:
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            free.wait(60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60.0)
    done = works_in_a_child(work)
    free.set()
    thread.join()
    return done


@pytest.fixture
def agent() -> Iterator[RL4SysAgent]:
    register_algorithm("FORKS", FakeAlgorithm.factory("offpolicy", steps_per_update=1 << 30, rollout_length=4))
    spaces: dict[str, Any] = {"observation_space": BoxSpace((3,)), "action_space": DiscreteSpace(3)}
    with (
        Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None)) as learner,
        RL4SysAgent(
            config=AgentConfig(client_id="forks", algorithm_name="FORKS", train_server_address=learner.address, **spaces)
        ) as agent,
    ):
        yield agent


@pytest.mark.usefixtures("pure_form")
def test_a_child_uses_an_agent_whose_locks_were_held(agent: RL4SysAgent) -> None:
    traj, action = agent.request_for_action(None, np.zeros(3, np.float32))
    agent.mark_end_of_trajectory(traj, action)
    context = agent._parts

    def work() -> None:
        action.update_reward(1.0)
        agent.stats()
        with pytest.raises(LearnerUnavailable):
            agent.rollback()
        with pytest.raises(LearnerUnavailable):
            agent.flush(0.1)

    locks = [context.pending._lock, context.credit_wait._lock, context.io.host.changed, context.io.weight_subscriber._changing]
    assert ends_in_a_child(work, locks)
    action.update_reward(1.0)


def test_a_child_builds_a_policy_with_a_graph() -> None:
    pytest.importorskip("onnxruntime")
    spec = convolution()
    assert ends_in_a_child(lambda: build_policy(spec, stored(spec).snapshot), [])
