"""The agent's interface for its host, with a learner that keeps every segment that it receives."""

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
from kit import play

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.errors import (
    ActionError,
    Closed,
    ConfigError,
    HandshakeRefused,
    LearnerUnavailable,
    MaskError,
    ObservationError,
    RewardError,
)
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.transports.poller import Wakeup
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Bench, act, obs


def test_an_episode_arrives_as_it_was_lived(bench: Bench) -> None:
    agent = bench.agent()
    traj = action = None
    chosen = []
    for step in range(5):
        traj, action = agent.request_for_action(traj, obs(step))
        agent.add_to_trajectory(traj, action)
        action.update_reward(step / 2)
        chosen.append((int(action.act), action.log_prob))
    assert traj is not None and action is not None
    agent.mark_end_of_trajectory(traj, action)
    (segment,) = bench.segments(agent, 1)
    assert segment.terminated and not segment.truncated
    assert segment.observations.dtype == np.float32
    np.testing.assert_array_equal(segment.observations, [obs(i) for i in range(5)])
    np.testing.assert_array_equal(segment.rewards, [0, 0.5, 1, 1.5, 2])
    np.testing.assert_array_equal(segment.actions, [a for a, _ in chosen])
    np.testing.assert_allclose(segment.log_probs, [p for _, p in chosen], rtol=1e-6)
    np.testing.assert_array_equal(segment.versions, [0] * 5)
    assert (segment.generation, segment.masks) == (agent.generation, None)
    assert (segment.episode_return, segment.episode_length) == (5.0, 5)
    assert traj.completed and len(traj) == 5


def test_a_long_episode_is_cut_with_its_bootstrap_observation(bench: Bench) -> None:
    agent = bench.agent()
    play(agent, 20, truncated=True, final_obs=obs(20))
    first, second, third = bench.segments(agent, 3)
    assert [s.segment_index for s in (first, second, third)] == [0, 1, 2]
    assert len({s.episode_id for s in (first, second, third)}) == 1
    np.testing.assert_array_equal(first.observations[:, 0], range(9))
    np.testing.assert_array_equal(second.observations[:, 0], range(8, 17))
    np.testing.assert_array_equal(third.observations[:, 0], range(16, 21))
    assert not first.ended and not second.ended and third.truncated
    assert (first.episode_return, third.episode_return, third.episode_length) == (None, 20.0, 20)


def test_max_traj_length_marks_the_segment_that_fills_it(bench: Bench) -> None:
    agent = bench.agent(max_traj_length=12)
    traj = None
    for number in range(26):
        traj, _ = act(agent, traj, number)
    segments = bench.segments(agent, 4)
    assert [(s.steps, s.capped) for s in segments] == [(8, False), (4, True), (8, False), (4, True)]


def test_an_action_that_is_never_added_costs_nothing(bench: Bench) -> None:
    agent = bench.agent()
    traj, first = agent.request_for_action(None, obs(1))
    traj, second = agent.request_for_action(traj, obs(2))
    agent.add_to_trajectory(traj, second)
    second.update_reward(3)
    agent.mark_end_of_trajectory(traj, second)
    (segment,) = bench.segments(agent, 1)
    np.testing.assert_array_equal(segment.observations, [obs(2)])
    assert not first.stored


def test_the_last_action_is_stored_once_whether_added_or_not(bench: Bench) -> None:
    agent = bench.agent()
    for added in (True, False):
        traj, action = agent.request_for_action(None, obs(0))
        action.update_reward(1)
        if added:
            agent.add_to_trajectory(traj, action)
        agent.mark_end_of_trajectory(traj, action)
        agent.mark_end_of_trajectory(traj, action)  # a second call changes nothing
    assert [s.steps for s in bench.segments(agent, 2)] == [1, 1]


def test_done_set_by_hand_ends_the_trajectory_at_the_next_request(bench: Bench) -> None:
    agent = bench.agent()
    traj, action = act(agent, None, 0, None)
    agent.update_action_reward(action, 2.5)
    action.done = True
    after, _ = agent.request_for_action(traj, obs(1))
    assert traj.completed and after is not traj
    (segment,) = bench.segments(agent, 1)
    assert segment.terminated and segment.episode_return == 2.5


def test_an_action_may_be_added_to_the_trajectory_that_follows_its_own(bench: Bench) -> None:
    agent = bench.agent()
    traj, ending = agent.request_for_action(None, obs(0))
    traj, early = agent.request_for_action(traj, obs(1))
    ending.update_reward(0)
    agent.mark_end_of_trajectory(traj, ending)
    early.update_reward(1)
    later, action = agent.request_for_action(traj, obs(2))
    agent.add_to_trajectory(later, early)
    action.update_reward(2)
    agent.mark_end_of_trajectory(later, action)
    assert [s.rewards.tolist() for s in bench.segments(agent, 2)] == [[0], [1, 2]]
    other, _ = agent.request_for_action(None, obs(3))
    agent.add_to_trajectory(other, agent.request_for_action(None, obs(4))[1])
    assert (len(other), agent.stats()["counters"]["late_actions_dropped"]) == (0, 1), "it belongs to another episode"


def test_what_the_host_does_to_its_buffers_afterwards_does_not_matter(bench: Bench) -> None:
    agent = bench.agent()
    buffer = obs(1)
    traj, action = agent.request_for_action(None, buffer)
    buffer[:] = 99
    action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action)
    (segment,) = bench.segments(agent, 1)
    np.testing.assert_array_equal(segment.observations, [obs(1)])


def test_late_rewards_are_waited_for_and_keep_their_order(bench: Bench) -> None:
    agent = bench.agent()
    traj: Any = None
    actions = []
    for number in range(17):
        traj, action = act(agent, traj, number, None)
        actions.append(action)
    assert agent.stats()["submitted"] == 0
    for action in actions[8:16]:
        action.update_reward(2)
    assert agent.stats()["submitted"] == 0  # the first segment still waits, and it must be sent first
    for action in actions[:8]:
        action.update_reward(1)
    agent.update_action_reward(actions[16], 3)
    agent.mark_end_of_trajectory(traj, actions[16])
    segments = bench.segments(agent, 3)
    assert [s.segment_index for s in segments] == [0, 1, 2]
    assert segments[2].episode_return == 8 + 16 + 3
    with pytest.raises(RewardError, match="step 0 was queued for sending with its reward"):
        actions[0].update_reward(5)


