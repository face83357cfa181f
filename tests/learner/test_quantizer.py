"""Only weights are rounded to a wire dtype. The other numbers of a policy, such as statistics, are sent as they are."""

import numpy as np
import pytest

from rl4sys_zmq.layers.gru import GRU
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.learner.training.publishing import WeightQuantizer
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.linear_bandit import linear_bandit_spec
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec

OBS, BOX, DISCRETE = BoxSpace((3,)), BoxSpace((2,), low=-1.0, high=1.0), DiscreteSpace(2)
SPECS = {
    "statistics": (mlp_spec(OBS, DISCRETE, "categorical", (4,), normalise_observations=True), {"obs_mean", "obs_scale"}),
    "recurrent": (
        layers_spec(OBS, DISCRETE, HeadParameters(head="categorical"), [Normalise(), GRU(units=64)]), {"obs_mean", "obs_scale"}
    ),
    "noise": (mlp_spec(OBS, BOX, "deterministic", (4,)), {"noise_std", "epsilon"}),
    "epsilon": (mlp_spec(OBS, DISCRETE, "q_values", (4,)), {"epsilon"}),
    "bandit": (linear_bandit_spec(OBS, DISCRETE, "thompson"), {"scale", "epsilon"}),
    "weights alone": (mlp_spec(OBS, BOX, "gaussian", (4,)), set()),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "exact"), SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize("wire_dtype", ["fp32", "bf16", "grid"])
def test_only_weights_are_rounded(spec: PolicySpec, exact: set[str], wire_dtype: str) -> None:
    assert {tensor.name for tensor in spec.tensors if tensor.exact} == exact
    quantizer = WeightQuantizer(wire_dtype, 1, spec)
    for version in range(3):
        flat = np.random.default_rng(version).normal(0.0, 1.0, spec.size).astype(np.float32)
        own, sent = spec.views(flat), spec.views(quantizer.round(flat))
        same = {name for name in own if np.array_equal(own[name], sent[name])}
        assert same == (exact if wire_dtype != "fp32" else set(own))


@pytest.mark.parametrize("value", [0.05, 0.3])
def test_a_changed_noise_arrives_on_the_grid_of_an_older_one(value: float) -> None:
    spec, _ = SPECS["noise"]
    quantizer = WeightQuantizer("grid", 1, spec)
    for std in (0.1, 0.1, value):
        flat = np.full(spec.size, std, np.float32)
        sent = spec.views(quantizer.round(flat))["noise_std"]
    assert sent == np.float32(value)
