"""An actor that sends compressed bodies. The learner trains on exactly the recorded data, also after it was replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import drained, play

from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import segments
from rl4sys_zmq.wire.coding import code

from .conftest import Lab

trained: list[tuple[Any, list[float]]] = []


class Keeps(FakeAlgorithm):
    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        trained.append((segment.observations.tolist(), segment.rewards.tolist()))


def build(observations: Any, actions: Any, parameters: Any, seed: int) -> Keeps:
    return Keeps(mlp_spec(observations, actions, "categorical", (8,)), FakeParameters(64, 64), seed)


register_algorithm("KEEPS", build)


def test_coded_trajectories_arrive_as_they_were(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    coded: list[bool] = []

    def spy(message: Any, sections: Any) -> Any:
        out = code(message, sections)
        coded.append(bool(out.codings))
        return out

    monkeypatch.setattr(segments, "code", spy)
    trained.clear()
    learner = lab.learner()
    address = learner.address
    agent = lab.agent(learner, algorithm_name="KEEPS", compression="zstd", rollout_length=64)
    sent = []
    for number in range(12):
        if number == 6:
            drained(learner, agent)
            learner.close()
            learner = lab.learner(address)
        observations = np.random.default_rng(number).integers(0, 3, (64, 4)).astype(np.float32)
        play(agent, observations, number)
        sent.append((observations.tolist(), [number] * 64))
    drained(learner, agent)
    assert trained == sent
    assert coded and any(coded)
    assert agent.stats()["refused"] == 0
