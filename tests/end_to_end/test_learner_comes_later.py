"""An actor that starts before its learner. It acts by its baseline or at random, and joins when the learner comes."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.forks import exit_code_of, work_in_child
from kit import drained, until
from numpy.typing import NDArray

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor import components
from rl4sys_zmq.errors import ConfigError, HandshakeRefused, LearnerUnavailable
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.testing.fakes import FakeFactory
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Lab
from .engine_lab import serving
from .memory import WIDTH

OBSERVATION = np.zeros(4, dtype=np.float32)
ABSENT = "inproc://no-learner-here"


class Baseline:
    """A fallback function that counts its calls. It chooses action 1, or the last allowed action."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, observation: Any, mask: NDArray[np.bool_] | None) -> int:
        assert observation.shape == (4,)
        self.calls += 1
        return 1 if mask is None else int(np.flatnonzero(mask)[-1])


def options(address: str, **changes: Any) -> dict[str, Any]:
    return {
        "client_id": "lab",
        "algorithm_name": "FAKE",
        "observation_space": BoxSpace((4,)),
        "action_space": DiscreteSpace(3),
        "train_server_address": address,
        "linger_ms": 0,
        "connect_timeout_s": 0.0,
        "seed": 1,
        **changes,
    }


@contextmanager
def early(address: str, baseline: Callable[..., Any] | None = None, **changes: Any) -> Iterator[RL4SysAgent]:
    with RL4SysAgent(config=AgentConfig(**options(address, **changes)), baseline=baseline) as agent:
        yield agent


def step(agent: RL4SysAgent, traj: Any, reward: float = 1.0) -> tuple[Any, Any]:
    traj, action = agent.request_for_action(traj, OBSERVATION)
    agent.add_to_trajectory(traj, action)
    action.update_reward(reward)
    return traj, action


def free(lab: Lab) -> str:
    """Return an address at which a learner ran and has ended."""
    learner = lab.learner()
    address = learner.address
    learner.close()
    return address


def counters(agent: RL4SysAgent) -> dict[str, int]:
    return agent.stats()["counters"]  # type: ignore[no-any-return]


def test_an_early_actor_acts_by_its_baseline_and_joins_when_the_learner_comes(lab: Lab) -> None:
    baseline = Baseline()
    factory = FakeAlgorithm.factory(steps_per_update=4, rollout_length=16)
    register_algorithm("LATER", factory)
    with early(free(lab), baseline, algorithm_name="LATER") as agent:
        assert (agent.version, agent.generation, agent.spec.action_space) == (-1, 0, DiscreteSpace(3))
        assert agent.stats()["state"] == "joining" and agent.stats()["policy_age_s"] is None
        ended, action = step(agent, None)
        agent.mark_end_of_trajectory(ended, action)
        assert (action.act, action.stored, ended.completed) == (1, False, True)
        traj: Any = None
        for _ in range(3):
            traj, action = step(agent, traj)
        assert agent.stats()["submitted"] == agent.stats()["in_actor"] == 0
        agent.flush(1.0)  # returns at once: there are no segments
        learner = lab.learner(agent.config.address)
        assert agent.wait_version(0, 20.0) == 0
        running = traj
        for _ in range(4):
            traj, action = step(agent, traj)
            assert action.stored and action.version == 0
        assert traj is running, "the episode goes on"
        agent.mark_end_of_trajectory(traj, action)
        agent.flush(20.0)
        assert agent.wait_version(1, 20.0) == 1
        learner.drain(timeout_s=20.0)
        assert factory.made[-1].steps == 4 and [index for _, index in factory.made[-1].keys] == [0]
        client = learner.status()["clients"]["lab"]
        assert client["accepted"] == client["verdicts"]["trained"] == 1
        assert baseline.calls == 4 == counters(agent)["unrecorded_actions"] == counters(agent)["baseline_actions"]
        lab.episode(agent, 4, reward=0.5)
        agent.flush(20.0)
        until(lambda: learner.status()["clients"]["lab"]["mean_return"] == 2.0)  # the return of this episode only


def test_without_a_baseline_no_action_is_random_unless_asked(inproc_lab: Lab) -> None:
    with pytest.raises(LearnerUnavailable):
        RL4SysAgent(config=AgentConfig(**options(ABSENT)))
    with pytest.raises(LearnerUnavailable):
        RL4SysAgent(config=AgentConfig(**options(ABSENT, overflow="wait")), baseline=Baseline())
    with early(ABSENT, Baseline(), fallback="random") as agent:
        assert {agent.request_for_action(None, OBSERVATION)[1].act for _ in range(20)} == {1}, "the baseline comes first"
        assert "random_actions" not in counters(agent)


