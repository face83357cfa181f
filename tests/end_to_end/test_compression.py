"""An actor that sends compressed bodies. The learner trains on exactly the recorded data, also after it was replaced."""

from typing import Any

import numpy as np
import pytest
from kit import drained, play

from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import segments
from rl4sys_zmq.wire.coding import code

from .conftest import Lab


def test_coded_trajectories_arrive_as_they_were(lab: Lab, observed: list[Segment], monkeypatch: pytest.MonkeyPatch) -> None:
    coded: list[bool] = []

    def spy(message: Any, sections: Any) -> Any:
        out = code(message, sections)
        coded.append(bool(out.codings))
        return out

    monkeypatch.setattr(segments, "code", spy)
    learner = lab.learner()
    address = learner.address
    agent = lab.agent(learner, compression="zstd", rollout_length=64)
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
    assert [(s.observations.tolist(), s.rewards.tolist()) for s in observed] == sent
    assert any(coded) or agent.stats()["form"] == "compiled"
    assert agent.stats()["refused"] == 0
