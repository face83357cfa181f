"""A small task on images: a paddle at the bottom catches balls that fall from the top.

It has the idea of the task of that name in bsuite (Osband et al. 2020, Behaviour suite for reinforcement learning), with several
balls in an episode. Its import registers ``PixelCatch-v0`` with Gymnasium, so that its id with this module,
``bench.pixel_catch:PixelCatch-v0``, works in every command.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

__all__ = ["PixelCatch"]

SIZE = 10
BALLS = 5
LIT = 255


class PixelCatch(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """An environment with images ``[10, 10, 1]``, uint8, and three actions: left, stay, right.

    In each step the paddle moves by at most one pixel, and the ball falls by one. A ball that reaches the bottom row gives a
    reward of 1 on the paddle and of -1 elsewhere. Then the next ball starts in a random column of the top row. An episode has
    five balls, so its return is from -5 to 5, and an attentive paddle reaches 5.
    """

    observation_space = spaces.Box(0, LIT, (SIZE, SIZE, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._paddle = self._row = self._column = self._balls = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode with the paddle in the middle."""
        super().reset(seed=seed)
        self._paddle, self._balls = SIZE // 2, BALLS
        self._drop()
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move the paddle, and let the ball fall by one row."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), SIZE - 1)
        self._row += 1
        reward = 0.0
        if self._row == SIZE - 1:
            reward = 1.0 if self._column == self._paddle else -1.0
            self._balls -= 1
            if self._balls:
                self._drop()
        return self._image(), reward, self._balls == 0, False, {}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(SIZE))

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((SIZE, SIZE, 1), np.uint8)
        image[self._row, self._column] = image[SIZE - 1, self._paddle] = LIT
        return image


gymnasium.register("PixelCatch-v0", f"{__name__}:PixelCatch")