def test_rewards_that_never_come_are_dropped_at_the_source(bench: Bench) -> None:
    agent = bench.agent(reward_timeout_s=0.0)
    traj = None
    for number in range(9):
        traj, action = act(agent, traj, number, None)
    traj, last = agent.request_for_action(traj, obs(9))
    stats = agent.stats()
    assert (stats["dropped"], stats["submitted"]) == ({"reward_timeout": 1}, 1)
    for late in (action, last):
        late.update_reward(1)
    agent.mark_end_of_trajectory(traj, last)
    (segment,) = bench.segments(agent, 1)
    assert (segment.segment_index, segment.episode_return, segment.episode_length) == (1, None, 10)


def in_the_order_of_a_store(agent: RL4SysAgent, steps: int, lag: int, **ending: Any) -> list[Any]:
    """Play one episode of a host whose rewards come `lag` steps late."""
    traj: Any = None
    queue: list[Any] = []
    actions = []
    for step in range(steps):
        traj, action = agent.request_for_action(traj, obs(step))
        actions.append(action)
        queue.append(action)
        if len(queue) > lag:
            late = queue.pop(0)
            late.update_reward(late.obs[0] + 1)
            agent.add_to_trajectory(traj, late)
    agent.mark_end_of_trajectory(traj, action, **ending)
    for late in queue:
        late.update_reward(late.obs[0] + 1)
        agent.add_to_trajectory(traj, late)
    return actions


@pytest.mark.parametrize("ending", [{}, {"truncated": True, "final_obs": obs(9)}], ids=["terminated", "truncated"])
@pytest.mark.parametrize("lag", [1, 3, 7])
def test_actions_are_added_after_the_end_while_the_segment_waits(bench: Bench, lag: int, ending: dict[str, Any]) -> None:
    agent = bench.agent()
    for _ in range(2):
        actions = in_the_order_of_a_store(agent, 7, lag, **ending)
    segments = bench.segments(agent, 2 if lag == 1 else 4)  # the step that ends an episode has a segment of its own
    for episode_id in dict.fromkeys(s.episode_id for s in segments):
        *before, last = parts = [s for s in segments if s.episode_id == episode_id]
        assert [s.segment_index for s in parts] == [0, 1][: len(parts)]
        assert (last.episode_length, last.episode_return) == (7, 28.0)
        assert (last.terminated, last.truncated) == (not ending, bool(ending))
        np.testing.assert_array_equal(np.concatenate([s.rewards for s in parts]), np.arange(7) + 1)
        seen = [*(row for s in before for row in s.observations[:-1]), *last.observations]
        np.testing.assert_array_equal(seen, [obs(i) for i in [*range(7), *([9] if ending else [])]])
        for part in before:
            np.testing.assert_array_equal(part.observations[-1], last.observations[0])
    np.testing.assert_array_equal(np.concatenate([s.actions for s in parts]), [int(action.act) for action in actions])
    log_probs = np.array([action.log_prob for action in actions], np.float32)
    np.testing.assert_array_equal(np.concatenate([s.log_probs for s in parts]), log_probs)
    assert "late_actions_dropped" not in agent.stats()["counters"]


@pytest.mark.parametrize("how", ["without an action", "with an earlier action", "with an idle action"])
def test_an_end_without_the_last_requested_action_is_no_terminal_state(bench: Bench, how: str) -> None:
    agent = bench.agent(on_bad_input="drop")
    traj, first = agent.request_for_action(None, obs(0))
    traj, second = agent.request_for_action(traj, obs(1))
    traj, late = agent.request_for_action(traj, obs(2))
    agent.add_to_trajectory(traj, first)
    agent.add_to_trajectory(traj, second)
    first.update_reward(1)
    idle = agent.request_for_action(traj, np.full(4, np.nan))[1]
    ended = {"without an action": None, "with an earlier action": first, "with an idle action": idle}[how]
    agent.mark_end_of_trajectory(traj, ended)
    late.update_reward(3)
    agent.add_to_trajectory(traj, late)
    second.update_reward(2)
    counters = agent.stats()["counters"]
    if ended is first:  # `late` was requested after the step that ended the episode: it belongs to the next one
        agent.mark_end_of_trajectory(traj, late)
        *_, (last) = bench.segments(agent, 2)
        assert (last.rewards.tolist(), last.terminated, last.episode_return) == ([3], True, 3.0)
    else:
        assert counters["late_actions_dropped"] == 1
    segment = bench.segments(agent, 1 + (ended is first))[0]
    assert (segment.rewards.tolist(), segment.observations[:, 0].tolist()) == ([1, 2], [0, 1, 2])
    assert not segment.terminated and segment.episode_return is None


class GraphStore:
    """A host that requests actions in bursts, and adds them a burst later, in the order of RL4Sys's graph store."""

    def __init__(self, agent: RL4SysAgent, *, keeps: bool = False, stores: bool = False) -> None:
        self.agent, self.keeps, self.stores = agent, keeps, stores
        self.traj: Any = None
        self.queue: list[tuple[Any, Any]] = []
        self.added: list[int] = []

    def request(self, count: int) -> None:
        for _ in range(count):
            number = len(self.added) + len(self.queue)
            self.traj, action = self.agent.request_for_action(self.traj, obs(number))
            self.queue.append((self.traj, action))

    def add(self, count: int) -> None:
        for _ in range(count):
            its_traj, action = self.queue.pop(0)
            traj = its_traj if self.keeps else self.traj
            self.added.append(int(action.obs[0]))
            action.update_reward(self.added[-1] + 0.5)
            ends = len(self.added) % 4 == 0
            if not (ends and self.stores):
                self.agent.add_to_trajectory(traj, action)
            if ends:
                self.agent.mark_end_of_trajectory(traj, action)


