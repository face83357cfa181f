"""The replay buffer with Gymnasium's spaces and environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import raising

from rl4sys_zmq.errors import ConfigError, DataError
from rl4sys_zmq.serving import ReplayBuffer

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


def test_the_spaces_fix_the_columns_from_the_first_transition_on() -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Discrete(9)})
    store = ReplayBuffer(10, space, spaces.Box(-1, 1, (1,)))
    image = np.ones((2, 2), np.uint8)
    good = transition(observations={"camera": image, "place": 3}, next_observations={"camera": image, "place": 4}, actions=[0.25])
    for bad, key in (
        (good | {"observations": {"camera": image}}, "observations/place"),
        (good | {"actions": [1.0, 1.0]}, "actions"),
        (good | {"observations": {"camera": image[:1], "place": 3}}, "observations/camera"),
        (good | {"next_observations": {"camera": image * 1.5, "place": 3}}, "next_observations/camera"),
    ):
        with raising(DataError, key=key):
            store.insert(bad)
    store.insert(good)
    batch = store.sample(2)
    assert batch["actions"].dtype == np.float32
    assert batch["observations"]["place"].dtype == np.int64
    assert len(store) == 1


def test_an_environment_of_gymnasium_fills_it() -> None:
    env = gymnasium.make("CartPole-v1")
    store = ReplayBuffer(100, env.observation_space, env.action_space, seed=0)
    observation, _ = env.reset(seed=0)
    for action in [0, 1] * 20:
        following, reward, terminated, truncated, _ = env.step(action)
        store.insert(
            {
                "observations": observation,
                "actions": action,
                "rewards": reward,
                "next_observations": following,
                "terminated": terminated,
                "truncated": truncated,
            }
        )
        observation = following if not (terminated or truncated) else env.reset()[0]
    env.close()
    assert store.sample(7)["observations"].shape == (7, 4)


def test_a_space_without_a_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="Text"):
        ReplayBuffer(10, spaces.Dict({"words": spaces.Text(3)}))


def transition(**keys: Any) -> dict[str, Any]:
    return {"rewards": 1.0, "terminated": False, **keys}
