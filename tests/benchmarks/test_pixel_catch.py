"""The small task on images: the moves of the ball and of the paddle, and the return of a policy that looks."""

from __future__ import annotations

import numpy as np
import pytest

from rl4sys_zmq.algorithms import planned_policy
from rl4sys_zmq.values import observation_space_from, space_from

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from bench.learning_cases import CASES, PIXEL_CATCH  # noqa: E402


def test_a_policy_that_looks_catches_every_ball() -> None:
    env = gymnasium.make(PIXEL_CATCH)
    check_env(env.unwrapped, skip_render_check=True)
    image, _ = env.reset(seed=1)
    total, steps, done = 0.0, 0, False
    while not done:
        ball, paddle = (int(image[rows, :, 0].max(axis=0).argmax()) for rows in (slice(0, 9), slice(9, 10)))
        image, reward, done, _, _ = env.step(np.int64(1 + np.sign(ball - paddle)))
        total, steps = total + float(reward), steps + 1
    assert (total, steps) == (5.0, 45)


@pytest.mark.parametrize("name", ["ppo-pixels", "dqn-pixels"])
def test_the_cases_of_the_table_have_a_network_for_it(name: str) -> None:
    case, env = CASES[name], gymnasium.make(PIXEL_CATCH)
    assert case.values is not None
    spaces = observation_space_from(env.observation_space), space_from(env.action_space)
    spec = planned_policy(case.algorithm, *spaces, case.values)
    assert spec is not None and spec.kind == "onnx"