@pytest.mark.parametrize("stores", [False, True], ids=["added and marked", "marked"])
@pytest.mark.parametrize("keeps", [False, True], ids=["newest trajectory", "own trajectories"])
def test_actions_that_were_requested_before_an_end_and_are_added_after_it_are_the_next_episodes(
    bench: Bench, keeps: bool, stores: bool
) -> None:
    agent = bench.agent()
    host = GraphStore(agent, keeps=keeps, stores=stores)
    for count in (10, 3, 11, 1, 7):
        host.request(count)
        host.add(max(0, len(host.queue) - 9))
    host.add(len(host.queue))
    assert len(host.added) == 32
    segments = bench.segments(agent, 8)
    assert [s.observations[:, 0].tolist() for s in segments] == [[4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(8)]
    assert all(s.terminated and s.segment_index == 0 and s.episode_length == 4 for s in segments)
    assert [s.episode_return for s in segments] == [16.0 * k + 8.0 for k in range(8)]
    assert len({s.episode_id for s in segments}) == 8
    stats = agent.stats()
    assert (stats["steps"], stats["episodes"], stats["waiting_for_rewards"]) == (32, 8, 0)
    assert not {"late_actions_dropped", "skipped_actions"} & stats["counters"].keys()


def test_an_episode_that_late_actions_have_begun_goes_on_with_the_next_request(bench: Bench) -> None:
    """A full segment of it ends at the next step's observation, as the segments of any other episode."""
    agent = bench.agent()
    host = GraphStore(agent)
    host.request(15)
    host.add(4)
    for _ in range(10):
        _, action = host.queue.pop(0)
        action.update_reward(1)
        agent.add_to_trajectory(host.traj, action)
    ended = host.traj
    host.request(1)
    assert host.traj is not ended and len(host.traj) == 10 and not host.traj.completed
    for _, action in host.queue:
        action.update_reward(1)
        agent.add_to_trajectory(host.traj, action)
    agent.mark_end_of_trajectory(host.traj, action)
    first, full, rest = bench.segments(agent, 3)
    assert (first.steps, full.steps, rest.steps) == (4, 8, 4)
    assert full.episode_id == rest.episode_id != first.episode_id
    assert full.observations[:, 0].tolist() == [*range(4, 13)] and not full.terminated
    assert (rest.segment_index, rest.episode_length, rest.episode_return) == (1, 12, 12.0)


def test_a_late_action_goes_to_the_episode_that_waits_for_it_also_with_the_next_trajectory(bench: Bench) -> None:
    """The host has one variable for its trajectory: it adds the rest of an episode when the next one runs."""
    agent = bench.agent()
    traj: Any = None
    first = []
    for step in range(4):
        traj, action = agent.request_for_action(traj, obs(step))
        first.append(action)
    agent.mark_end_of_trajectory(traj, action)
    traj, later = agent.request_for_action(traj, obs(9))
    for action in first:
        action.update_reward(1)
        agent.add_to_trajectory(traj, action)  # the last one was stored by the call that ended its episode
    later.update_reward(5)
    agent.mark_end_of_trajectory(traj, later)
    before, last, next_one = bench.segments(agent, 3)
    assert (before.observations[:, 0].tolist(), last.observations[:, 0].tolist()) == ([0, 1, 2, 3], [3])
    assert (last.terminated, last.episode_return, last.episode_length) == (True, 4.0, 4)
    assert (next_one.observations[:, 0].tolist(), next_one.terminated, next_one.episode_return) == ([9], True, 5.0)
    assert "late_actions_dropped" not in agent.stats()["counters"]


def test_an_end_with_an_action_of_an_earlier_episode_is_no_terminal_state(bench: Bench) -> None:
    agent = bench.agent()
    traj, first = agent.request_for_action(None, obs(0))
    first.update_reward(1)
    agent.mark_end_of_trajectory(traj, first)
    agent.mark_end_of_trajectory(traj, first)  # a second time: nothing to end
    traj, second = agent.request_for_action(traj, obs(1))
    agent.add_to_trajectory(traj, second)
    second.update_reward(2)
    agent.mark_end_of_trajectory(traj, first)
    assert traj.completed
    one, other = bench.segments(agent, 2)
    assert (one.terminated, one.episode_return) == (True, 1.0)
    assert (other.terminated, other.truncated, other.episode_return, other.rewards.tolist()) == (False, True, None, [2])


@pytest.mark.parametrize("holds", [True, False], ids=["the host holds them", "the host has given them up"])
def test_requested_actions_are_kept_as_long_as_the_host_can_add_them(bench: Bench, holds: bool) -> None:
    agent = bench.agent(queue_items=1 << 12)
    traj: Any = None
    held = []
    for step in range(5000):
        traj, action = agent.request_for_action(traj, obs(step))
        if holds or step % 1000 == 7:
            held.append(action)
    assert len(traj.requested) <= (5000 if holds else 1024 + 2 * len(held))
    for action in held:
        action.update_reward(1)
        agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, held[-1])
    segments = bench.segments(agent, 625 if holds else 5)
    numbers = [s.observations[:, 0].tolist() for s in segments]
    if holds:
        assert [n for row in numbers for n in row[:8]] == [*range(5000)]
    else:  # each one ends at the observation of the next step, which is not recorded
        assert numbers == [*([1000 * k + 7, 1000 * k + 8] for k in range(4)), [4007]]
        assert [s.segment_index for s in segments] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("end", [{}, {"truncated": True, "final_obs": obs(2), "final_mask": [0, 0, 1]}], ids=["ended", "cut"])
def test_masks_stay_with_their_observations_when_actions_are_added_late(bench: Bench, end: dict[str, Any]) -> None:
    agent = bench.agent()
    traj, first = agent.request_for_action(None, obs(0), [1, 0, 0])
    traj, second = agent.request_for_action(traj, obs(1), [0, 1, 1])
    agent.mark_end_of_trajectory(traj, second, **end)
    first.update_reward(1)
    agent.add_to_trajectory(traj, first)
    second.update_reward(2)
    before, last = bench.segments(agent, 2)
    assert before.masks is not None and last.masks is not None
    assert before.masks.tolist() == [[True, False, False], [False, True, True]]
    assert last.masks.tolist() == [[False, True, True], *([[False, False, True]] if end else [])]


