"""Tests that each update of each algorithm that trains by gradients moves a weight, unless the learning rate is 0."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from kit import OneSegmentMessage

from rl4sys_zmq.algorithms import ALGORITHMS, AlgorithmEntry
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.training.suspects import CrashSuspectRecord
from rl4sys_zmq.learner.training.training import UpdateRunner
from rl4sys_zmq.testing.check_algorithm import _RandomEnvironment
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # as in a learner thread

from rl4sys_zmq.algorithms.networks.flat_networks import FlatAdam  # noqa: E402

OURS = [
    name for name in ALGORITHMS.names()
    if ":" not in name and str(ALGORITHMS.get(name).factory).startswith("rl4sys_zmq.") and name != "BANDIT"
]  # fmt: skip
"""The algorithms of this package that train by gradients."""
SMALL: dict[str, Any] = {
    "hidden_sizes": [8], "batch_size": 8, "rollout_length": 8, "steps_per_update": 24, "update_epochs": 2,
    "learning_starts": 8, "train_frequency": 8,
}  # fmt: skip
"""Parameters for small updates. An algorithm gets those that it has."""
FIXED_INPUTS = {"normalise_observations": False}
"""Without this, PPO's first layer changes with the statistics of the observations, even if no gradient step changes it."""
KINDS: dict[str, list[dict[str, Any]]] = {
    "PPO": [{"train_pi_iters": 2, "train_v_iters": 3, "traj_per_epoch": 20, "steps_per_update": None, "target_kl": 0.01}],
    "DQN": [{"traj_per_epoch": 2, "train_iters": 2, "epsilon_decay": 0.995}],
    "SAC": [{"traj_per_epoch": 2, "train_iters": 2, "adaptive_alpha": False}],
    "TD3": [{"policy_frequency": 1, "noise_scale": 0.3}],
}
"""Further parameters with which an algorithm trains in another way, such as RL4Sys's."""
UPDATES = 6


def names_of(entry: AlgorithmEntry) -> set[str]:
    assert entry.parameters is not None
    return {field.name for field in fields(entry.parameters)}


def cases() -> Iterator[Any]:
    for name in OURS:
        entry = ALGORITHMS.get(name)
        known = names_of(entry)
        for number, kind in enumerate([{}, *KINDS.get(name, [])]):
            given = {k: v for k, v in {**SMALL, **kind}.items() if k in known or k in kind}
            for limit in ("default", 0, None, -1, 0.5) if "max_grad_norm" in known else ("default",):
                chosen = given if limit == "default" else {**given, "max_grad_norm": limit}
                yield pytest.param(entry, chosen, id=f"{name}-{number}-max_grad_norm={limit}")


def make(entry: AlgorithmEntry, parameters: dict[str, Any]) -> Any:
    """Return the algorithm, with discrete actions if it supports them."""
    observations = BoxSpace((4,))
    try:
        return entry.load()(observations, DiscreteSpace(3), parameters, 3)
    except ConfigError:
        return entry.load()(observations, BoxSpace((2,), low=-1.0, high=1.0), parameters, 3)


def moves(algorithm: Any) -> list[tuple[bool, bool]]:
    """Return two flags for each of at least `UPDATES` updates: a weight has moved, and the runner found that no weight had."""
    runner, world = UpdateRunner(algorithm, CrashSuspectRecord(None)), _RandomEnvironment(algorithm, 5)
    found: list[tuple[bool, bool]] = []
    for seq in range(1000):
        segment = world.segment()
        runner.observe(OneSegmentMessage(seq, segment), 0)  # type: ignore[arg-type]
        before = algorithm.numbers_to_check()[0].copy()
        while (outcome := runner.update()) is not None:
            assert outcome.metrics is not None, outcome.reason
            after = algorithm.numbers_to_check()[0].copy()
            found.append((not np.array_equal(before, after), outcome.unchanged))
            before = after
            world.publish()
        if len(found) >= UPDATES:
            return found
    raise AssertionError(f"{len(found)} updates from 1000 segments")


@pytest.mark.parametrize(("entry", "parameters"), list(cases()))
def test_every_update_moves_a_weight(entry: AlgorithmEntry, parameters: dict[str, Any]) -> None:
    assert set(moves(make(entry, parameters))) == {(True, False)}


@pytest.mark.parametrize("name", OURS)
def test_a_learning_rate_of_zero_moves_none_and_is_no_alarm(name: str) -> None:
    entry = ALGORITHMS.get(name)
    given = {k: v for k, v in {**SMALL, **FIXED_INPUTS}.items() if k in names_of(entry)}
    assert set(moves(make(entry, {**given, "learning_rate": 0.0}))) == {(False, False)}


@pytest.mark.parametrize("name", OURS)
def test_an_optimiser_that_does_nothing_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ALGORITHMS.get(name)
    algorithm = make(entry, {k: v for k, v in {**SMALL, **FIXED_INPUTS}.items() if k in names_of(entry)})
    monkeypatch.setattr(algorithm, "publish_every_updates", 1)  # checked at each version
    monkeypatch.setattr(FlatAdam, "step", lambda *_, **__: None)
    assert set(moves(algorithm)) == {(False, True)}


def test_it_is_found_although_the_first_layer_follows_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ALGORITHMS.get("PPO")
    algorithm = make(entry, {k: v for k, v in SMALL.items() if k in names_of(entry)})
    monkeypatch.setattr(FlatAdam, "step", lambda *_, **__: None)
    assert {unchanged for _, unchanged in moves(algorithm)} == {True}
