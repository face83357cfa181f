"""Laws of every algorithm: a change of parameters is a restart with the new values, and training starts from a policy."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.algorithms import ALGORITHMS, ParallelAlgorithm, TunableAlgorithm, WarmStartAlgorithm, make_algorithm
from rl4sys_zmq.testing.check_algorithm import _RandomEnvironment
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space

TWO, BOX = DiscreteSpace(2), BoxSpace((2,), low=-1.0, high=1.0)
ON: dict[str, Any] = {"steps_per_update": 64, "rollout_length": 16, "hidden_sizes": [8]}
OFF: dict[str, Any] = {"learning_starts": 32, "train_frequency": 8, "hidden_sizes": [8], "batch_size": 16, "buffer_size": 1000}
CASES: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "PPO": ("PPO", TWO, {"steps_per_update": 64, "minibatch_size": 16, "hidden_sizes": [8], "update_epochs": 2}),
    "PPO, Box": ("PPO", BOX, {"steps_per_update": 64, "minibatch_size": 16, "hidden_sizes": [8], "update_epochs": 2}),
    "A2C": ("A2C", TWO, ON),
    "IMPALA": ("IMPALA", TWO, ON),
    "REINFORCE": ("REINFORCE", TWO, {**ON, "with_vf_baseline": True}),
    "DQN": ("DQN", TWO, OFF),
    "DQN, dueling": ("DQN", TWO, {**OFF, "dueling": True}),
    "DQN, atoms": ("DQN", TWO, {**OFF, "distribution": "categorical", "atoms": 7, "v_min": -5.0, "v_max": 5.0}),
    "DQN, quantiles": ("DQN", TWO, {**OFF, "distribution": "quantile", "quantiles": 5}),
    "DQN, both": ("DQN", TWO, {**OFF, "dueling": True, "distribution": "quantile", "quantiles": 5}),
    "SAC": ("SAC", BOX, OFF),
    "SAC, discrete": ("SAC", TWO, OFF),
    "TD3": ("TD3", BOX, OFF),
    "DDPG": ("DDPG", BOX, OFF),
}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "PPO": [
        {"learning_rate": 0.01},
        {"gamma": 0.5, "gae_lambda": 0.5, "reward_scale": 2.0},
        {"value_lambda": 0.5},
        {"ent_coef": 0.5, "vf_coef": 0.1, "clip_coef": 0.01, "clip_vloss": True, "max_grad_norm": 0.01, "norm_adv": False},
        {"minibatch_size": 32, "update_epochs": 4, "value_epochs": 5, "target_kl": 1e-3},
        {"anneal_lr": True, "total_steps": 200},
        {"train_pi_iters": 3, "train_v_iters": 5},
    ],
    "A2C": [{"learning_rate": 0.01, "ent_coef": 0.5, "vf_coef": 0.1}, {"anneal_lr": True, "total_steps": 200}],
    "IMPALA": [{"gamma": 0.5, "vtrace": False}, {"rho_clip": 0.5, "c_clip": 0.5, "ent_coef": 0.5}],
    "REINFORCE": [{"train_vf_iters": 3, "value_learning_rate": 0.01}],
    "DQN": [
        {"learning_rate": 0.01, "huber_delta": 0.1, "max_grad_norm": 0.01},
        {"batch_size": 32, "gradient_steps": 3, "tau": 0.5, "target_net_update_frequency": 2, "double_q": False},
        {"epsilon": 0.5, "epsilon_min": 0.1, "exploration_fraction": 0.01, "total_steps": 1000},
        {"learning_rate_final": 1e-4, "total_steps": 500, "double_q": False, "epsilon_min": 0.2, "huber_delta": 0.5},
    ],
    "DQN, quantiles": [{"kappa": 9.0}],
    "SAC": [
        {"learning_rate": 1e-3, "critic_learning_rate": 3e-3, "temperature_learning_rate": 0.1},
        {"target_entropy": 1.0, "batch_size": 8, "max_grad_norm": 0.01},
    ],
    "SAC, discrete": [{"target_entropy": 0.1, "gradient_steps": 2, "tau": 0.5}],
    "TD3": [{"policy_delay": 3, "target_noise": 0.5, "target_noise_clip": 0.1, "exploration_noise": 0.3}],
    "DDPG": [{"target_noise": 0.5, "policy_delay": 2}],
}


def make(case: str, seed: int = 5, **more: Any) -> Any:
    name, actions, given = CASES[case]
    return make_algorithm(name, BoxSpace((4,)), actions, {**given, **more}, seed)


def train(algorithm: Any, segments: list[Segment]) -> Mapping[str, float]:
    last: Mapping[str, float] = {}
    for segment in segments:
        algorithm.observe(segment)
        while (metrics := algorithm.update()) is not None:
            last = metrics
    return last


def played(algorithm: Any, count: int) -> list[Segment]:
    world = _RandomEnvironment(algorithm, 3)
    return [world.segment(16) for _ in range(count)]


@pytest.mark.parametrize(("case", "change"), [(case, change) for case, of in CHANGES.items() for change in of])
def test_a_change_is_a_restart_with_the_new_value(case: str, change: dict[str, Any]) -> None:
    assert set(change) <= ALGORITHMS.get(CASES[case][0]).changeable
    segments = played(make(case), 16)
    changed, unchanged = make(case), make(case)
    for algorithm in (changed, unchanged):
        train(algorithm, segments[:8])
    restarted = make(case, **change)
    restarted.load(changed.state())
    changed.change({**CASES[case][2], **change})
    metrics = [train(algorithm, segments[8:]) for algorithm in (changed, restarted, unchanged)]
    assert metrics[0] == metrics[1] != metrics[2]
    for key, tensor in changed.snapshot().items():
        np.testing.assert_array_equal(tensor, restarted.snapshot()[key])
    for mine, theirs in zip(changed.numbers_to_check(), restarted.numbers_to_check(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("case", CASES)
def test_training_starts_from_a_policy(case: str) -> None:
    trained, fresh = make(case, 1), make(case, 2)
    train(trained, played(trained, 8))
    fresh.load_policy(trained.snapshot())
    for name, tensor in fresh.snapshot().items():
        if name != "epsilon":  # it follows a schedule, and is not a weight
            np.testing.assert_allclose(tensor, trained.snapshot()[name], rtol=1e-5, atol=1e-6, err_msg=name)
    if "DQN" in case:
        networks = fresh.state()["networks"]
        np.testing.assert_array_equal(networks["online"], networks["target"])
    if "PPO" in case:
        np.testing.assert_allclose(fresh._moments.scale(), trained.snapshot()["obs_scale"], rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_optional_methods_are_there_and_what_can_change_is_declared(case: str) -> None:
    entry = ALGORITHMS.get(CASES[case][0])
    assert entry.parameters is not None
    assert entry.changeable < {field.name for field in fields(entry.parameters)}
    assert not entry.changeable & {"hidden_sizes", "activation", "rollout_length", "normalise_rewards", "buffer_size"}
    for protocol in (TunableAlgorithm, ParallelAlgorithm, WarmStartAlgorithm):
        assert isinstance(make(case), protocol)
