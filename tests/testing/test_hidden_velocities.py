"""The public test environment."""

from __future__ import annotations

import pytest


def test_the_task_without_velocities_shows_position_and_angle() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from rl4sys_zmq.testing.hidden_velocities import ENV

    env, whole = gymnasium.make(ENV), gymnasium.make("CartPole-v1")
    assert env.observation_space.shape == (2,) and env.spec.max_episode_steps == 500
    shown, every = env.reset(seed=3)[0], whole.reset(seed=3)[0]
    for action in (0, 1, 1):
        assert shown.tolist() == every[[0, 2]].tolist() and env.observation_space.contains(shown)
        shown, every = env.step(action)[0], whole.step(action)[0]
