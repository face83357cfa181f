"""The attributes and methods that programs for RL4Sys use beside the documented calls: of agents, actions and trajectories."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.errors import ActionError, ConfigError, RewardError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Bench, act, obs


def test_an_agent_has_rl4syss_attributes(bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf = {
        "client_id": "lab",
        "algorithm_name": "KEEPER",
        "algorithm_parameters": {"input_size": 4, "act_dim": 3, "gamma": 0.9},
        "type": "onpolicy",
        "train_server_address": bench.learner.address,
    }
    path = tmp_path / "conf.json"
    path.write_text(json.dumps(conf))
    package = logging.getLogger("rl4sys_zmq")
    before = package.level
    try:
        agent = bench.stack.enter_context(RL4SysAgent(str(path), True))
        assert package.level == logging.DEBUG
        agent.logger.info("started", version=agent.local_version, share="5 %")
        agent.logger.warning("of %s", "two")
    finally:
        package.setLevel(before)
    assert agent.client_id == "lab"
    assert agent.algorithm_name == "KEEPER"
    assert agent.algorithm_parameters == {"input_size": 4, "act_dim": 3, "gamma": 0.9}
    assert agent.algorithm_type == "onpolicy"
    assert agent.debug is True
    assert agent.server_address == bench.learner.address
    assert agent.local_version == agent.version == 0
    assert [r.getMessage() for r in caplog.records if r.name == "rl4sys_zmq.actor"] == [
        "started (version=0, share=5 %)",
        "of two",
    ]


def test_the_trajectory_buffer_has_a_length_and_nothing_to_change(bench: Bench) -> None:
    agent = bench.agent()
    buffer = agent._trajectory_buffer
    assert len(buffer) == 0 and not hasattr(buffer, "append")
    traj, action = act(agent, None, 0.0, None)
    agent.mark_end_of_trajectory(traj, action)
    assert len(agent._trajectory_buffer) == 1, "a segment waits for its reward"
    action.update_reward(1.0)
    agent.flush(10.0)
    assert len(agent._trajectory_buffer) == 0


def test_sizes_of_continuous_actions(bench: Bench) -> None:
    agent = bench.agent(observation_space=DiscreteSpace(7), action_space=BoxSpace((2,), low=-1.0, high=1.0))
    assert agent.algorithm_parameters == {"input_size": 7, "act_dim": 2}
    assert (agent.debug, agent.algorithm_type) == (False, None)


def test_further_arguments_are_ignored_with_one_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    config = bench.agent().config
    caplog.clear()
    with RL4SysAgent(None, False, "cuda:0", config=config, seed=3) as agent:
        assert agent.client_id == "lab"
    (record,) = [r for r in caplog.records if "ignored" in r.getMessage()]
    assert record.getMessage().endswith("are ignored: 'cuda:0', seed")
    with pytest.raises(ConfigError, match="baselin: no such argument; did you mean 'baseline'"):
        RL4SysAgent(config=config, baselin=lambda observation, mask: 0)


def test_an_action_has_rl4syss_attributes(bench: Bench) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0), [1, 0, 1])
    assert (action.rew, action.reward, action.is_reward_set(), action.is_done()) == (None, None, False, False)
    assert action.mask is not None and action.mask.tolist() == [True, False, True]
    assert action.data == {"logp_a": action.log_prob}
    action.reward = 2
    assert (action.rew, action.reward, action.is_reward_set()) == (2.0, 2.0, True)
    agent.add_to_trajectory(traj, action)
    action.rew = np.float32(3)
    with pytest.raises(RewardError):
        action.reward = "much"
    assert action.reward == 3.0
    action.set_done(True)
    assert action.is_done()
    agent.request_for_action(traj, obs(1))
    (segment,) = bench.segments(agent, 1)
    assert (segment.rewards.tolist(), segment.terminated) == ([3.0], True)


def test_a_trajectory_has_rl4syss_methods(bench: Bench) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0))
    assert (traj.version, traj.is_empty(), traj.is_valid(), traj.is_completed()) == (0, True, True, False)
    assert traj.actions == []
    traj.add_action(action)
    action.update_reward(1)
    assert (traj.version, traj.is_empty(), len(traj)) == (action.version, False, 1)
    assert traj.actions == [action]
    with pytest.raises(ActionError, match="stored already"):
        traj.add_action(action)
    traj.mark_completed()
    traj.clear()
    assert traj.is_completed() and traj.completed and traj.is_valid()
    (segment,) = bench.segments(agent, 1)
    assert segment.terminated and segment.rewards.tolist() == [1.0]
    with pytest.raises(ActionError, match="there is no trajectory to end"):
        agent.mark_end_of_trajectory(None, action)  # type: ignore[arg-type]


def test_the_actions_are_those_that_have_not_been_sent(bench: Bench) -> None:
    """Segments have eight steps here. The first is complete and sent, the second waits for a reward, and the third is open."""
    agent = bench.agent()
    traj: Any = None
    for number in range(18):
        traj, action = act(agent, traj, number, None if number in (11, 16) else number)
    actions = traj.actions
    assert [int(a.obs[0]) for a in actions] == list(range(8, 18)) and len(traj) == 18
    assert actions[-1] is action and traj.get_actions()[-1] is action
    assert [a.reward for a in actions] == [None if n in (11, 16) else float(n) for n in range(8, 18)]
    assert {type(a.act) for a in actions} == {type(action.act)} and all(a.stored and not a.done for a in actions)
    assert actions[3].log_prob == pytest.approx(traj.actions[3].log_prob) and actions[3].version == 0
    for one in actions:
        if not one.is_reward_set():
            one.rew = 100 + int(one.obs[0])
    agent.mark_end_of_trajectory(traj, action)
    assert [int(a.obs[0]) for a in traj.actions] == [16, 17] and traj.actions[-1].done
    segments = bench.segments(agent, 3)
    rewards = np.concatenate([s.rewards for s in segments]).tolist()
    assert rewards == [111 if n == 11 else 116 if n == 16 else n for n in range(18)]


def test_a_copy_and_its_action_agree_on_the_missing_rewards(bench: Bench) -> None:
    agent = bench.agent()
    traj, first = act(agent, None, 0, None)
    traj, last = act(agent, traj, 1, 1)
    (copy, same) = traj.actions
    assert copy is not first and same is last
    copy.update_reward(5)
    first.update_reward(6)
    traj, third = act(agent, traj, 2, None)
    third.update_reward(7)
    agent.mark_end_of_trajectory(traj, third)
    (segment,) = bench.segments(agent, 1)
    assert segment.rewards.tolist() == [6.0, 1.0, 7.0]
    with pytest.raises(RewardError, match="was queued for sending with its reward"):
        copy.update_reward(8)


def test_recorded_masks_and_continuous_actions(bench: Bench) -> None:
    agent = bench.agent(action_space=BoxSpace((2,), low=-0.01, high=0.01))
    traj, first = act(agent, None, 0, 1)
    traj, _ = act(agent, traj, 1, 1)
    copy = traj.actions[0]
    assert np.abs(first.act).max() <= 0.01
    np.testing.assert_array_equal(copy.act, first.raw)
    masked = bench.agent(client_id="masked")
    traj, action = masked.request_for_action(None, obs(0), [0, 1, 0])
    masked.add_to_trajectory(traj, action)
    traj, action = masked.request_for_action(traj, obs(1))
    masked.add_to_trajectory(traj, action)
    assert [a.mask.tolist() for a in traj.actions[:1] if a.mask is not None] == [[False, True, False]]
    assert int(traj.actions[0].act) == 1


def test_clear_discards_the_open_segment_and_counts_its_steps(bench: Bench) -> None:
    agent = bench.agent()
    traj: Any = None
    for number in range(3):
        traj, action = act(agent, traj, number, None)
    traj.clear()
    assert traj.is_empty() and traj.actions == [] and not traj.is_completed()
    action.update_reward(1)  # no effect, and no error in the host
    for number in range(3, 14):  # a segment of eight, then three that are cleared, then two
        traj, action = act(agent, traj, number, number)
    traj.clear()
    for number in range(14, 16):
        traj, action = act(agent, traj, number, number)
    agent.mark_end_of_trajectory(traj, action)
    first, second = bench.segments(agent, 2)
    assert (first.rewards.tolist(), second.rewards.tolist()) == ([*range(3, 11)], [14, 15])
    assert (first.segment_index, second.segment_index) == (0, 2), "the learner does not join them"
    assert (second.episode_return, traj.is_valid()) == (None, False)
    assert agent.stats()["counters"]["cleared_steps"] == 6


def test_a_trajectory_that_lost_a_segment_is_not_valid(bench: Bench) -> None:
    agent = bench.agent(reward_timeout_s=0.0)
    traj: Any = None
    for number in range(10):
        traj, _ = act(agent, traj, number, None)
    agent.request_for_action(None, obs(0))
    assert not traj.is_valid()
    assert traj.actions[0].reward is None
