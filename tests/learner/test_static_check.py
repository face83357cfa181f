"""Tests of the check of a learner's configuration, which finds what can never be built before an actor joins."""

from typing import Any

import pytest

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.gateway.static_check import check_buildable

OBSERVATIONS = {"type": "Box", "shape": [3]}
DISCRETE = {"type": "Discrete", "n": 3}
FREE, BOUNDED = {"type": "Box", "shape": [2]}, {"type": "Box", "shape": [2], "low": -1, "high": 1}


def check(action_space: dict[str, Any] | None, algorithm_name: str, **parameters: Any) -> None:
    entry: dict[str, Any] = {"algorithm_name": algorithm_name, "algorithm_parameters": parameters}
    if action_space is not None:
        entry |= {"observation_space": OBSERVATIONS, "action_space": action_space}
    check_buildable(LearnerConfig.from_mapping({"max_parameters": 1_000_000, "clients": {"x": entry}}))


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG"])
@pytest.mark.parametrize("place", ["client", "algorithm"])
def test_a_network_that_the_algorithm_cannot_train_is_found_without_spaces(name: str, place: str) -> None:
    parameters = {"network": {"kind": "gru", "units": 4}}
    where = f"algorithms.{name}" if place == "algorithm" else "clients.x.algorithm_parameters"
    with pytest.raises(ConfigError, match=f"{where}.network: {name} cannot train a network of kind 'gru'.*such as DQN") as caught:
        if place == "client":
            check(None, name, **parameters)
        else:
            check_buildable(LearnerConfig.from_mapping({"algorithms": {name: parameters}}))
    assert caught.value.key == f"{where}.network"


@pytest.mark.parametrize("name", ["DQN", "C51", "PPO", "A2C", "IMPALA"])
def test_networks_that_algorithms_train_are_accepted_without_spaces(name: str) -> None:
    check(None, name, network="gru")
    check(None, name, network="cnn")


def test_a_policy_that_is_too_large_is_found_if_the_spaces_are_known() -> None:
    check(None, "PPO", hidden_sizes=[2000, 2000])
    with pytest.raises(ConfigError, match=r"clients\.x: the policy has \d+ parameters; max_parameters allows 1000000"):
        check(DISCRETE, "PPO", hidden_sizes=[2000, 2000])


def test_integers_beyond_the_largest_magnitude_need_a_network_that_normalises() -> None:
    space = {"type": "Box", "shape": [2], "dtype": "int64", "low": 0, "high": 2**63 - 1}

    def entry(name: str, **options: Any) -> LearnerConfig:
        spaces = {"observation_space": {"type": "Dict", "spaces": {"time_ns": space}}, "action_space": BOUNDED}
        return LearnerConfig.from_mapping({"clients": {"x": {"algorithm_name": name, **spaces, **options}}})

    check_buildable(entry("PPO"))
    check_buildable(entry("SAC", max_magnitude=1e19))
    for name, parameters in (("SAC", {}), ("TD3", {}), ("PPO", {"normalise_observations": False})):
        with pytest.raises(ConfigError, match=r"Box.*integers up to 9\.22337e\+18, .* does not normalise.*1e\+15"):
            check_buildable(entry(name, algorithm_parameters=parameters))


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG"])
def test_bounds_of_actions_that_float32_cannot_resolve_are_refused(name: str) -> None:
    def box(dtype: str, low: float, high: float) -> dict[str, Any]:
        return {"type": "Box", "shape": [2], "dtype": dtype, "low": low, "high": high}

    for good in (box("float32", -3e38, 3e38), box("uint64", 2**63, 2**64 - 1), box("float32", 3e38, 3e38)):
        check(good, name)
    for dtype, low, high, words in (
        ("float64", -1e300, 1e300, r"bounds up to 1e\+300, and float32 ends at 3\.40282e\+38"),
        ("float64", 1e9, 1e9 + 1, "fewer than 256 float32 numbers.* 1000000000 and 1000000001"),
        ("uint64", 2**63, 2**63 + 1000, "fewer than 256 float32 numbers"),
    ):
        with pytest.raises(ConfigError, match=words):
            check(box(dtype, low, high), name)


def test_a_tanh_needs_bounds() -> None:
    check(BOUNDED, "PPO", squash="tanh")
    check(DISCRETE, "PPO", squash="tanh")
    words = r"clients\.x\.algorithm_parameters\.squash: tanh maps actions into finite bounds, which Box.*; use clip, or give"
    with pytest.raises(ConfigError, match=words):
        check(FREE, "PPO", squash="tanh")


@pytest.mark.parametrize(
    ("key", "given"), [("epsilon_min", {}), ("end_e", {"end_e": 0.3}), ("epsilon_min", {"epsilon_decay": 0.9})]
)
def test_the_end_of_epsilon_is_named_as_it_was_given(key: str, given: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm_parameters\.{key}: 0\.0?[35] is above epsilon 0\.01; set a smaller {key}"):
        check(None, "DQN", epsilon=0.01, **given)


@pytest.mark.parametrize(
    ("parameters", "fraction", "problem"),
    [
        (
            {"batch_size": 1},
            0.5,
            "0.5 of a batch of 1 is 0 transitions; one transition cannot be divided; set a larger batch_size",
        ),
        ({"batch_size": 8}, 0.01, "0.01 of a batch of 8 is 0 transitions; expected 1 to 7; set another batch_size or fraction"),
        ({"network": "gru"}, 0.5, "a recurrent network trains on sequences"),
    ],
)
def test_a_fraction_of_demonstrations_is_checked_before_their_file(
    parameters: dict[str, Any], fraction: float, problem: str
) -> None:
    entry = {"algorithm_name": "DQN", "algorithm_parameters": parameters, "demonstrations": {"path": "x", "fraction": fraction}}
    with pytest.raises(ConfigError, match=f"clients.x.demonstrations.fraction: {problem}"):
        check_buildable(LearnerConfig.from_mapping({"clients": {"x": entry}}))


@pytest.mark.parametrize(
    ("action_space", "name", "parameters"),
    [
        (DISCRETE, "sb3:stable_baselines3:PPO", {"hidden_sizes": [60_000, 60_000]}),
        (DISCRETE, "sb3:QRDQN", {"hidden_sizes": [60_000], "n_quantiles": 10_000}),
        (BOUNDED, "sb3:TQC", {"hidden_sizes": [900], "n_critics": 100, "n_quantiles": 10_000}),
        (BOUNDED, "torchrl:REDQ", {"hidden_sizes": [900, 900], "num_qvalue_nets": 100}),
        (DISCRETE, "DQN", {"hidden_sizes": [60_000], "distribution": "quantile", "quantiles": 10_000}),
    ],
)
def test_networks_beside_the_policy_are_counted_before_they_are_built(
    action_space: dict[str, Any], name: str, parameters: dict[str, Any]
) -> None:
    entry = {
        "algorithm_name": name,
        "algorithm_parameters": parameters,
        "observation_space": OBSERVATIONS,
        "action_space": action_space,
        "engine": "process",
    }
    with pytest.raises(ConfigError, match=r"the networks of \S+ have \d+ parameters; max_parameters allows 1000000"):
        check_buildable(LearnerConfig.from_mapping({"max_parameters": 1_000_000, "clients": {"x": entry}}))