def test_a_baseline_needs_spaces_to_act_without_a_policy(caplog: pytest.LogCaptureFixture) -> None:
    config = AgentConfig(client_id="lab", train_server_address=ABSENT, connect_timeout_s=0.0)
    with pytest.raises(LearnerUnavailable):
        RL4SysAgent(config=config, baseline=Baseline())
    assert "needs both spaces" in caplog.text


def test_random_actions_are_elements_of_the_space_and_respect_masks(inproc_lab: Lab) -> None:
    with early(ABSENT, fallback="random", action_space=DiscreteSpace(3, start=5)) as agent:
        assert {agent.request_for_action(None, OBSERVATION)[1].act for _ in range(100)} == {5, 6, 7}
        assert {agent.request_for_action(None, OBSERVATION, [1, 0, 1])[1].act for _ in range(100)} == {5, 7}
        assert counters(agent)["random_actions"] == 200


def test_a_batch_joins_too(inproc_lab: Lab) -> None:
    baseline, address = Baseline(), inproc_lab.new_address()
    observations = np.zeros((3, 4), dtype=np.float32)
    with early(address, baseline) as agent:
        trajs: Any = None
        for policy in range(2):
            for _ in range(8):
                trajs, actions = agent.request_for_actions(trajs, observations)
                for traj, action in zip(trajs, actions, strict=True):
                    agent.add_to_trajectory(traj, action)
                    action.update_reward(1.0)
            if not policy:
                inproc_lab.learner(address)
                agent.wait_version(0, 20.0)
        assert baseline.calls == 24 == counters(agent)["unrecorded_actions"]
        for traj in trajs:
            agent.mark_end_of_trajectory(traj)
        agent.flush(20.0)
        assert agent.stats()["accepted"] == 3


def test_the_first_policy_may_record_extra_columns(inproc_lab: Lab) -> None:
    address = inproc_lab.new_address()
    spaces = {"observation_space": BoxSpace((WIDTH,)), "action_space": DiscreteSpace(2)}
    with early(address, lambda observation, mask: 0, algorithm_name="MEMORY", **spaces) as agent:
        observation = np.ones(WIDTH, np.float32)
        trajs: list[Any] = [None, None]
        for policy in range(2):
            for i, traj in enumerate(trajs):
                trajs[i], action = agent.request_for_action(traj, observation)
                agent.add_to_trajectory(trajs[i], action)
                action.update_reward(1.0)
            if not policy:
                learner = inproc_lab.learner(address)
                agent.wait_version(0, 20.0)
        for traj in trajs:
            agent.mark_end_of_trajectory(traj)
        assert drained(learner, agent)["verdicts"]["trained"] == 2
    later = inproc_lab.new_address()
    with early(later, lambda observation, mask: 0, algorithm_name="MEMORY", inference="auto", **spaces) as agent:
        inproc_lab.learner(later)
        until(lambda: "extra columns" in agent.stats()["error"])
        assert not agent.request_for_action(None, observation)[1].stored, "the host goes on"


def test_the_learner_that_comes_may_choose_the_actions(inproc_lab: Lab) -> None:
    address = inproc_lab.new_address()
    with early(address, Baseline(), inference="remote", inference_timeout_s=20.0) as agent:
        traj, _ = step(agent, None)
        inproc_lab.learner(address, inference="auto")
        agent.wait_version(0, 20.0)
        assert step(agent, traj)[1].stored and counters(agent)["inference.actions"] == 1


def test_an_early_actor_survives_bad_input_and_a_silent_learner(inproc_lab: Lab) -> None:
    changes = {"on_bad_input": "drop", "on_stale": "raise", "policy_max_age_s": 1e-9, "inference": "remote"}
    with early(ABSENT, Baseline(), **changes) as agent:
        traj, action = agent.request_for_action(None, np.full(4, np.nan))
        assert (action.act, action.stored) == (0, False)
        _, action = agent.request_for_action(traj, OBSERVATION, [1, 0, 0])
        assert action.act == 0
        with pytest.raises(LearnerUnavailable, match="go back"):
            agent.rollback()


def test_a_learner_that_refuses_later_does_not_stop_the_host(inproc_lab: Lab) -> None:
    address = inproc_lab.new_address()
    learner = inproc_lab.learner(address)
    inproc_lab.agent(learner)  # another actor gives the client other spaces
    with pytest.raises(HandshakeRefused):
        RL4SysAgent(config=AgentConfig(**options(address, connect_timeout_s=20.0)), baseline=Baseline())
    with early(address, Baseline()) as agent:
        until(lambda: "action_space" in agent.stats()["error"])
        assert not step(agent, None)[1].stored


