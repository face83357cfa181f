"""A host whose rewards come thirty steps late, across the ends of episodes, as in RL4Sys's graph store."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
from kit import drained

from rl4sys_zmq.values import Segment

from .conftest import Lab

LAG, STEPS = 30, 20_000


def reward_of(number: int) -> float:
    """Return the reward of a step: another number than its observation, and another one for each step."""
    return 0.5 - 3.0 * number


def numbers(segment: Segment) -> list[int]:
    """Return the numbers of a segment's steps, after a check that each step has its own observation and its own reward."""
    steps = segment.observations[: segment.steps]
    found = [int(number) for number in steps[:, 0]]
    np.testing.assert_array_equal(steps, np.repeat(np.array(found, np.float32)[:, None], 4, axis=1))
    np.testing.assert_array_equal(segment.rewards, np.array([reward_of(number) for number in found], np.float32))
    return found


def test_twenty_thousand_steps_with_late_rewards(inproc_lab: Lab, observed: list[Segment]) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, queue_items=1 << 16, rollout_length=128)
    rng = random.Random(4)
    queue: deque[tuple[Any, Any, int]] = deque()
    traj: Any = None
    left = rng.randrange(1, 200)
    played: list[list[int]] = [[]]
    for number in range(STEPS):
        played[-1].append(number)
        traj, action = agent.request_for_action(traj, np.full(4, number, np.float32))
        queue.append((traj, action, number))
        left -= 1
        if not left:
            agent.mark_end_of_trajectory(traj, action)
            left = rng.randrange(1, 200)
            played.append([])
        if len(queue) > LAG:
            its_traj, late, when = queue.popleft()
            late.update_reward(reward_of(when))
            agent.add_to_trajectory(its_traj, late)
    assert played[-1], "the last episode is not ended so far"
    agent.mark_end_of_trajectory(traj, action)
    for its_traj, late, when in queue:
        late.update_reward(reward_of(when))
        agent.add_to_trajectory(its_traj, late)
    agent.flush(30.0)
    stats = agent.stats()
    assert stats["waiting_for_rewards"] == stats["counters"].get("late_actions_dropped", 0) == 0
    assert stats["steps"] == STEPS
    assert stats["dropped_at_source"] == stats["refused"] == 0
    client = drained(learner)
    assert client["accepted"] == client["verdicts"]["trained"] + client["pending"] == stats["accepted"]
    assert len(observed) == stats["accepted"]
    stored: dict[int, list[int]] = {}
    for segment in observed:  # the segments of an episode arrive in order
        stored.setdefault(segment.episode_id, []).extend(numbers(segment))
    assert sorted(stored.values()) == played
