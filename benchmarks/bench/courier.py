"""A small task on a Dict observation, with a Dict of two actions and a mask: a courier walks to a customer in changing wind.

Its import registers ``Courier-v0`` with Gymnasium, so that its id with this module, ``bench.courier:Courier-v0``,
works in every command.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

__all__ = ["MOVES", "Courier"]

SIZE = 5
MAX_STEPS = 40
ARRIVAL = 10.0
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
"""The change of row and column of each move: north, east, south, west."""

Parts = dict[str, Any]


class Courier(gymnasium.Env[Parts, Parts]):
    """A grid of 5 rows and 5 columns, with a courier, a customer and a wind.

    The observation has the cells of both as ``courier`` and ``customer`` (row and column), and the ``wind``, a number from -1 to
    1, which is drawn anew after each step. The action is a ``move`` to a neighbouring cell, and a number ``lean`` from -1 to 1.
    The mask in ``info["action_mask"]`` forbids the moves out of the grid, in the form of Gymnasium's ``Space.sample``.

    A step costs 1 and the distance between the wind and the lean. The arrival at the customer is worth 10 and ends the episode,
    which is truncated after 40 steps. So the best return is 10 minus the number of moves to the customer.
    """

    observation_space = spaces.Dict(
        courier=spaces.MultiDiscrete([SIZE, SIZE]), customer=spaces.MultiDiscrete([SIZE, SIZE]), wind=spaces.Box(-1.0, 1.0, (1,))
    )
    action_space = spaces.Dict(move=spaces.Discrete(len(MOVES)), lean=spaces.Box(-1.0, 1.0, (1,)))

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._courier = self._customer = np.zeros(2, np.int64)
        self._wind = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Parts, dict[str, Any]]:
        """Start an episode with both in different random cells."""
        super().reset(seed=seed)
        cells = self.np_random.choice(SIZE * SIZE, 2, replace=False)
        self._courier, self._customer = (np.array(divmod(int(cell), SIZE), np.int64) for cell in cells)
        self._blow()
        return self._observation(), self._info()

    def step(self, action: Parts) -> tuple[Parts, float, bool, bool, dict[str, Any]]:
        """Move the courier to a neighbouring cell. A move out of the grid, which the mask forbids, leaves it where it is."""
        cost = 1.0 + abs(float(self._wind[0]) - float(action["lean"][0]))
        self._courier = np.clip(self._courier + MOVES[int(action["move"])], 0, SIZE - 1)
        arrived = bool((self._courier == self._customer).all())
        self._blow()
        return self._observation(), ARRIVAL * arrived - cost, arrived, False, self._info()

    def _blow(self) -> None:
        self._wind = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)

    def _observation(self) -> Parts:
        return {"courier": self._courier.copy(), "customer": self._customer.copy(), "wind": self._wind.copy()}

    def _info(self) -> dict[str, Any]:
        to = self._courier + MOVES
        inside: NDArray[np.int8] = ((to >= 0) & (to < SIZE)).all(axis=1).astype(np.int8)
        return {"action_mask": {"move": inside, "lean": None}}


gymnasium.register("Courier-v0", f"{__name__}:Courier", max_episode_steps=MAX_STEPS)
