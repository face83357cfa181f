"""With ``like: sb3``, PPO trains on the sample of a plain Gaussian, and the environment gets the sample clipped to its bounds."""

from typing import Any

import numpy as np
import pytest
from kit import drained

from rl4sys_zmq.values import BoxSpace, Segment

from .conftest import Lab

pytest.importorskip("torch")

NARROW = BoxSpace((2,), low=-0.5, high=1.0)
VALUES = {"like": "sb3", "n_steps": 64, "n_epochs": 2, "batch_size": 32, "vf_coef": 0.5, "net_arch": [8]}


@pytest.mark.parametrize("inference", ["local", "remote"])
def test_the_learner_gets_the_sample_and_the_environment_the_clipped_one(
    inproc_lab: Lab, observed: list[Segment], inference: str
) -> None:
    learner = inproc_lab.learner(torch_threads=1, inference="auto")
    options: dict[str, Any] = {
        "algorithm_name": "PPO", "algorithm_parameters": {**VALUES, "seed": 1}, "action_space": NARROW,
        "observation_space": BoxSpace((4,), low=-1e6, high=1e6), "overflow": "wait", "inference": inference,
    }  # fmt: skip
    agent, other = inproc_lab.agent(learner, **options), inproc_lab.agent(learner, **options)
    acted: dict[int, Any] = {}
    traj: Any = None
    for number in range(74):
        traj, action = agent.request_for_action(traj, np.full(4, number, np.float32))
        if number >= 64:
            action.override(np.array([0.25, 1.0], np.float32), source="human")
        acted[number] = np.copy(action.act)
        action.update_reward(float(number % 7))
        (agent.mark_end_of_trajectory if number == 73 else agent.add_to_trajectory)(traj, action)
    client = drained(learner, agent)
    assert client["version"] == 1 and not client["verdicts"]["quarantined"] and other.version >= 0
    assert client["parameters"]["vf_coef"] == 1.0 and client["parameters"]["squash"] == "clip"
    assert client["scalars"]["losses/ratio_first"] < 1e-5, "the recorded probability is that of the recorded action"
    raw = {
        int(row[0]): action for segment in observed for row, action in zip(segment.observations, segment.actions, strict=False)
    }
    assert sorted(raw) == list(range(64)), "PPO does not train on overridden steps"
    for number, sample in raw.items():
        np.testing.assert_array_equal(acted[number], np.clip(sample, -0.5, 1.0))
    assert sum(bool((sample != acted[number]).any()) for number, sample in raw.items()) > 20
