"""Tests of the parameter ``network``: kinds by name, their options, the short form for MLPs, and refused values."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import python

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm, planned_policy
from rl4sys_zmq.algorithms.networks import NETWORKS, NetworkEntry, network_names, register_network
from rl4sys_zmq.algorithms.networks.mlp import ENTRY as MLP
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters
from rl4sys_zmq.config.options import integer, option
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import CHOOSE_NETWORK, read_parameters
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec, Space

PAGE = Path(__file__).parents[2] / "docs/reference/networks.md"
BOX, DISCRETE = BoxSpace((3,)), DiscreteSpace(4)
CHOOSING = CHOOSE_NETWORK.split(", ")
BOX_ONLY = ("RPO", "TD3", "DDPG")


def spec_of(given: dict[str, Any], algorithm: str = "PPO", action_space: Space = DISCRETE) -> PolicySpec:
    spec = planned_policy(algorithm, BOX, action_space, given)
    assert spec is not None
    return spec


@pytest.mark.parametrize("algorithm", CHOOSING)
def test_the_short_form_and_the_parameter_name_the_same_network(algorithm: str) -> None:
    actions = BoxSpace((2,), low=-1.0, high=1.0) if algorithm in BOX_ONLY else DISCRETE
    short = {"hidden_sizes": [8, 5], "activation": "relu"}
    forms: list[dict[str, Any]] = [
        short,
        {"network": {"kind": "mlp", **short}},
        {"network": "mlp", **short},
        {"network": {"kind": "MLP", "hidden_sizes": (8, 5)}, "activation": "relu"},
        {"network": {"kind": "mlp", **short}, **short},
    ]
    built = [make_algorithm(algorithm, BOX, actions, form, 3) for form in forms]
    first = built[0].snapshot()
    for form, other in zip(forms, built, strict=True):
        assert spec_of(form, algorithm, actions) == other.spec() == built[0].spec()
        assert all(np.array_equal(first[name], tensor) for name, tensor in other.snapshot().items())


def hidden_of(spec: PolicySpec) -> tuple[list[int], str]:
    """Return the widths of the hidden layers, and the activation function of the first one."""
    layers = spec.document["layers"]
    return [layer["units"] for layer in layers if layer["kind"] == "dense"][:-1], layers[1]["function"]


@pytest.mark.parametrize(("algorithm", "sizes"), [("DQN", [64, 64]), ("C51", [120, 84]), ("SAC", [256, 256])])
def test_replay_algorithms_have_defaults_of_their_own(algorithm: str, sizes: list[int]) -> None:
    forms: list[dict[str, Any]] = [{}, {"network": "mlp"}, {"hidden_sizes": sizes, "activation": "relu"}]
    first, *others = [spec_of(form, algorithm) for form in forms]
    assert hidden_of(first) == (sizes, "relu")
    assert all(other == first for other in others)
    assert hidden_of(spec_of({"network": {"kind": "mlp", "activation": "tanh"}}, algorithm))[1] == "tanh"


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"network": 5}, "network", "expected a kind of network such as mlp, or a mapping with the kind"),
        ({"network": {"hidden_sizes": [8]}}, "network", "expected a kind of network"),
        ({"network": "mpl"}, "network", "unknown network kind 'mpl'; valid: .*did you mean 'mlp'"),
        ({"network": {"kind": "mlp", "hidden": [8]}}, "network.hidden", "no such option; did you mean 'hidden_sizes'"),
        ({"network": {"kind": "mlp", "hidden_sizes": [0]}}, "network.hidden_sizes", "integers from 1 to"),
        ({"network": {"kind": "mlp", "hidden_sizes": [8]}, "hidden_sizes": [9]}, "hidden_sizes", r"\[9\] contradicts .* \[8\]"),
        ({"network": {"kind": "mlp", "activation": "elu"}, "activation_fn": "relu"}, "activation", "relu contradicts .* elu"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_parameters(PPOParameters, given, algorithm="PPO")
    assert caught.value.key == f"algorithm_parameters.{key}"


def test_the_list_of_algorithms_that_can_choose_is_complete() -> None:
    assert [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).chooses_network] == CHOOSING


@pytest.mark.parametrize("algorithm", ["BANDIT", "sb3:TRPO", "sb3:DQN"])
def test_an_algorithm_that_cannot_choose_says_which_can(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=f"{algorithm} cannot choose a kind of network; those that can: {CHOOSE_NETWORK}"):
        planned_policy(algorithm, BOX, DISCRETE, {"network": "mlp"})


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    size: int = option(integer(1), 1, doc="a number")


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> NetworkEntry:
    """A kind that a plugin adds: a linear policy, in the form of an MLP without hidden layers."""
    monkeypatch.setattr(NETWORKS, "_entries", {})
    mlp = MLP.options(hidden_sizes=())
    entry = NetworkEntry(
        name="linear",
        options=LinearOptions,
        plan=lambda options, requirements: MLP.plan(mlp, requirements),
        actor_critic=lambda options, spec: MLP.load(MLP.actor_critic)(mlp, spec),
    )
    register_network(entry)
    return entry


def test_a_plugin_adds_a_kind(linear: NetworkEntry) -> None:
    register_network(linear)  # a second time, without effect
    assert {"linear", "mlp"} < set(network_names())
    algorithm = make_algorithm("A2C", BOX, DISCRETE, {"network": {"kind": "linear", "size": 2}}, 0)
    assert [tensor.shape for tensor in algorithm.spec().tensors][-2:] == [(4, 3), (4,)]
    with pytest.raises(ConfigError, match=r"hidden_sizes: \[8\] describes an MLP, but network has the kind 'linear'"):
        planned_policy("A2C", BOX, DISCRETE, {"network": "linear", "hidden_sizes": [8]})
    with pytest.raises(ConfigError, match="'mlp' is registered already"):
        register_network(NetworkEntry(name="mlp", options=LinearOptions, plan=linear.plan))


def test_the_page_adds_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", {})
    block = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    exec(compile(block, str(PAGE), "exec", dont_inherit=True), {"__name__": "page"})
    assert len(spec_of({"network": "narrow"}).tensors) == 6  # with the statistics of observations
    assert make_algorithm("PPO", BOX, DISCRETE, {"network": "narrow"}, 0).spec() == spec_of({"network": "narrow"})


def test_a_kind_that_no_actor_critic_can_use_is_refused(linear: NetworkEntry) -> None:
    register_network(NetworkEntry(name="other", options=LinearOptions, plan=linear.plan))
    with pytest.raises(ConfigError, match=r"PPO cannot train a network of kind 'other'; it can train .*linear, mlp"):
        planned_policy("PPO", BOX, DISCRETE, {"network": "other"})


def test_a_factory_that_cannot_be_imported_is_named(linear: NetworkEntry) -> None:
    register_network(NetworkEntry(name="lost", options=LinearOptions, plan=linear.plan, actor_critic="no_module:X", extra="cnn"))
    with pytest.raises(ConfigError, match=r"'lost' cannot be loaded from no_module:X .*pip install 'rl4sys-zmq\[cnn\]'"):
        make_algorithm("PPO", BOX, DISCRETE, {"network": "lost"}, 0)


def test_planning_needs_no_torch() -> None:
    planned = "planned_policy('PPO', BoxSpace((3,)), DiscreteSpace(2), {'network': 'mlp'}); assert 'torch' not in sys.modules"
    python("-c", f"import sys; from rl4sys_zmq.algorithms import *; from rl4sys_zmq.values import *; {planned}")