def test_an_action_that_is_added_when_its_segment_has_left_is_dropped_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    agent = bench.agent()
    for _ in range(3):
        traj, first = agent.request_for_action(None, obs(0))
        traj, last = agent.request_for_action(traj, obs(1))
        last.update_reward(1)
        agent.mark_end_of_trajectory(traj, last)
        first.update_reward(1)
        agent.add_to_trajectory(traj, first)
    assert agent.stats()["counters"]["late_actions_dropped"] == 3
    assert [s.steps for s in bench.segments(agent, 3)] == [1, 1, 1]
    assert caplog.text.count("after the end of its trajectory") == 1


def test_a_segment_grows_beyond_its_limit_for_late_actions_but_not_beyond_the_learners(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = bench.agent()
    assert agent._parts.longest_segment > 1000
    monkeypatch.setattr(type(agent._parts), "longest_segment", 8)
    traj: Any = None
    for step in range(9):
        traj, action = agent.request_for_action(traj, obs(step))
        if step:
            agent.add_to_trajectory(traj, action)
        else:
            forgotten = action
        if step < 8:
            action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action)
    agent.add_to_trajectory(traj, forgotten)
    action.update_reward(1)
    assert agent.stats()["counters"]["late_actions_dropped"] == 1
    (segment,) = bench.segments(agent, 1)
    assert (segment.steps, segment.episode_length) == (8, 8)


@pytest.mark.parametrize("comes", [True, False], ids=["its reward comes", "its reward never comes"])
def test_a_late_action_without_a_reward_lets_a_complete_segment_wait(bench: Bench, comes: bool) -> None:
    """The last segment is complete, but an earlier one is not. So a late action can still join it."""
    agent = bench.agent()
    traj: Any = None
    actions = []
    for step in range(10):
        traj, action = agent.request_for_action(traj, obs(step))
        actions.append(action)
        if step < 8:
            agent.add_to_trajectory(traj, action)
        if step not in (3, 8):
            action.update_reward(1)
    agent.mark_end_of_trajectory(traj, actions[9])
    agent.add_to_trajectory(traj, actions[8])
    actions[3].update_reward(1)
    assert (agent.stats()["submitted"], agent.stats()["waiting_for_rewards"]) == (1, 1)
    if comes:
        actions[8].update_reward(1)
        _, late, last = bench.segments(agent, 3)
        assert (late.steps, late.segment_index, last.segment_index) == (1, 1, 2)
        assert (last.steps, last.episode_length, last.episode_return) == (1, 10, 10.0)
    else:
        pending = agent._parts.pending
        pending.late = [(0.0, *entry[1:]) for entry in pending.late]
        agent.request_for_action(None, obs(0))
        assert (agent.stats()["submitted"], agent.stats()["dropped"]) == (3, {"reward_timeout": 1})


def test_a_simulator_that_adds_after_the_end_is_told(bench: Bench) -> None:
    agent = bench.agent(overflow="wait")
    traj, first = agent.request_for_action(None, obs(0))
    traj, last = agent.request_for_action(traj, obs(1))
    last.update_reward(1)
    agent.mark_end_of_trajectory(traj, last)
    with pytest.raises(ActionError, match="has ended"):
        agent.add_to_trajectory(traj, first)
    nothing: Any = None
    with pytest.raises(ActionError, match="there is no trajectory to end"):
        agent.mark_end_of_trajectory(nothing, first)


def test_an_ended_segment_waits_for_its_rewards_and_no_longer_than_its_time(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    agent = bench.agent(reward_timeout_s=0.0)
    for _ in range(2):
        traj, action = agent.request_for_action(None, obs(0))
        agent.mark_end_of_trajectory(traj, action)
    agent.request_for_action(None, obs(0))
    assert (agent.stats()["dropped"], agent.stats()["counters"]["ended_without_rewards"]) == ({"reward_timeout": 2}, 2)
    assert caplog.text.count("step 0 of segment 0 has no reward") == 1
    assert caplog.text.count("1 rewards did not come within 0 s") == 1
    with pytest.raises(RewardError, match="not all rewards of its segment came within reward_timeout_s"):
        action.update_reward(1)


def test_a_missing_reward_at_the_end_names_its_step(bench: Bench) -> None:
    agent = bench.agent(overflow="wait")
    traj: Any = None
    for step in range(3):
        traj, action = agent.request_for_action(traj, obs(step))
        agent.add_to_trajectory(traj, action)
        if step != 1:
            action.update_reward(1)
        else:
            forgotten = action
    with pytest.raises(RewardError, match="step 1 "):
        agent.mark_end_of_trajectory(traj, action)
    forgotten.update_reward(4)
    agent.mark_end_of_trajectory(traj, action)
    assert bench.segments(agent, 1)[0].episode_return == 6


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "much", None, [1.0, 2.0]])
def test_a_reward_is_one_finite_number(bench: Bench, reward: object) -> None:
    agent = bench.agent()
    _, action = agent.request_for_action(None, obs(0))
    with pytest.raises(RewardError):
        action.update_reward(reward)


def test_rewards_in_the_forms_that_hosts_have(bench: Bench) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0))
    agent.add_to_trajectory(traj, action)
    for reward in (1, True, np.float32(1), np.array(1.0), np.array([1.0])):
        action.update_reward(reward)
        assert action.reward == 1.0


def test_one_leading_axis_is_one_step(bench: Bench) -> None:
    agent = bench.agent()
    _, action = agent.request_for_action(None, obs(0)[None])
    assert isinstance(action.act, np.integer)
    assert action.obs.shape == (4,)


