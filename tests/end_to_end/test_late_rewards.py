"""A host whose rewards come thirty steps late, across the ends of episodes, as in RL4Sys's graph store."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np

from .conftest import Lab

LAG, STEPS = 30, 20_000


def test_twenty_thousand_steps_with_late_rewards(inproc_lab: Lab) -> None:
    """No call raises, and each action is either stored or counted as dropped."""
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, queue_items=1 << 16, rollout_length=128)
    rng = random.Random(4)
    queue: deque[tuple[Any, Any, int]] = deque()
    traj: Any = None
    left = rng.randrange(1, 200)
    episodes = 0
    for number in range(STEPS):
        traj, action = agent.request_for_action(traj, np.full(4, number % 1000, np.float32))
        queue.append((traj, action, number))
        left -= 1
        if not left:
            agent.mark_end_of_trajectory(traj, action)
            left = rng.randrange(1, 200)
            episodes += 1
        if len(queue) > LAG:
            its_traj, late, when = queue.popleft()
            late.update_reward(float(when % 1000))
            agent.add_to_trajectory(its_traj, late)
    agent.mark_end_of_trajectory(traj, action)
    for its_traj, late, when in queue:
        late.update_reward(float(when % 1000))
        agent.add_to_trajectory(its_traj, late)
    agent.flush(30.0)
    stats = agent.stats()
    dropped = stats["counters"].get("late_actions_dropped", 0)
    assert stats["waiting_for_rewards"] == 0
    assert stats["steps"] + dropped == STEPS
    assert stats["dropped_at_source"] == stats["refused"] == 0
    print(f"{episodes} episodes, {stats['steps']} steps stored, {dropped} dropped")
    assert dropped < STEPS // 10
    learner.drain(timeout_s=20.0)
    client = learner.status()["clients"]["lab"]
    assert client["accepted"] == client["verdicts"]["trained"] + client["pending"] == stats["accepted"]
