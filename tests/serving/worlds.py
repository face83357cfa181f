"""Environments that the tests serve: one with a Dict observation, one that counts its steps, one that fails on demand."""

import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROOM = "rl4sys-tests/Room-v0"


class Room(gymnasium.Env):
    """A point that walks to a goal. Its observation is a Dict that contains a Tuple."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
                "where": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.Discrete(5))),
                "doors": spaces.MultiBinary(3),
                "a note": spaces.Text(8),
            }
        )
        self.action_space = spaces.Dict(
            {"move": spaces.Box(-1.0, 1.0, (2,), np.float32), "open": spaces.MultiDiscrete([2, 2, 2])}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-1, 1, 2) if options is None else np.asarray(options.get("at", [0.0, 0.0]), float)
        self._doors, self._steps = np.zeros(3, np.int8), 0
        return self._see(), {"at": self._at.copy(), "distance": float(np.abs(self._at).sum())}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = np.clip(self._at + 0.3 * np.asarray(action["move"], float), -1, 1)
        self._doors = np.asarray(action["open"], np.int8)
        self._steps += 1
        distance = float(np.abs(self._at).sum())
        info = {"doors": {"open": int(self._doors.sum())}, "even": np.bool_(self._steps % 2 == 0)}
        return self._see(), -distance, distance < 0.2, self._steps >= 30, info

    def render(self) -> Any:
        return self._see()["image"] if self.render_mode == "rgb_array" else f"{self._steps}"

    def _see(self) -> Any:
        image = self.np_random.integers(0, 256, (8, 8, 3), np.uint8)
        where = self._at.copy(), np.int64(self._steps % 5)
        return {"image": image, "where": where, "doors": self._doors.copy(), "a note": "n" + str(self._steps)}


class Counting(gymnasium.Env):
    """An environment whose observation is the number of steps since its creation. An episode has 50 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1e9, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.steps = self.resets = self._in_episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets += 1
        self._in_episode = 0
        return np.array([float(self.steps)]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self._in_episode += 1
        return np.array([float(self.steps)]), 1.0, False, self._in_episode >= 50, {}


class Trouble(Counting):
    """An environment that steps on action 0.

    The other actions cause faults. A step that hangs returns when `release` is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(8)
        self.release = threading.Event()
        self.hangs = threading.Event()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        match int(action):
            case 1:
                raise ValueError("the arm is stuck")
            case 2:
                self.hangs.set()
                self.release.wait(20.0)
            case 3:
                observation = np.array([-1.0])
            case 4:
                observation = np.zeros(3)
            case 5:
                info = {"fine": 1, "engine": object(), "more": {"lock": threading.Lock(), "n": 2}, 7: 7}  # type: ignore[dict-item]
            case 6:
                raise SystemExit(3)
        return observation, reward, terminated, truncated, info