@pytest.mark.parametrize("leading", [False, True])
def test_a_box_action_has_the_spaces_shape_dtype_and_bounds(bench: Bench, leading: bool) -> None:
    space = BoxSpace((2,), "<f8", -0.05, 0.05)
    agent = bench.agent(action_space=space)
    traj = None
    acts = []
    for step in range(8):
        given = obs(step)[None] if leading else obs(step)
        traj, action = agent.request_for_action(traj, given)
        assert action.act.shape == ((1, 2) if leading else (2,))
        assert action.act.dtype == np.float64
        assert (np.abs(action.act) <= 0.05).all()
        acts.append(action.act)
        action.update_reward(0)
        agent.add_to_trajectory(traj, action)
    assert traj is not None
    agent.mark_end_of_trajectory(traj)
    (segment,) = bench.segments(agent, 1)
    assert segment.actions.dtype == np.float32
    assert (np.abs(segment.actions) > 0.05).any()  # segments have the raw sample


def test_masks_are_obeyed_and_travel(bench: Bench) -> None:
    agent = bench.agent()
    traj = action = None
    for step in range(6):
        mask = [[0, 1, 0]] if step % 2 else np.array([True, False, False])
        traj, action = agent.request_for_action(traj, obs(step), mask)
        assert action.act == step % 2
        assert action.log_prob == 0.0
        action.update_reward(0)
        agent.add_to_trajectory(traj, action)
    assert traj is not None
    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs(9))
    (segment,) = bench.segments(agent, 1)
    assert segment.masks is not None
    np.testing.assert_array_equal(segment.masks[:2], [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(segment.masks[6], [1, 1, 1])


@pytest.mark.parametrize("first", [None, [1, 1, 0]])
def test_the_mask_of_the_final_observation_travels_in_the_last_row(bench: Bench, first: list[int] | None) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0), first)
    action.update_reward(0)
    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs(1), final_mask=[[0, 1, 0]])
    (segment,) = bench.segments(agent, 1)
    assert segment.masks is not None
    assert segment.masks.tolist() == [[bool(allowed) for allowed in first or [1, 1, 1]], [False, True, False]]


def test_the_mask_of_the_final_observation_is_not_used_in_a_terminal_state(bench: Bench) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0))
    action.update_reward(0)
    agent.mark_end_of_trajectory(traj, action, final_obs=[1], final_mask=[0, 0, 0])
    (segment,) = bench.segments(agent, 1)
    assert segment.terminated and segment.masks is None


class Tensor:
    """A tensor that has only the methods that the actor calls."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def detach(self) -> Self:
        return self

    def cpu(self) -> Self:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array


@pytest.mark.parametrize(
    "make", [list, tuple, np.asarray, lambda v: np.asarray(v, dtype=np.float64), lambda v: Tensor(np.asarray(v))]
)
def test_observations_in_the_forms_that_hosts_have(bench: Bench, make: Callable[[list[float]], object]) -> None:
    _, action = bench.agent().request_for_action(None, make([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(action.obs, np.array([1, 2, 3, 4], dtype=np.float32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(5, dtype=np.float32), r"shape \(5,\)"),
        (np.zeros((2, 4), dtype=np.float32), r"shape \(2, 4\)"),
        (np.array([0, np.nan, 0, 0], dtype=np.float32), "element 1 is nan"),
        ([0, 0, float("inf"), 0], "element 2 is inf"),
        (["a", "b", "c", "d"], "dtype"),
        (np.zeros(4, dtype=np.complex64), "dtype"),
        (None, "NoneType"),
        ([[1, 2], [3]], "list"),
    ],
)
def test_a_bad_observation_raises_and_changes_nothing(bench: Bench, given: object, message: str) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0))
    with pytest.raises(ObservationError, match=message):
        agent.request_for_action(traj, given)
    action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action)
    assert bench.segments(agent, 1)[0].steps == 1


@pytest.mark.parametrize("size", [4, 200])
def test_a_number_beyond_float32_is_refused_and_does_not_harm_the_policy(bench: Bench, size: int) -> None:
    """Policies compute in float32, so such a number would be an infinity, and the policy would be thought to have diverged."""
    agent = bench.agent(observation_space=BoxSpace((size,), "<f8"))
    traj, _ = agent.request_for_action(None, np.zeros(size))
    for values in ([1e39], [-1e300, 1e300], [2.0**128, -(2.0**128)]):
        given = np.zeros(size)
        given[1 : 1 + len(values)] = values
        with pytest.raises(
            ObservationError, match=r"element 1 is .*; every element must fit float32, whose limit is 3.40282e\+38"
        ):
            agent.request_for_action(traj, given)
        with pytest.raises(ObservationError, match="fit float32"):
            agent.request_for_actions(None, given[None])
    for value in (1e30, 1e-300):
        agent.request_for_action(traj, np.full(size, value))
    counters = agent.stats()["counters"]
    assert not counters.get("rollbacks")
    with pytest.raises(ObservationError, match="element 0 is nan; every element must be finite"):
        agent.request_for_action(traj, np.full(size, np.nan))


def test_an_observation_that_loses_information_is_refused(bench: Bench) -> None:
    agent = bench.agent(observation_space=BoxSpace((4,), "|u1", 0, 255))
    with pytest.raises(ObservationError, match="float64"):
        agent.request_for_action(None, np.array([0.5, 1, 2, 3]))
    for given in ([1.9, 0, 0, 0], [300, 0, 0, 0], [-1, 0, 0, 0], [float("nan"), 0, 0, 0], [float("inf"), 0, 0, 0]):
        with pytest.raises(ObservationError, match="change in uint8"):
            agent.request_for_action(None, given)
    for exact in ([255, 0, True, 2.0], np.array([255, 0, 1, 2], np.uint8)):
        np.testing.assert_array_equal(agent.request_for_action(None, exact)[1].obs, [255, 0, 1, 2])


BAD_MASKS = [
    ([0, 0, 0], "forbids all 3"),
    ([1, 1], "shape"),
    ([1, 2, 0], "0 and 1"),
    ([[1, 0, 0]] * 2, "shape"),
    ([[1, 0], [1]], "can't be read"),
    (["a", "b", "c"], "0 and 1|can't be read"),
    ([None, 1, 1], "0 and 1"),
]


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS)
def test_a_bad_mask_raises(bench: Bench, mask: object, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        bench.agent().request_for_action(None, obs(0), mask)


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS)
def test_a_bad_mask_of_the_final_observation_raises_and_changes_nothing(bench: Bench, mask: object, message: str) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0))
    action.update_reward(1)
    with pytest.raises(MaskError, match=message):
        agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs(1), final_mask=mask)
    assert not traj.completed and not action.stored
    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs(1), final_mask=[0, 0, 1])
    (segment,) = bench.segments(agent, 1)
    assert segment.masks is not None and segment.masks.tolist() == [[True] * 3, [False, False, True]]


def test_a_mask_of_the_final_observation_needs_discrete_actions(bench: Bench) -> None:
    agent = bench.agent(action_space=BoxSpace((2,), low=-1.0, high=1.0))
    traj, action = agent.request_for_action(None, obs(0))
    action.update_reward(1)
    with pytest.raises(MaskError, match="continuous"):
        agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs(1), final_mask=[1, 1])


def test_bad_input_can_be_answered_instead(bench: Bench) -> None:
    agent = bench.agent(on_bad_input="drop")
    traj, first = agent.request_for_action(None, [float("nan")] * 4)
    assert first.act == 0  # the baseline
    traj, good = agent.request_for_action(traj, obs(0))
    traj, bad = agent.request_for_action(traj, obs(0), [0, 0, 0])
    assert bad.act == good.act
    for action in (first, good, bad):
        action.update_reward(1)
        agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, bad)
    assert bench.segments(agent, 1)[0].steps == 1
    assert agent.stats()["counters"]["bad_input.ObservationError"] == 1
    assert agent.stats()["counters"]["bad_input.MaskError"] == 1


@pytest.mark.parametrize("leading", [False, True])
def test_what_the_host_does_to_an_action_does_not_change_the_answer_to_bad_input(bench: Bench, leading: bool) -> None:
    agent = bench.agent(on_bad_input="drop", action_space=BoxSpace((2,), low=-1000.0, high=1000.0))
    given = obs(1)[None] if leading else obs(1)
    traj, first = agent.request_for_action(None, given)
    for _ in range(2):  # the second request takes the fast path
        agent.add_to_trajectory(traj, first)
        traj, first = agent.request_for_action(traj, given)
        expected = first.act.copy()
        with pytest.raises(ValueError, match="read-only"):
            first.act[:] = 10
        for _ in range(3):
            traj, action = agent.request_for_action(traj, np.full(4, np.nan))
            np.testing.assert_array_equal(action.act, expected)
            action.act[:] = 10


class Unreadable:
    """An array of a library whose conversion fails, for example because numpy does not have its dtype."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise self._error

    def detach(self) -> Any:
        raise self._error

    def item(self) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [TypeError("Got unsupported ScalarType BFloat16"), OSError("the device is gone")])
