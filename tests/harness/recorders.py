"""Fake algorithms whose state names the segments that they have learned from. A worker process can import them as a plugin."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing.fakes import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import Segment


def name_of(episode_id: int, segment_index: int) -> str:
    return f"{episode_id:x}.{segment_index}"


class Recorder(FakeAlgorithm):
    """A fake algorithm whose state names, in an array, the segments that it has learned from.

    Segments that wait for the next update are not in the state. A C++ actor (native/tests/gate_actor.cpp) does not know the
    numbers of its episodes: its observations name the segment.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._settled = self._counts()

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        process, episode, step, mark = segment.observations[0]
        if mark == -1.0:
            self.keys[-1] = (int(process) << 32 | int(episode), int(step))

    def _counts(self) -> dict[str, int]:
        return {"segments": len(self.keys), "steps": self.steps, "updates": self.updates}

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        done = super().update(partial=partial)
        if done is not None:
            self._settled = self._counts()
        return done

    def state(self) -> dict[str, Any]:
        now = self._settled if self.kind == "onpolicy" else self._counts()
        keys = np.array(self.keys[: now["segments"]], dtype=np.uint64).reshape(-1, 2)
        return {**now, "pending": 0 if self.kind == "onpolicy" else self._pending, "keys": keys}

    def load(self, state: Mapping[str, Any]) -> None:
        self.segments, self.steps, self.updates = state["segments"], state["steps"], state["updates"]
        self._pending = state["pending"]
        self.keys = [(int(episode), int(index)) for episode, index in state["keys"]]
        self._used = self.segments, self.steps, self.corrected
        self._settled = self._counts()

    def restore(self, kept: tuple[Any, ...]) -> None:
        super().restore(kept)
        self._settled = self._counts()


class OffPolicyRecorder(Recorder):
    """A recorder that learns from each segment as it arrives."""

    kind = "offpolicy"


def _factory(kind: type[Recorder]) -> Any:
    def make(observation_space: Any, action_space: Any, parameters: Mapping[str, Any], seed: int) -> Recorder:
        return kind(mlp_spec(observation_space, action_space, "categorical", (8,)), FakeParameters(**parameters), seed)

    return make


register_algorithm("RECORD_ON", _factory(Recorder))
register_algorithm("RECORD_OFF", _factory(OffPolicyRecorder))
