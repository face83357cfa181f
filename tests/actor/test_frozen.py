"""`FrozenAgent`: a host's loop runs unchanged, every action comes from the policy, and nothing is stored."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policies.stored import ORIGIN, stored

from rl4sys_zmq import FrozenAgent
from rl4sys_zmq.errors import ActionError, Closed, MaskError, ObservationError, PolicyFolderError
from rl4sys_zmq.policies import StoredPolicy, build_policy
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec

pytest.importorskip("safetensors")

DISCRETE = mlp_spec(BoxSpace((3,)), DiscreteSpace(4, 2), "categorical", hidden_sizes=(8,))
CONTINUOUS = mlp_spec(BoxSpace((3,)), BoxSpace((2,), low=-1.0, high=1.0), "gaussian", hidden_sizes=(8,), squash="tanh")


def policy_in(folder: Path, spec: PolicySpec = DISCRETE, scale: float = 0.3) -> StoredPolicy:
    policy = stored(spec, scale=scale)
    write_policy(folder, encode_policy(policy))
    return policy


@pytest.fixture(params=[DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> StoredPolicy:
    return policy_in(tmp_path / "policy", request.param)


def observations(count: int) -> Any:
    return np.random.default_rng(3).standard_normal((count, 3)).astype(np.float32)


def test_a_loop_for_the_other_agent_runs_unmodified(tmp_path: Path, policy: StoredPolicy) -> None:
    ours = build_policy(policy.spec, policy.snapshot)
    with FrozenAgent(tmp_path / "policy") as agent:
        snapshot = policy.snapshot
        assert (agent.generation, agent.version, agent.digest) == (snapshot.generation, snapshot.version, snapshot.digest)
        assert agent.spec == policy.spec
        assert agent.origin == ORIGIN
        traj = None
        episodes = []
        for number, observation in enumerate(observations(50), 1):
            traj, action = agent.request_for_action(traj, observation)
            _, act, log_prob = ours.act(observation, None, RandomSource(0), False)
            np.testing.assert_allclose(action.act, act, rtol=1e-5, atol=1e-6)
            assert action.log_prob == pytest.approx(log_prob, rel=1e-6)
            agent.add_to_trajectory(traj, action)
            action.update_reward(1.0)
            agent.update_action_reward(action, 2.0)
            assert (action.reward, action.stored, action.version) == (2.0, False, 7)
            if number % 10 == 0:
                agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=observation, final_mask=[1, 0, 0, 1])
                assert traj.completed and len(traj) == 10
                episodes.append(traj.episode_id)
        agent.flush(1.0)
        assert len(set(episodes)) == 5
        assert agent.stats()["steps"] == 50 and agent.stats()["episodes"] == 5


def test_a_batch_acts_as_each_one_alone(tmp_path: Path, policy: StoredPolicy) -> None:
    with FrozenAgent(tmp_path / "policy") as agent:
        given = observations(6)
        assert agent.request_for_actions(None, observations(0)) == ([], [])
        trajs, actions = agent.request_for_actions(None, given)
        for observation, action in zip(given, actions, strict=True):
            np.testing.assert_allclose(action.act, agent.request_for_action(None, observation)[1].act, rtol=1e-5, atol=1e-6)
        for traj, action in zip(trajs, actions, strict=True):
            agent.add_to_trajectory(traj, action)
        agent.mark_end_of_trajectory(trajs[0])
        again, _ = agent.request_for_actions(trajs, given)
        assert [a is b for a, b in zip(trajs, again, strict=True)] == [False] + 5 * [True]


def test_exploring_samples_by_the_seed(tmp_path: Path, policy: StoredPolicy) -> None:
    def acts(**options: Any) -> Any:
        with FrozenAgent(tmp_path / "policy", **options) as agent:
            return np.array([agent.request_for_action(None, np.zeros(3, np.float32))[1].act for _ in range(40)])

    np.testing.assert_array_equal(acts(explore=True, seed=1), acts(explore=True, seed=1))
    assert not np.array_equal(acts(explore=True, seed=1), acts(explore=True, seed=2))
    assert len(np.unique(acts(explore=True), axis=0)) > 1
    assert len(np.unique(acts(), axis=0)) == 1


def test_a_done_action_ends_its_trajectory(tmp_path: Path) -> None:
    policy_in(tmp_path / "policy")
    with FrozenAgent(tmp_path / "policy") as agent:
        traj, action = agent.request_for_action(None, [[0.0, 0.0, 0.0]])
        agent.add_to_trajectory(traj, action)
        action.done = True
        other, _ = agent.request_for_action(traj, [0.0, 0.0, 0.0])
        assert other is not traj and traj.completed
        agent.add_to_trajectory(traj, action)
        assert (len(traj), agent.stats()["episodes"]) == (1, 1), "what comes after the end is ignored"


def test_inputs_are_checked_and_masks_obeyed(tmp_path: Path) -> None:
    policy_in(tmp_path / "policy")
    with FrozenAgent(tmp_path / "policy") as agent:
        for index in range(4):
            mask = np.eye(4, dtype=bool)[index]
            assert agent.request_for_action(None, np.zeros(3, np.float32), mask)[1].act == index + 2
        with pytest.raises(ObservationError):
            agent.request_for_action(None, np.zeros(4))
        with pytest.raises(ObservationError):
            agent.request_for_action(None, [0.0, float("nan"), 0.0])
        with pytest.raises(MaskError):
            agent.request_for_action(None, np.zeros(3, np.float32), [0, 0, 0, 0])


def test_objects_of_another_agent_are_refused(tmp_path: Path) -> None:
    policy_in(tmp_path / "policy")
    with FrozenAgent(tmp_path / "policy") as one, FrozenAgent(tmp_path / "policy") as other:
        traj, action = one.request_for_action(None, np.zeros(3, np.float32))
        mine, _ = other.request_for_action(None, np.zeros(3, np.float32))
        with pytest.raises(ActionError):
            other.request_for_action(traj, np.zeros(3, np.float32))
        with pytest.raises(ActionError):
            other.add_to_trajectory(mine, action)
        with pytest.raises(ActionError):
            other.mark_end_of_trajectory(None, action)  # type: ignore[arg-type]


def test_an_action_that_is_not_finite_is_replaced_and_counted(tmp_path: Path) -> None:
    space = BoxSpace((2,), low=-1.0, high=1.0)
    policy_in(tmp_path / "policy", mlp_spec(BoxSpace((3,)), space, "gaussian", activation="identity"), scale=1e30)
    observation = np.full(3, 1e30, np.float32)
    with FrozenAgent(tmp_path / "policy") as agent:
        np.testing.assert_array_equal(agent.request_for_action(None, observation)[1].act, [0.0, 0.0])
        np.testing.assert_array_equal(agent.request_for_actions(None, observation[None])[1][0].act, [0.0, 0.0])
        assert agent.stats()["policies_not_finite"] == 2
    with FrozenAgent(tmp_path / "policy", baseline=lambda observation, mask: np.array([0.5, 0.5])) as agent:
        assert agent.request_for_action(None, observation)[1].act.tolist() == [0.5, 0.5]


def test_several_threads_use_one_agent(tmp_path: Path) -> None:
    policy_in(tmp_path / "policy")
    with FrozenAgent(tmp_path / "policy") as agent:
        expected = [agent.request_for_action(None, o)[1].act for o in observations(200)]
        found: dict[int, list[Any]] = {}

        def act(number: int) -> None:
            traj = None
            mine = found[number] = []
            for observation in observations(200):
                traj, action = agent.request_for_action(traj, observation)
                agent.add_to_trajectory(traj, action)
                mine.append(action.act)

        threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(found.values()) == 4 * [expected]
        assert agent.stats()["steps"] == 800


def test_a_closed_agent_and_a_missing_folder_say_so(tmp_path: Path) -> None:
    policy_in(tmp_path / "policy")
    agent = FrozenAgent(str(tmp_path / "policy"))
    agent.close()
    agent.close()
    with pytest.raises(Closed):
        agent.request_for_action(None, np.zeros(3, np.float32))
    with pytest.raises(PolicyFolderError):
        FrozenAgent(tmp_path / "nowhere")