def test_arrays_that_cannot_be_read_are_bad_input(bench: Bench, error: Exception) -> None:
    agent = bench.agent()
    _, action = agent.request_for_action(None, obs(0))
    with pytest.raises(ObservationError, match=str(error)):
        agent.request_for_action(None, Unreadable(error))
    with pytest.raises(MaskError, match=str(error)):
        agent.request_for_action(None, obs(0), Unreadable(error))
    with pytest.raises(RewardError):
        action.update_reward(Unreadable(error))


def test_dropping_bad_input_covers_final_observations_and_rewards(bench: Bench) -> None:
    agent = bench.agent(on_bad_input="drop")
    for final in (np.full(4, np.nan), None):
        traj, first = agent.request_for_action(None, obs(1))
        agent.add_to_trajectory(traj, first)
        first.update_reward(1)
        first.update_reward(float("nan"))
        assert first.reward == 1.0
        traj, last = agent.request_for_action(traj, obs(2))
        last.update_reward("much")
        last.update_reward(2)
        agent.mark_end_of_trajectory(traj, last, truncated=True, final_obs=final)
        first.update_reward(5)  # too late to have an effect
    for segment in bench.segments(agent, 2):
        assert (segment.rewards.tolist(), segment.observations[:, 0].tolist()) == ([1, 2], [1, 2, 2])
    counters = agent.stats()["counters"]
    assert (counters["bad_input.ObservationError"], counters["bad_input.RewardError"]) == (2, 6)


@pytest.mark.parametrize(
    ("final", "mask", "error"),
    [
        (obs(9), [0, 0, 0], "MaskError"),
        (np.full(4, np.nan), [0, 0, 1], "ObservationError"),
        (None, [0, 0, 1], "ObservationError"),
    ],
)
def test_the_last_observation_replaces_a_bad_final_one_with_its_mask(
    bench: Bench, final: object, mask: object, error: str
) -> None:
    agent = bench.agent(on_bad_input="drop")
    traj, action = agent.request_for_action(None, obs(1), [1, 1, 0])
    action.update_reward(1)
    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=final, final_mask=mask)
    (segment,) = bench.segments(agent, 1)
    assert segment.masks is not None
    assert (segment.observations[:, 0].tolist(), segment.masks.tolist()) == ([1, 1], [[True, True, False]] * 2)
    assert agent.stats()["counters"][f"bad_input.{error}"] == 1


def test_dropping_a_bad_observation_keeps_the_end_of_the_episode_before_it(bench: Bench) -> None:
    agent = bench.agent(on_bad_input="drop")
    ended, action = act(agent, None, 0)
    action.done = True
    traj, _ = agent.request_for_action(ended, np.full(4, np.nan))
    assert ended.completed and traj is not ended
    (segment,) = bench.segments(agent, 1)
    assert (segment.terminated, segment.episode_return) == (True, 1.0)


def test_actions_and_trajectories_belong_to_their_agent(bench: Bench) -> None:
    one, two = bench.agent(), bench.agent()
    traj, action = one.request_for_action(None, obs(0))
    other, foreign = two.request_for_action(None, obs(0))
    with pytest.raises(ActionError, match="this agent"):
        one.add_to_trajectory(traj, foreign)
    with pytest.raises(ActionError, match="another agent"):
        one.request_for_action(other, obs(0))
    with pytest.raises(ActionError, match="another agent"):
        one.mark_end_of_trajectory(other, action)
    one.add_to_trajectory(traj, action)
    with pytest.raises(ActionError, match="stored already"):
        one.add_to_trajectory(traj, action)


