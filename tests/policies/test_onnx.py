"""The ONNX form of a policy has the same results in onnxruntime as the policy itself."""

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.algorithms import planned_policy
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.policies.graphs.export import encode_onnx
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.mlp import hidden_layers, mlp_spec
from rl4sys_zmq.values import (
    ACTIVATIONS,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    PolicySpec,
    TupleSpace,
)
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import leaves_of

from .stored import stored
from .test_onnx_policy import HEADS, perceptron

WIDTH = 5
OBSERVED = BoxSpace((WIDTH,))
ACTED = DiscreteSpace(4, 2)


def run(spec: PolicySpec, observations: Any) -> tuple[dict[str, Any], Any]:
    """Run the graph in onnxruntime. Return its outputs by name, and the policy of this package."""
    runtime = pytest.importorskip("onnxruntime")
    policy = stored(spec)
    model = encode_onnx(policy)
    if importlib.util.find_spec("onnx") is not None:
        import onnx.checker

        onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    given = observations if isinstance(observations, dict) else {"observations": observations}
    values = session.run(None, given)
    return dict(zip(names, values, strict=True)), build_policy(spec, policy.snapshot)


def assert_near(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def batch(count: int = 64, width: int = WIDTH) -> Any:
    return (3 * np.random.default_rng(2).standard_normal((count, width))).astype(np.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("head", ["categorical", "q_values"])
def test_discrete_actions_agree(activation: str, head: str) -> None:
    spec = mlp_spec(OBSERVED, ACTED, head, hidden_sizes=(8, 6), activation=activation, normalise_observations=True)
    out, policy = run(spec, batch())
    assert_near(out["logits" if head == "categorical" else "q_values"], policy._network.batch(batch()))
    np.testing.assert_array_equal(out["action"], policy.act_batch(batch(), None, RandomSource(0), False)[1])
    assert out["action"].dtype == np.int64 and out["action"].min() >= 2


def test_the_means_of_distributions_agree() -> None:
    head = HeadParameters(head="q_distribution", atoms=7, v_min=-1.0, v_max=3.0)
    spec = layers_spec(OBSERVED, ACTED, head, hidden_layers((8,), "tanh"))
    out, policy = run(spec, batch())
    assert_near(out["q_values"], policy._head.means(policy._network.batch(batch())))
    np.testing.assert_array_equal(out["action"], policy.act_batch(batch(), None, RandomSource(0), False)[1])


@pytest.mark.parametrize("squash", ["clip", "tanh"])
@pytest.mark.parametrize(
    "space",
    [
        BoxSpace((3,), low=(-0.1, -2.0, 0.0), high=(0.1, 1.0, 0.5)),
        BoxSpace((2, 2), low=-1.0, high=1.0, dtype="<f8"),
        BoxSpace((2,), low=0, high=4, dtype="<i4"),
        BoxSpace((2,), low=-1.0, high=1.0, dtype="<f2"),
    ],
    ids=str,
)
def test_continuous_actions_agree(space: BoxSpace, squash: str) -> None:
    spec = mlp_spec(OBSERVED, space, "gaussian", hidden_sizes=(8,), squash=squash)
    out, policy = run(spec, batch())
    raws, acts, _ = policy.act_batch(batch(), None, RandomSource(0), False)
    assert_near(out["mean"].reshape(raws.shape), raws)
    assert_near(out["log_std"], spec.views(policy.snapshot.flat)["log_std"])
    assert (out["action"].shape, out["action"].dtype) == (acts.shape, acts.dtype)
    assert_near(out["action"].astype(np.float64), acts.astype(np.float64))


@pytest.mark.parametrize("head", ["squashed_gaussian", "deterministic"])
@pytest.mark.parametrize(
    "space", [BoxSpace((3,), low=(-0.1, -2.0, 0.0), high=(0.1, 1.0, 0.5)), BoxSpace((2, 2), low=0, high=4, dtype="<i4")], ids=str
)
def test_actions_of_bounded_heads_agree(space: BoxSpace, head: str) -> None:
    spec = mlp_spec(OBSERVED, space, head, hidden_sizes=(8,))
    out, policy = run(spec, batch())
    assert list(out) == (["action"] if head == "deterministic" else ["mean", "log_std", "action"])
    acts = policy.act_batch(batch(), None, RandomSource(0), False)[1]
    assert (out["action"].shape, out["action"].dtype) == (acts.shape, acts.dtype)
    assert_near(out["action"].astype(np.float64), acts.astype(np.float64))
    if head == "squashed_gaussian":
        values = policy._network.batch(batch())
        assert_near(np.hstack([out["mean"], out["log_std"]]), values)


def test_unbounded_actions_agree() -> None:
    spec = mlp_spec(OBSERVED, BoxSpace((2,)), "gaussian", hidden_sizes=())
    out, policy = run(spec, batch())
    assert_near(out["action"], policy.act_batch(batch(), None, RandomSource(0), False)[1])


def test_the_model_names_its_version() -> None:
    onnx = pytest.importorskip("onnx")
    policy = stored(mlp_spec(OBSERVED, ACTED, "categorical"))
    model = onnx.load_from_string(encode_onnx(policy))
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert (facts["client_id"], facts["version"], facts["digest"]) == ("luna/ä", "7", f"{policy.snapshot.digest:016x}")


def test_another_kind_has_no_onnx_form() -> None:
    policy = stored(mlp_spec(OBSERVED, ACTED, "categorical"))
    with pytest.raises(ConfigError, match="'own' has no ONNX form"):
        encode_onnx(replace(policy, spec=replace(policy.spec, kind="own")))


@pytest.mark.parametrize("head", HEADS)
def test_a_graph_with_weights_as_inputs_becomes_one_with_constants(head: str) -> None:
    spec = perceptron(head, HEADS[head])
    out, policy = run(spec, batch())
    acted = policy.act_batch(batch(), None, RandomSource(0), False)[1]
    np.testing.assert_allclose(out["action"], acted, rtol=1e-5, atol=1e-6)
    twin = mlp_spec(OBSERVED, HEADS[head], head, hidden_sizes=(8,))
    assert run(twin, batch())[0].keys() == out.keys()


def test_the_arrays_of_a_tree_are_inputs() -> None:
    runtime = pytest.importorskip("onnxruntime")
    space = DictSpace({"camera": BoxSpace((6, 6), low=0, high=255, dtype="|u1"), "gear": DiscreteSpace(3, 1)})
    spec = planned_policy("DQN", space, ACTED, {"network": "cnn", "distribution": "categorical", "atoms": 5})
    assert spec is not None
    policy = stored(spec)
    session = runtime.InferenceSession(encode_onnx(policy), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["observations['camera']", "observations['gear']"]
    rng = np.random.default_rng(3)
    tree = {"camera": rng.integers(0, 256, (9, 6, 6)).astype(np.uint8), "gear": rng.integers(1, 4, 9)}
    (actions,) = session.run(["action"], {f"observations[{key!r}]": array for key, array in tree.items()})
    acted = build_policy(spec, policy.snapshot).act_batch(tree, None, RandomSource(0), False)[1]  # type: ignore[arg-type]
    np.testing.assert_array_equal(actions, acted)


TREE = DictSpace(
    {"gear": DiscreteSpace(3, 1), "keys": MultiBinarySpace((2,)), "speed": BoxSpace((2, 2)), "way": MultiDiscreteSpace((3, 2))}
)
PARTS = DictSpace(
    {
        "gear": DiscreteSpace(3, 1),
        "keys": MultiBinarySpace((2, 2)),
        "turn": BoxSpace((2,), low=-0.5, high=2.0),
        "way": TupleSpace((MultiDiscreteSpace((3, 2)), BoxSpace((1,), low=0, high=3, dtype="<i4"))),
    }
)


@pytest.mark.parametrize("squash", ["clip", "tanh"])
@pytest.mark.parametrize("space", [PARTS, MultiDiscreteSpace((3, 4)), TupleSpace((BoxSpace((2,), low=-1.0, high=1.0),))], ids=str)
def test_actions_and_observations_of_several_parts_agree(space: Any, squash: str) -> None:
    numbers = action_layout(space).numbers
    if squash == "tanh" and not numbers:
        squash = "clip"
    spec = mlp_spec(TREE, space, "joint", hidden_sizes=(8,), squash=squash, normalise_observations=True)
    rng = np.random.default_rng(4)
    tree: Any = {
        "gear": rng.integers(1, 4, 16),
        "keys": rng.integers(0, 2, (16, 2)).astype(np.int8),
        "speed": rng.standard_normal((16, 2, 2)).astype(np.float32),
        "way": np.stack([rng.integers(0, 3, 16), rng.integers(0, 2, 16)], 1),
    }
    out, policy = run(spec, {f"observations[{key!r}]": array for key, array in tree.items()})
    acted = leaves_of(space).flatten(policy.act_batch(tree, None, RandomSource(0), False)[1])
    names = [part.name.replace("actions", "action") for part in action_layout(space).parts]
    assert [name for name in out if name.startswith("action")] == names
    for name, array in zip(names, acted, strict=True):
        assert (out[name].shape, out[name].dtype) == (array.shape, array.dtype)
        assert_near(out[name], array)
    assert ("logits" in out, "mean" in out) == (action_layout(space).choices > 0, numbers > 0)
