"""Actions with several parts: from the policy through the actor and real sockets into the built-in algorithms."""

from typing import Any

import numpy as np
import pytest
from kit import drained, play, play_batch

pytest.importorskip("torch")

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS, planned_policy
from rl4sys_zmq.testing import check_algorithm, check_policy
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
)

from .conftest import Lab

OBSERVATIONS = BoxSpace((3,))
SPACES: dict[str, Space] = {
    "multidiscrete": MultiDiscreteSpace((3, 2), start=(0, 5)),
    "multibinary": MultiBinarySpace(3),
    "hybrid": DictSpace(
        {
            "turn": BoxSpace((2,), low=-1.0, high=1.0),
            "gear": DiscreteSpace(3, start=1),
            "keys": TupleSpace((MultiBinarySpace(2), MultiDiscreteSpace((2, 4)))),
        }
    ),
}
SMALL = {"steps_per_update": 32, "minibatch_size": 16, "hidden_sizes": [8]}


def joined(lab: Lab, learner: Any, space: Space, **options: Any) -> Any:
    given = {"algorithm_name": "PPO", "algorithm_parameters": SMALL, "observation_space": OBSERVATIONS, "action_space": space}
    return lab.agent(learner, **{**given, **options})


@pytest.mark.parametrize("name", SPACES)
def test_ppo_keeps_the_contracts(name: str) -> None:
    entry, parameters = ALGORITHMS.get("PPO"), {**SMALL, "rollout_length": 8}
    check_algorithm(entry, observation_space=OBSERVATIONS, action_space=SPACES[name], parameters=parameters)
    check_policy(planned_policy("PPO", OBSERVATIONS, SPACES[name], SMALL))  # type: ignore[arg-type]


def test_a_convolutional_network_has_outputs_for_all_parts() -> None:
    pytest.importorskip("onnxruntime")
    image = DictSpace({"camera": BoxSpace((10, 10, 1), "|u1", 0, 255), "speed": BoxSpace((2,))})
    parameters = {"network": "cnn", "steps_per_update": 16, "minibatch_size": 16, "update_epochs": 1, "rollout_length": 8}
    spec = planned_policy("PPO", image, SPACES["hybrid"], parameters)
    assert spec is not None and (spec.kind, spec.outputs) == ("layers", 3 + 2 * 2 + 2 + 4 + 2)
    check_policy(spec)
    check_algorithm(
        ALGORITHMS.get("PPO"), observation_space=image, action_space=SPACES["hybrid"], parameters=parameters, max_steps=200
    )


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_trained_on(lab: Lab, name: str) -> None:
    space, learner = SPACES[name], lab.learner()
    agent = joined(lab, learner, space)
    rng = np.random.default_rng(0)
    _, action = agent.request_for_action(None, np.zeros(3, np.float32))
    assert space.mismatch(action.act) == ""
    play(agent, rng.normal(size=(40, 3)).astype(np.float32))
    play_batch(agent, rng.normal(size=(8, 3, 3)).astype(np.float32))
    verdicts = drained(learner, agent)["verdicts"]
    assert (verdicts["quarantined"], verdicts["refused"]) == (0, 0)
    assert agent.wait_version(1, 20.0)


def test_masks_of_all_parts_hold(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = joined(inproc_lab, learner, SPACES["hybrid"], on_bad_input="raise")
    mask = {"turn": None, "gear": np.array([0, 0, 1], bool), "keys": (np.array([1, 2]), (np.array([0, 1], bool), None))}
    traj = None
    for _ in range(20):
        traj, action = agent.request_for_action(traj, np.zeros(3, np.float32), mask)
        assert action.act["gear"] == 3
        assert action.act["keys"][0][0] == 1
        assert action.act["keys"][1][0] == 1
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
    with pytest.raises(MaskError, match=r"actions\['gear'\]"):
        agent.request_for_action(traj, np.zeros(3, np.float32), {**mask, "gear": np.zeros(3, bool)})
    agent.mark_end_of_trajectory(traj, action)
    assert drained(learner, agent)["verdicts"]["quarantined"] == 0
    assert agent.wait_version(1, 20.0)


@pytest.mark.parametrize(("name", "words"), [("DQN", "DQN needs a Discrete"), ("SAC", "use PPO"), ("TD3", "Box")])
def test_algorithms_for_one_part_refuse_others(name: str, words: str) -> None:
    for space in SPACES.values():
        with pytest.raises(ConfigError, match=words):
            planned_policy(name, OBSERVATIONS, space, {})
