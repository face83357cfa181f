"""Rare cases of the compiled step: a program sees the same as with the step in Python."""

import copy
import gc
import sys
import threading
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import native
from rl4sys_zmq.actor.slots import COMPILED
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Bench, act, obs

FORMS = ["never", pytest.param("always", marks=pytest.mark.skipif(native.load() is None, reason="the extension is not here"))]
pytestmark = pytest.mark.parametrize("form", FORMS)


def test_an_episode_keeps_its_policy_beside_newer_ones(bench: Bench, form: str) -> None:
    register_algorithm("SWAPS", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
    agent = bench.agent(native=form, algorithm_name="SWAPS", client_id="swaps", swap="episode")
    old, _ = act(agent, None, 0.5)
    act(agent, old, 0.5)
    for _ in range(16):
        traj, action = act(agent, None, 0.5)
        agent.mark_end_of_trajectory(traj, action)
    agent.wait_version(1, 20.0)
    new = None
    for _ in range(4):
        old, older = act(agent, old, 0.5)
        new, newer = act(agent, new, 0.5)
        assert (older.version, newer.version) == (0, 1)


def test_the_reward_can_be_named(bench: Bench, form: str) -> None:
    _, action = act(bench.agent(native=form), None, 0.5, None)
    action.update_reward(reward=2.0)
    assert action.reward == 2.0
    for arguments, names in (((), {}), ((1.0, 2.0), {}), ((1.0,), {"reward": 1.0}), ((), {"other": 1.0})):
        with pytest.raises(TypeError):
            action.update_reward(*arguments, **names)
    assert action.update_reward.__doc__


@pytest.mark.parametrize("space", [DiscreteSpace(3), BoxSpace((2,), low=-1.0, high=1.0)], ids=["discrete", "box"])
def test_an_action_can_be_copied(bench: Bench, form: str, space: Any) -> None:
    agent = bench.agent(native=form, action_space=space)
    traj, _ = act(agent, None, 0.5)
    _, action = agent.request_for_action(traj, obs(0.25))
    twin = copy.copy(action)
    np.testing.assert_array_equal(twin.obs, action.obs)
    np.testing.assert_array_equal(twin.act, action.act)
    assert twin.log_prob == action.log_prob and twin.reward is None


@pytest.mark.parametrize("space", [DiscreteSpace(3), BoxSpace((2,), low=-1.0, high=1.0)], ids=["discrete", "box"])
def test_what_the_host_changes_is_what_is_recorded(bench: Bench, form: str, space: Any) -> None:
    agent = bench.agent(native=form, action_space=space)
    traj, _ = act(agent, None, 0.5)
    for value in range(3):
        _, action = agent.request_for_action(traj, obs(1.0))
        action.obs[0] = value
        action.log_prob = -float(value)
        agent.add_to_trajectory(traj, action)
    np.testing.assert_array_equal(traj.writer.observations[1:4, 0], [0, 1, 2])
    np.testing.assert_array_equal(traj.writer.log_probs[1:4], [0, -1, -2])


def test_objects_without_values_are_refused(bench: Bench, form: str) -> None:
    agent = bench.agent(native=form)
    traj, action = act(agent, None, 0.5)
    traj, action = agent.request_for_action(traj, obs(0.5))
    for call in (
        lambda: agent.add_to_trajectory(object.__new__(RL4SysTrajectory), action),
        lambda: agent.request_for_action(object.__new__(RL4SysTrajectory), obs(0.5)),
        lambda: agent.add_to_trajectory(traj, type(action)()),
        lambda: type(action)().update_reward(1.0),
        lambda: type(action)().obs,
    ):
        with pytest.raises((AttributeError, TypeError)):
            call()


def test_kept_actions_keep_no_weights(bench: Bench, form: str) -> None:
    agent = bench.agent(native=form)
    traj, action = act(agent, None, 0.5)
    traj, action = act(agent, traj, 0.5)
    policy = weakref.ref(agent._parts.policy)
    agent.close()
    bench.stack.pop_all().close()
    del agent, traj
    gc.collect()
    assert policy() is None and action.version == 0


def test_threads_take_turns(bench: Bench, form: str) -> None:
    agent = bench.agent(native=form, rollout_length=64)
    stamps: dict[int, Any] = {}
    turn, done = [0], threading.Condition()

    def work(number: int) -> None:
        traj = None
        for step in range(6):
            with done:
                done.wait_for(lambda: turn[0] % 2 == number)
                traj, action = act(agent, traj, 0.5)
                stamps.setdefault(number, action.stamp)
                assert action.stamp is stamps[number] and traj.steps == step + 1
                turn[0] += 1
                done.notify_all()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turn == [12] and stamps[0] is not stamps[1]


@pytest.mark.parametrize("space", [DiscreteSpace(3), BoxSpace((2,), low=-1.0, high=1.0)], ids=["discrete", "box"])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_warm_step_calls_little_python_and_allocates_little(bench: Bench, form: str, space: Any, dtype: str) -> None:
    if form == "never" or not COMPILED:
        pytest.skip("this form is Python")
    agent = bench.agent(
        native=form, action_space=space, observation_space=BoxSpace((4,), dtype), rollout_length=256, linger_ms=1000
    )
    observation, called, actions = np.full(4, 0.5, dtype), [], []

    def step(traj: Any) -> Any:
        traj, action = agent.request_for_action(traj, observation)
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
        actions.append(action)
        return traj

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    traj = step(step(None))
    sys.setprofile(note)
    try:
        traj = step(traj)
    finally:
        sys.setprofile(None)
    assert called == ["step", "request_for_action", "add_to_trajectory"]
    actions.clear()
    tracemalloc.start()
    try:
        step(traj)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            step(traj)
            actions.clear()
        grown, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown - before < 2000 and peak - before < 4000
