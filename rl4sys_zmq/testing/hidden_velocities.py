"""CartPole without velocities, a task that needs a memory. The import of this module registers ``CartPoleNoVel-v1``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

__all__ = ["ENV", "HiddenVelocities"]

ENV = "rl4sys_zmq.testing.hidden_velocities:CartPoleNoVel-v1"
"""The name of the environment, with the module to import."""

SHOWN = np.array([0, 2])
"""The position of the cart and the angle of the pole."""


class HiddenVelocities(gymnasium.ObservationWrapper[NDArray[np.float32], Any, NDArray[np.float32]]):
    """A wrapper of CartPole that removes the two velocities from the observation."""

    def __init__(self, env: gymnasium.Env[NDArray[np.float32], Any]) -> None:
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(whole.low[SHOWN], whole.high[SHOWN], dtype=np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the position and the angle of an observation."""
        shown: NDArray[np.float32] = observation[SHOWN]
        return shown


def _make(**options: Any) -> HiddenVelocities:
    env: Any = CartPoleEnv(**options)
    return HiddenVelocities(env)


gymnasium.register(id="CartPoleNoVel-v1", entry_point=_make, max_episode_steps=500, reward_threshold=475.0)
