"""A program ends without a hang, an abort or a traceback, in each of the ways in which it can end."""

import subprocess
import sys

import pytest

from rl4sys_zmq.errors import WorkerDied
from rl4sys_zmq.learner import Learner, LearnerConfig

PROLOGUE = """
import threading
from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
register_algorithm("FAKE", FakeAlgorithm.factory(steps_per_update=1, rollout_length=1, slow_s={slow_s}))
learner = Learner(LearnerConfig(bind="inproc://exit", run_dir=None, shutdown_timeout_s=0.1)).start()
agent = RL4SysAgent(config=AgentConfig(client_id="x", algorithm_name="FAKE", train_server_address="inproc://exit",
    observation_space=BoxSpace((1,)), action_space=DiscreteSpace(2), linger_ms=0))
traj, action = agent.request_for_action(None, [0.0])
action.update_reward(1.0)
agent.mark_end_of_trajectory(traj, action)
agent.flush(10.0)
"""


@pytest.mark.parametrize(
    ("slow_s", "ending"),
    [
        (0.0, "agent.close(); learner.close()"),
        (0.0, ""),  # neither the agent nor the learner is closed
        (2.0, "learner.close()"),  # the learner thread is in the middle of an update
        (0.0, "raise SystemExit(0)"),
    ],
)
def test_a_program_ends_by_itself(slow_s: float, ending: str) -> None:
    code = PROLOGUE.format(slow_s=slow_s) + ending
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


FORK = """
import os, sys
from pathlib import Path
from rl4sys_zmq.learner import Learner, LearnerConfig
learner = Learner(LearnerConfig(bind="inproc://exit", run_dir=None, engine="process", shutdown_timeout_s=1.0)).start()
folder = Path(learner._gateway._engines["process"]._folder)
child = os.fork()
if not child:
    {ending}
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert folder.exists(), "the workers' sockets"
learner.status()
learner.close()
assert not folder.exists()
"""


@pytest.mark.parametrize("ending", ["pass", "learner.close()"])
def test_a_forked_child_leaves_the_learner_of_its_parent_alone(ending: str) -> None:
    code = FORK.format(ending=ending)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_an_unexpected_error_of_the_gateway_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("algorithm_name")

    monkeypatch.setattr("rl4sys_zmq.learner.gateway.gateway._beside", broken)
    learner = Learner(LearnerConfig(bind="inproc://broken", run_dir=None))
    with pytest.raises(WorkerDied, match="algorithm_name"):
        learner.start()
    learner.close()