def test_truncation_needs_the_final_observation(bench: Bench) -> None:
    agent = bench.agent()
    traj, action = agent.request_for_action(None, obs(0))
    action.update_reward(1)
    with pytest.raises(ObservationError, match="final_obs"):
        agent.mark_end_of_trajectory(traj, action, truncated=True)
    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs(1))
    assert bench.segments(agent, 1)[0].truncated


def test_a_closed_agent_says_so(bench: Bench) -> None:
    agent = bench.agent()
    agent.close()
    agent.close()
    with pytest.raises(Closed):
        agent.request_for_action(None, obs(0))
    with pytest.raises(Closed):
        agent.request_for_actions(None, obs(0)[None])


def test_no_learner_is_an_error_that_says_what_was_waited_for() -> None:
    config = AgentConfig(client_id="lab", train_server_address="inproc://nobody-here", connect_timeout_s=0.05)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(
        LearnerUnavailable, match=rf"no process listens there .*; `rl4sys-learner doctor {address}` tests each step"
    ):
        RL4SysAgent(config=AgentConfig(client_id="lab", train_server_address=address, connect_timeout_s=0.05))
    with pytest.raises(LearnerUnavailable, match=r"inproc://nobody-here within 0.05 s \(waiting for the learner to answer\)"):
        RL4SysAgent(config=config)


def test_what_differs_from_the_learner_is_named_with_both_values(bench: Bench) -> None:
    bench.agent()
    with pytest.raises(HandshakeRefused, match=r"action_space .*'n': 3.*'n': 5") as caught:
        bench.agent(action_space=DiscreteSpace(5))
    assert caught.value.field == "action_space"
    with pytest.raises(HandshakeRefused, match=r"algorithm_parameters.gamma of client 'lab' is 'not set'.* 0.5"):
        bench.agent(algorithm_parameters={"gamma": 0.5})
    with pytest.raises(HandshakeRefused, match="of client 'lab' is 'KEEPER' on the learner, but the actor has 'PPO'"):
        bench.agent(algorithm_name="PPO")
    with pytest.raises(ConfigError, match="client_id: expected 1 to 200 printable characters"):
        bench.agent(client_id="../up")
    with pytest.raises(HandshakeRefused, match="observation_space"):
        bench.agent(client_id="other", observation_space=None)


def test_an_agent_needs_one_configuration() -> None:
    with pytest.raises(ConfigError, match="either"):
        RL4SysAgent()


def test_many_environments_are_cut_together(bench: Bench) -> None:
    agent = bench.agent()
    trajs: Any = None
    for step in range(16):
        trajs, actions = agent.request_for_actions(trajs, np.stack([obs(10 * env + step) for env in range(3)]))
        for env, (traj, action) in enumerate(zip(trajs, actions, strict=True)):
            action.update_reward(env)
            agent.add_to_trajectory(traj, action)
            if env == 1 and step == 4:
                agent.mark_end_of_trajectory(traj, action)
    trajs, _ = agent.request_for_actions(trajs, np.stack([obs(env) for env in range(3)]))
    segments = bench.segments(agent, 7)
    assert sorted(s.steps for s in segments) == [3, 5, 8, 8, 8, 8, 8]
    for segment in segments:
        env = int(segment.rewards[0])
        assert (segment.rewards == env).all()
        rows = segment.observations[: segment.steps, 0]
        np.testing.assert_array_equal(rows, rows[0] + np.arange(segment.steps))


def test_masks_and_shapes_of_a_batch_are_checked(bench: Bench) -> None:
    agent = bench.agent()
    with pytest.raises(ObservationError, match=r"\(2, 3\)"):
        agent.request_for_actions([None, None], np.zeros((2, 3), dtype=np.float32))
    with pytest.raises(MaskError, match="forbids"):
        agent.request_for_actions(None, np.zeros((2, 4), dtype=np.float32), [[1, 1, 1], [0, 0, 0]])
    _, actions = agent.request_for_actions(None, np.zeros((2, 4), dtype=np.float32), [[0, 1, 0], [0, 0, 1]])
    assert [int(a.act) for a in actions] == [1, 2]
    for scalar in (3.0, None, np.float32(1)):
        with pytest.raises(ObservationError, match="batch of observations"):
            agent.request_for_actions(None, scalar)


def test_a_batch_of_no_environments_has_no_actions(bench: Bench) -> None:
    agent = bench.agent()
    assert agent.request_for_actions(None, np.zeros((0, 4), dtype=np.float32)) == ([], [])
    assert agent.request_for_actions([], np.zeros((0, 4), dtype=np.float32)) == ([], [])
    assert agent.request_for_actions([], []) == ([], [])
    with pytest.raises(ObservationError, match="0 observations"):
        agent.request_for_actions([], np.zeros((2, 4), dtype=np.float32))


def test_an_evaluating_actor_reports_the_return_of_each_episode(bench: Bench) -> None:
    """Its segments are acknowledged and counted, and the algorithm gets none of them."""
    agent = bench.agent(explore=False, overflow="wait")
    for episode in range(3):
        play(agent, 20, episode, truncated=True)  # longer than a segment of 8 steps
    agent.flush(10.0)
    stats = agent.stats()
    assert (stats["submitted"], stats["accepted"], stats["steps"]) == (3, 3, 3)
    bench.learner.drain(timeout_s=10.0)
    client = bench.learner.status()["clients"]["lab"]
    assert client["verdicts"]["evaluated"] == 3
    assert client["evaluation"] == {"episodes": 3, "mean_return": 20.0, "mean_length": 20.0, "version": 0}
    assert client["verdicts"]["evaluated"] == client["accepted"] == 3 and not client["pending"]
    assert (client["episodes"], client["steps"], bench.kept) == (0, 0, [])


