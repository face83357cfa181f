"""An actor that sends recorded segments. A learner trains on each of them once, and no policy acts."""

from typing import Any

import numpy as np
import pytest
from kit import random_segment, until

from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.ops.recorded_actor import send_recorded
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, space_to_json

from .conftest import Lab
from .engine_lab import client_of

OBS, ACTIONS = BoxSpace((4,)), DiscreteSpace(2)


def episodes(count: int) -> list[Segment]:
    end: dict[str, Any] = {"rewards": np.ones(8, np.float32), "generation": 0, "episode_return": 8.0, "episode_length": 8}
    return [random_segment(8, number, "truncated", (OBS, ACTIONS), **end) for number in range(1, count + 1)]


def test_each_recorded_segment_is_trained_on_once(lab: Lab) -> None:
    learner = lab.learner(clients={"recorded": ClientConfig(algorithm_name="FAKE_OFF")})
    forms = space_to_json(OBS), space_to_json(ACTIONS)
    assert send_recorded(learner.address, "recorded", *forms, episodes(12)) == 12
    client = until(lambda: (c := client_of(learner, "recorded"))["updates"] == 6 and c, "six updates of 16 steps")
    assert client["verdicts"]["trained"] == 12 and client["steps"] == 96
    assert client["verdicts"]["refused"] == client["verdicts"]["duplicate"] == 0


def test_a_refusal_is_raised_with_its_reason(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(clients={"recorded": ClientConfig(algorithm_name="FAKE_OFF", observation_space=BoxSpace((5,)))})
    with pytest.raises(RL4SysError, match=r"refused the recorded actor.*observation_space"):
        send_recorded(learner.address, "recorded", OBS, ACTIONS, episodes(1))