def test_a_client_that_failed_is_waited_for_like_an_absent_learner(inproc_lab: Lab) -> None:
    register_algorithm("FAILS", FakeAlgorithm.factory(steps_per_update=4, rollout_length=16, fail_after_updates=0))
    address = inproc_lab.new_address()
    learner = inproc_lab.learner(address)
    with early(address, algorithm_name="FAILS", connect_timeout_s=20.0) as first:
        inproc_lab.episode(first, 4)
        until(lambda: learner.status()["clients"]["lab"]["state"] == "failed")
    with early(address, Baseline(), algorithm_name="FAILS", connect_timeout_s=20.0) as agent:
        assert "fails after 0 updates" in agent.stats()["error"]
        traj, action = step(agent, None)
        assert not action.stored
        learner.restart("lab")
        until(lambda: agent.version == 0)
        assert step(agent, traj)[1].stored


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_of_an_early_actor_joins_as_another_actor(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/l"
    with early(address, Baseline()) as agent:
        traj, _ = step(agent, None)

        def join() -> None:
            mine, action = step(agent, traj)
            assert mine is not traj and not action.stored
            agent.wait_version(0, 60.0)
            assert step(agent, mine)[1].stored
            agent.close()

        child = work_in_child(join)
        with serving(address):
            assert exit_code_of(child) == 0
            agent.wait_version(0, 20.0)
            assert step(agent, traj)[1].stored


EXIT = """
from rl4sys_zmq import AgentConfig, RL4SysAgent
agent = RL4SysAgent(config=AgentConfig(client_id="x", train_server_address="tcp://127.0.0.1:9", connect_timeout_s=0.0,
    input_size=1, act_dim=2), baseline=lambda observation, mask: 1)
traj, action = agent.request_for_action(None, [0.0])
agent.add_to_trajectory(traj, action)
assert action.act == 1
"""


@pytest.mark.parametrize("ending", ["", "agent.close()", "raise SystemExit(0)"])
def test_a_program_whose_learner_never_came_ends_by_itself(ending: str) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT + ending], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "acts by its baseline, and records no steps" in done.stderr


def test_random_actions_must_be_possible() -> None:
    with pytest.raises(ConfigError, match=r"^fallback: .*observation_space"):
        AgentConfig(client_id="x", fallback="random")
    with pytest.raises(ConfigError, match=r"^fallback: .*overflow"):
        AgentConfig(**options(ABSENT, fallback="random", overflow="wait"))


class SlowStart(FakeFactory):
    """A factory that creates no algorithm until the event `go` is set."""

    def __init__(self) -> None:
        super().__init__("onpolicy", {"steps_per_update": 4, "rollout_length": 16}, threading.Event())
        self.go = threading.Event()

    def __call__(self, *arguments: Any) -> FakeAlgorithm:
        assert self.go.wait(60.0)
        return super().__call__(*arguments)


@pytest.fixture
def slow() -> Iterator[SlowStart]:
    factory = SlowStart()
    register_algorithm("SLOW", factory)
    yield factory
    factory.go.set()


def test_a_constructor_waits_longer_while_the_learner_starts_the_client(lab: Lab, slow: SlowStart) -> None:
    learner = lab.learner()
    config = AgentConfig(**options(learner.address, algorithm_name="SLOW", connect_timeout_s=1.0))
    with ThreadPoolExecutor(1) as pool:
        agent = pool.submit(RL4SysAgent, config=config)
        until(lambda: learner.status()["counters"].get("hellos", 0) >= 5)  # one HELLO every 0.4 to 0.6 s
        slow.go.set()
        with agent.result(20.0) as joined:
            assert joined.version == 0
    assert not [name for name in learner.status()["counters"] if name.startswith("refused.")]


def test_that_wait_has_an_end(inproc_lab: Lab, slow: SlowStart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "CLIENT_START_S", 1.5)
    config = AgentConfig(**options(inproc_lab.learner().address, algorithm_name="SLOW", connect_timeout_s=1.0))
    with pytest.raises(LearnerUnavailable, match=r"within 1\.5 s .*client 'lab' has been starting for") as refused:
        RL4SysAgent(config=config)
    assert refused.value.timeout_s == 1.5


def test_an_actor_with_a_baseline_does_not_wait_for_the_start(inproc_lab: Lab, slow: SlowStart) -> None:
    learner = inproc_lab.learner()
    with early(learner.address, Baseline(), algorithm_name="SLOW", connect_timeout_s=1.0) as agent:
        assert not step(agent, None)[1].stored
        slow.go.set()
        agent.wait_version(0, 20.0)
        assert step(agent, None)[1].stored