@pytest.mark.parametrize("steps", [1, 8, 9])
def test_an_evaluation_ends_by_a_time_limit_with_the_action_that_is_given(bench: Bench, steps: int) -> None:
    """With 9 steps the given action is the only one of its segment, which then has no observation before it."""
    agent = bench.agent(explore=False)
    traj: Any = None
    for step in range(steps):
        traj, action = agent.request_for_action(traj, obs(step))
        action.update_reward(1.0)
        if step < steps - 1:
            agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action, truncated=True)
    agent.flush(10.0)
    bench.learner.drain(timeout_s=10.0)
    assert bench.learner.status()["clients"]["lab"]["evaluation"]["mean_return"] == steps
    assert "io_restarts" not in agent.stats()["counters"]


def test_an_evaluation_without_rewards_waits_for_them_and_a_cleared_one_is_not_reported(bench: Bench) -> None:
    agent = bench.agent(explore=False)
    traj, action = act(agent, None, 1, None)
    agent.mark_end_of_trajectory(traj, action)
    assert agent.stats()["submitted"] == 0
    action.update_reward(1.0)
    assert agent.stats()["submitted"] == 1
    traj = None
    for number in range(9):
        traj, _ = act(agent, traj, number)
    traj, action = agent.request_for_action(traj, obs(9))
    traj.clear()
    agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action)
    assert agent.stats()["submitted"] == 1


def test_an_evaluating_actor_takes_the_mode_and_can_submit_nothing(bench: Bench) -> None:
    agent = bench.agent(explore=False, report_returns=False)
    acts = set()
    for _ in range(10):
        traj, action = act(agent, None, 1, None)
        agent.mark_end_of_trajectory(traj, action)
        acts.add(int(action.act))
    agent.flush(5.0)
    assert len(acts) == 1
    assert agent.stats()["submitted"] == 0


def test_the_same_seed_acts_the_same(bench: Bench) -> None:
    runs = []
    for _ in range(2):
        agent = bench.agent(seed=3)
        runs.append([int(agent.request_for_action(None, obs(1))[1].act) for _ in range(50)])
    other = bench.agent(seed=4)
    assert runs[0] == runs[1]
    assert runs[0] != [int(other.request_for_action(None, obs(1))[1].act) for _ in range(50)]


def test_several_host_threads_use_one_agent(bench: Bench) -> None:
    agent = bench.agent()
    errors: list[BaseException] = []

    def host() -> None:
        try:
            for _ in range(40):
                play(agent, 5)
        except BaseException as exc:
            errors.append(exc)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=host) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    segments = bench.segments(agent, 160)
    assert all(s.steps == 5 and s.episode_return == 5 for s in segments)
    assert len({s.episode_id for s in segments}) == 160


def test_a_type_that_contradicts_the_algorithm_is_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.agent(type="offpolicy")
    assert "has type 'offpolicy', but the algorithm KEEPER is onpolicy" in caplog.text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pacing_lag": "abc"}, "pacing_lag"),
        ({"pacing_lag": -5}, "pacing_lag"),
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"on_lag": "nonsense"}, "on_lag"),
        ({"max_policy_lag": 1.5}, "max_policy_lag"),
        ({"publish_every_updates": -3}, "publish_every_updates"),
    ],
)
def test_impossible_parameters_are_refused_and_harm_nobody(bench: Bench, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(HandshakeRefused, match=message):
        bench.agent(client_id="bad", algorithm_parameters=parameters)
    assert bench.agent().version == 0


def test_parameters_that_cannot_travel_are_named_at_once(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="cannot be encoded"):
        bench.agent(algorithm_parameters={"seed": 1 << 70})
    with pytest.raises(ConfigError, match="cannot be encoded"):
        bench.agent(algorithm_parameters={"what": object()})


class Descriptors:
    """The `Wakeup` objects that were made, and the number of those that are still open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Wakeup] = []
        create = Wakeup.__init__

        def noted(wakeup: Wakeup) -> None:
            create(wakeup)
            self.made.append(wakeup)

        monkeypatch.setattr(Wakeup, "__init__", noted)

    @property
    def open(self) -> int:
        return sum(not wakeup._closed for wakeup in self.made)


NOBODY: dict[str, Any] = {
    "client_id": "lab",
    "algorithm_name": "PPO",
    "input_size": 4,
    "act_dim": 2,
    "train_server_address": "inproc://nobody-is-there",
}


def test_a_leaving_agent_sends_what_the_learner_can_store_and_not_only_what_it_can_train_on(bench: Bench) -> None:
    release = threading.Event()
    register_algorithm("BUSY", FakeAlgorithm.factory(steps_per_update=16, rollout_length=8, slow_s=1.0e3, release=release))
    agent = bench.agent(algorithm_name="BUSY")
    play(agent, 320)
    agent.close()
    accepted = bench.learner.status()["clients"]["lab"]["accepted"]
    release.set()
    assert (accepted, agent.stats()["in_actor"]) == (40, 0)


@pytest.mark.usefixtures("pure_form")
def test_a_thread_that_ends_after_close_has_given_up_closes_its_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, on which the thread does not run for half a second."""
    descriptors = Descriptors(monkeypatch)
    go_on = threading.Event()
    serve = ActorIOThread._serve

    def slow(thread: ActorIOThread, network: Any) -> None:
        serve(thread, network)
        go_on.wait()

    monkeypatch.setattr(ActorIOThread, "_serve", slow)
    agent = RL4SysAgent(config=AgentConfig(**NOBODY, connect_timeout_s=0, fallback="random"))
    agent.close(timeout_s=0.0)
    assert agent._io.alive and descriptors.open == len(descriptors.made) == 1
    go_on.set()
    assert agent._io.join(20.0)
    assert descriptors.open == 0


@pytest.mark.usefixtures("pure_form")
def test_a_thread_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = Descriptors(monkeypatch)

    def full(thread: ActorIOThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ActorIOThread, "start", full)
    with pytest.raises(RuntimeError, match="can't start"):
        RL4SysAgent(config=AgentConfig(**NOBODY))
    assert descriptors.made and descriptors.open == 0
