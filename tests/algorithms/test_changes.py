"""Tests of parameters that change between two updates: training continues as after a restart with the new value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.algorithms import ALGORITHMS, TunableAlgorithm, make_algorithm
from rl4sys_zmq.testing.check_algorithm import _RandomEnvironment
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

BASE: dict[str, dict[str, Any]] = {
    "PPO": {"steps_per_update": 64, "minibatch_size": 16, "hidden_sizes": [8], "update_epochs": 2},
    "A2C": {"steps_per_update": 64, "rollout_length": 16, "hidden_sizes": [8]},
    "IMPALA": {"steps_per_update": 64, "rollout_length": 16, "hidden_sizes": [8]},
    "REINFORCE": {"steps_per_update": 64, "rollout_length": 16, "hidden_sizes": [8], "with_vf_baseline": True},
    "DQN": {"learning_starts": 32, "train_frequency": 8, "hidden_sizes": [8], "batch_size": 16, "buffer_size": 1000},
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
    ],
}


def train(algorithm: Any, segments: list[Segment]) -> Mapping[str, float]:
    last: Mapping[str, float] = {}
    for segment in segments:
        algorithm.observe(segment)
        while (metrics := algorithm.update()) is not None:
            last = metrics
    return last


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, of in CHANGES.items() for change in of])
def test_a_change_is_a_restart_with_the_new_value(name: str, change: dict[str, Any]) -> None:
    def make(**more: Any) -> Any:
        return make_algorithm(name, BoxSpace((4,)), DiscreteSpace(2), {**BASE[name], **more}, 5)

    assert set(change) <= ALGORITHMS.get(name).changeable
    play = _RandomEnvironment(make(), 3)
    before, after = ([play.segment(16) for _ in range(8)] for _ in range(2))
    changed, unchanged = make(), make()
    for algorithm in (changed, unchanged):
        train(algorithm, before)
    restarted = make(**change)
    restarted.load(changed.state())
    changed.change({**BASE[name], **change})
    metrics = [train(algorithm, after) for algorithm in (changed, restarted, unchanged)]
    assert metrics[0] == metrics[1] != metrics[2]
    for key, tensor in changed.snapshot().items():
        np.testing.assert_array_equal(tensor, restarted.snapshot()[key])


@pytest.mark.parametrize("name", sorted(BASE))
def test_what_can_change_is_declared(name: str) -> None:
    entry = ALGORITHMS.get(name)
    assert entry.parameters is not None
    assert entry.changeable < {field.name for field in fields(entry.parameters)}
    assert not entry.changeable & {"hidden_sizes", "activation", "rollout_length", "normalise_rewards", "buffer_size"}
    assert isinstance(make_algorithm(name, BoxSpace((4,)), DiscreteSpace(2), BASE[name], 5), TunableAlgorithm)
