"""``RECORD_PPO``: PPO whose state names the segments that it has learned from. A worker process can import it as a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl4sys_zmq.algorithms.onpolicy.ppo import PPO
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.values import Segment

__all__ = ["RecordedPPO"]


class RecordedPPO(PPO):
    """A PPO that records the name of each segment that an update has used."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._used: list[tuple[int, int]] = []
        self._waiting: list[tuple[int, int]] = []

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        self._waiting.append((segment.episode_id, segment.segment_index))

    def update(self, *, partial: bool = False) -> dict[str, float] | None:
        done = super().update(partial=partial)
        if done is not None:
            self._used += self._waiting
            self._waiting = []
        return done

    def state(self) -> dict[str, Any]:
        return {**super().state(), "keys": np.array(self._used, dtype=np.uint64).reshape(-1, 2)}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load({name: value for name, value in state.items() if name != "keys"})
        self._used = [(int(episode), int(index)) for episode, index in state["keys"]]
        self._waiting = []


register_algorithm("RECORD_PPO", RecordedPPO)
