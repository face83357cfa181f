"""Actors that compute a convolutional policy in torch and in onnxruntime, with one learner, over each transport."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Lab

pytest.importorskip("onnxruntime")

SIZE = 10
PARAMETERS = {"network": "cnn", "steps_per_update": 16, "minibatch_size": 16, "update_epochs": 1, "rollout_length": 8}


def joined(lab: Lab, learner: Learner, **options: Any) -> RL4SysAgent:
    return lab.agent(
        learner,
        algorithm_name="PPO",
        algorithm_parameters=PARAMETERS,
        observation_space=BoxSpace((SIZE, SIZE, 1), "|u1", 0, 255),
        action_space=DiscreteSpace(3),
        **options,
    )


def test_an_actor_with_torch_is_trained_on_and_acts_as_one_with_onnxruntime(lab: Lab, seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (40, SIZE, SIZE, 1), dtype=np.uint8)
    learner = lab.learner()
    agent = joined(lab, learner, run_with="torch", overflow="wait")  # else it drops segments older than a new version
    traj: Any = None
    action: Any = None
    for image in images:
        traj, action = agent.request_for_action(traj, image)
        action.update_reward(1.0)
        agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action)
    agent.flush(20.0)
    learner.drain(timeout_s=20.0)
    assert learner.status()["clients"]["lab"]["verdicts"]["trained"] == 5
    version = learner.status()["clients"]["lab"]["version"]
    acts = []
    for name in ("torch", "onnxruntime"):
        other = joined(lab, learner, run_with=name, explore=False)
        other.wait_version(version, 20.0)
        acts.append([int(other.request_for_action(None, image)[1].act) for image in images])
    assert version >= 2 and acts[0] == acts[1]
