"""Policies that act by an ONNX graph: the weights are inputs, the heads are those of the MLP, and unsafe graphs are refused."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, PolicyError
from rl4sys_zmq.policies import RandomSource, bind, build_policy, read_policy, require_policy
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.policies.graphs.model import GraphBuilder, OnnxGraph, OnnxValue, encode_model
from rl4sys_zmq.policies.graphs.reader import decode_model
from rl4sys_zmq.policies.graphs.rules import OPERATORS
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.policies.onnx_policy import check_onnx, onnx_spec
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySpec, TensorSpec

from .stored import stored

pytest.importorskip("onnxruntime")

WIDTH, HIDDEN = 5, 8
OBSERVED = BoxSpace((WIDTH,))
ACTED = DiscreteSpace(4, 2)
CONTINUOUS = BoxSpace((2,), low=(-1.0, -2.0), high=(1.0, 3.0))
HEADS: Mapping[str, Any] = {
    "categorical": ACTED,
    "q_values": ACTED,
    "gaussian": CONTINUOUS,
    "squashed_gaussian": CONTINUOUS,
    "deterministic": CONTINUOUS,
}


def perceptron(head: str = "categorical", action: Any = ACTED) -> PolicySpec:
    """Return the spec of a perceptron as a graph. Its tensors are those of the kind ``mlp``."""
    twin = mlp_spec(OBSERVED, action, head, hidden_sizes=(HIDDEN,))
    parameters = HeadParameters(head=head)
    sizes = (WIDTH, HIDDEN, parameters.outputs(action))
    builder, values = GraphBuilder(), "observations"
    for index in range(2):
        values = builder.add("Gemm", values, f"layers.{index}.weight", f"layers.{index}.bias", transB=1, output=f"linear_{index}")
        if index == 0:
            values = builder.add("Tanh", values)
    builder.add("Identity", values, output="outputs")
    weights = [t for t in twin.tensors if t.name.startswith("layers.")]
    inputs = [OnnxValue("observations", "float32", (None, WIDTH)), *(OnnxValue(t.name, t.dtype, t.shape) for t in weights)]
    graph = builder.graph(inputs, [OnnxValue("outputs", "float32", (None, sizes[-1]))])
    return onnx_spec(OBSERVED, action, parameters, weights, encode_model(graph))


@pytest.mark.parametrize("head", HEADS)
def test_it_acts_as_the_mlp_with_the_same_weights(head: str) -> None:
    spec = perceptron(head, HEADS[head])
    check_policy(spec, masks=head in ("categorical", "q_values"))
    twin = mlp_spec(OBSERVED, HEADS[head], head, hidden_sizes=(HIDDEN,))
    assert twin.tensors == spec.tensors
    snapshot = stored(spec).snapshot
    ours, theirs = build_policy(spec, snapshot), build_policy(twin, snapshot)
    observations = np.random.default_rng(1).standard_normal((16, WIDTH)).astype(np.float32)
    for explore in (True, False):
        for one, other in zip(
            ours.act_batch(observations, None, RandomSource(1), explore),
            theirs.act_batch(observations, None, RandomSource(1), explore),
            strict=True,
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_new_version_uses_the_same_session_and_its_own_weights() -> None:
    spec = perceptron()
    first, second = (build_policy(spec, stored(spec, seed).snapshot) for seed in (1, 2))
    assert first._network._session is second._network._session  # type: ignore[attr-defined]
    observation = np.ones(WIDTH, np.float32)
    acts = [bind(policy, RandomSource(0), True) for policy in (first, second)]
    expected = [policy.act(observation, None, RandomSource(0), True)[2] for policy in (first, second)]
    assert expected[0] != expected[1]
    # The two bound forms take turns: neither uses the other's buffers.
    found = [act(observation, None)[2] for act in (*acts, *acts)]
    assert found[:2] == pytest.approx(expected)
    assert bind(first, RandomSource(0), False)(observation, None)[0] == first.act(observation, None, RandomSource(0), False)[0]


def test_a_policy_folder_keeps_the_graph(tmp_path: Any) -> None:
    pytest.importorskip("safetensors")
    policy = stored(perceptron())
    write_policy(tmp_path / "policy", encode_policy(policy))
    again = read_policy(tmp_path / "policy")
    assert again.spec == policy.spec
    observation = np.ones(WIDTH, np.float32)
    both = [build_policy(p.spec, p.snapshot).act(observation, None, RandomSource(0), True) for p in (policy, again)]
    assert both[0] == both[1]


def test_observations_of_several_arrays() -> None:
    space = DictSpace({"camera": BoxSpace((2, 3), low=0, high=255, dtype="|u1"), "goal": DiscreteSpace(3, 1)})
    builder = GraphBuilder()
    pixels = builder.add("Reshape", builder.cast("observations['camera']", np.float32), builder.constant([-1, 6]))
    goal = builder.add("Unsqueeze", builder.cast("observations['goal']", np.float32), builder.constant([1]))
    builder.add("MatMul", builder.add("Concat", pixels, goal, axis=1), "weight", output="outputs")
    inputs = [
        OnnxValue("observations['camera']", "uint8", (None, 2, 3)),
        OnnxValue("observations['goal']", "int64", (None,)),
        OnnxValue("weight", "float32", (7, 4)),
    ]
    graph = builder.graph(inputs, [OnnxValue("outputs", "float32", (None, 4))])
    spec = onnx_spec(space, ACTED, HeadParameters(head="categorical"), [TensorSpec("weight", (7, 4))], encode_model(graph))
    check_onnx(spec)
    policy = build_policy(spec, stored(spec, scale=0.01).snapshot)
    observation: Any = {"camera": np.arange(6, dtype=np.uint8).reshape(2, 3), "goal": np.int64(2)}
    logits = np.append(np.arange(6.0), 2.0) @ spec.views(policy.snapshot.flat)["weight"]
    expected = logits - np.log(np.exp(logits).sum())
    raw, _, log_prob = policy.act(observation, None, RandomSource(0), True)
    assert log_prob == pytest.approx(expected[int(raw) - 2], abs=1e-5)
    assert bind(policy, RandomSource(0), True)(observation, None)[::2] == pytest.approx((raw, log_prob))


def test_without_onnxruntime_the_handshake_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    check = require_policy("onnx").check
    assert check is not None
    spec = perceptron("gaussian", BoxSpace((3,)))  # no other test has compiled this graph
    with pytest.raises(ConfigError, match=r"pip install 'rl4sys-zmq\[onnx\]'"):
        check(spec)


def test_the_operators_of_a_graph_are_those_of_the_standard() -> None:
    onnx = pytest.importorskip("onnx")
    assert [name for name in OPERATORS if not onnx.defs.has(name)] == []


def test_a_model_is_read_as_it_was_written() -> None:
    onnx = pytest.importorskip("onnx")
    builder = GraphBuilder()
    arrays: list[Any] = [np.array([[1, -2], [3, 4]], dtype) for dtype in ("f4", "f8", "f2", "i1", "i2", "i4", "i8")]
    arrays += [np.array([1, 200], dtype) for dtype in ("u1", "u2", "u4", "u8")] + [np.array([True, False]), np.float32(3.5)]
    for array in arrays:
        builder.constant(array)
    builder.add(
        "Conv", "x", "w", output="y", pads=(0, 1, 0, 1), group=2, alpha=-0.5, floats=(0.5, 2.0), text=b"a", tensor=arrays[0]
    )
    graph = builder.graph([OnnxValue("x", "uint8", (None, 2**20))], [OnnxValue("y", "bool", ())])
    data = encode_model(graph, {"version": "7"})
    theirs = onnx.load_from_string(data)
    assert theirs.SerializeToString(deterministic=True)
    assert [i.int32_data or i.raw_data for i in theirs.graph.initializer]
    for tensor, array in zip(theirs.graph.initializer, arrays, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), array)
    values = {a.name: onnx.helper.get_attribute_value(a) for a in theirs.graph.node[0].attribute}
    assert values.pop("tensor").data_type == onnx.TensorProto.FLOAT
    assert values == {"pads": [0, 1, 0, 1], "group": 2, "alpha": -0.5, "floats": [0.5, 2.0], "text": b"a"}
    assert encode_model(decode_model(data), {"version": "7"}) == data
    # The same model as other programs write it, with typed data in place of raw data.
    for index, array in enumerate(arrays):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)
        tensor = onnx.helper.make_tensor(f"constant_{index}", kind, np.shape(array), np.asarray(array).ravel())
        theirs.graph.initializer[index].CopyFrom(tensor)
    assert encode_model(decode_model(theirs.SerializeToString()), {"version": "7"}) == data


def changed(change: Callable[[GraphBuilder], str], inputs: Any = None, outputs: Any = None, opset: int = 17) -> bytes:
    """Return a model with one linear layer and the nodes that `change` adds."""
    builder = GraphBuilder()
    builder.add("MatMul", "observations", "weight", output="linear")
    builder.add("Identity", change(builder), output="outputs")
    given = inputs or [OnnxValue("observations", "float32", (None, WIDTH)), OnnxValue("weight", "float32", (WIDTH, 4))]
    graph = builder.graph(given, outputs or [OnnxValue("outputs", "float32", (None, 4))])
    return encode_model(replace(graph, opset=opset))


def observed(*shape: int | None, dtype: str = "float32") -> list[OnnxValue]:
    return [OnnxValue("observations", dtype, shape), OnnxValue("weight", "float32", (WIDTH, 4))]


def divided(builder: GraphBuilder) -> str:
    whole = builder.cast("linear", np.int64)
    return builder.cast(builder.add("Div", whole, whole), np.float32)


def huge(builder: GraphBuilder) -> str:
    wide = builder.add("Expand", "linear", builder.constant([1 << 14, 1 << 14, 1, 1]))
    return builder.add("ReduceMean", wide, axes=(0, 1), keepdims=0)


def huge_constant(builder: GraphBuilder) -> str:
    ones = builder.add("ConstantOfShape", builder.constant([1 << 15, 1 << 15]), value=np.ones(1, np.float32))
    return builder.add("Add", "linear", builder.add("ReduceMean", ones, keepdims=0))


def moved(builder: GraphBuilder) -> str:
    size = builder.cast(builder.add("ReduceSum", "observations", keepdims=0), np.int64)
    return builder.add("Reshape", "linear", builder.add("Reshape", size, builder.constant([1])))


BAD: dict[str, tuple[bytes, str]] = {
    "unknown operator": (changed(lambda b: b.add("Loop", "linear")), "unknown operator 'Loop'"),
    "random": (changed(lambda b: b.add("RandomNormalLike", "linear")), "unknown operator 'RandomNormalLike'"),
    "dynamic observation": (changed(lambda b: "linear", observed(None, None)), r"dynamic shape \[N, N\]; expected \[N, 5\]"),
    "dynamic weight": (
        changed(lambda b: "linear", [observed(None, WIDTH)[0], OnnxValue("weight", "float32", (None, 4))]),
        "'weight' has the dynamic shape",
    ),
    "fixed batch": (changed(lambda b: "linear", observed(1, WIDTH)), r"is float32 \[1, 5\]; expected float32 \[N, 5\]"),
    "other dtype": (changed(lambda b: "linear", observed(None, WIDTH, dtype="float64")), "is float64"),
    "missing weight": (changed(lambda b: "linear", observed(None, WIDTH)[:1]), r"lacks the inputs 'weight'"),
    "other output": (
        changed(lambda b: "linear", None, [OnnxValue("outputs", "float32", (None, 3))]),
        r"output is float32 \[N, 3\]; expected float32 \[N, 4\]",
    ),
    "output of another size": (changed(lambda b: b.add("Concat", "linear", "linear", axis=1)), r"shape \(2, 8\)|cannot run"),
    "value before its node": (changed(lambda b: b.add("Tanh", "later")), "'later', which was not computed before"),
    "value twice": (changed(lambda b: b.add("Tanh", "linear", output="linear")), "'linear' is computed twice"),
    "whole division": (changed(divided), "divided by a value that is not a positive constant"),
    "shape of data": (changed(moved), "depends on data"),
    "too much memory": (changed(huge), "cannot run the graph"),
    "too large a constant": (changed(huge_constant), "cannot run the graph"),
    "stride of zero": (changed(lambda b: b.add("MaxPool", "linear", kernel_shape=(1,), strides=(0,))), "'strides'.*value 0"),
    "old operators": (changed(lambda b: "linear", opset=9), "version 9; expected an opset from 13 to"),
    "operator that does not fit": (changed(lambda b: b.add("Conv", "linear", "weight")), "cannot run the graph"),
    "constant result": (
        changed(lambda b: b.add("Identity", b.constant(np.zeros((1, 4), np.float32)))),
        "computes from its inputs",
    ),
    "no model": (b"not a model", "not an ONNX model"),
    "empty": (b"", "not an ONNX model"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_graph_is_refused_at_the_handshake(case: str) -> None:
    model, problem = BAD[case]
    spec = onnx_spec(OBSERVED, ACTED, HeadParameters(head="categorical"), [TensorSpec("weight", (WIDTH, 4))], model)
    with pytest.raises(ConfigError, match=problem):
        check_onnx(spec)


def test_the_plain_form_of_the_bad_graphs_is_accepted() -> None:
    weights = [TensorSpec("weight", (WIDTH, 4))]
    check_onnx(onnx_spec(OBSERVED, ACTED, HeadParameters(head="categorical"), weights, changed(lambda b: "linear")))


def test_parts_that_no_policy_needs_are_refused() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(perceptron().blob)

    def refused(problem: str, change: Callable[[Any], object]) -> None:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        change(other)
        with pytest.raises(ConfigError, match=problem):
            decode_model(other.SerializeToString())

    weight = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")
    branch = onnx.helper.make_node("If", ["x"], ["y"], then_branch=model.graph, else_branch=model.graph)
    refused("another file", lambda m: m.graph.initializer.append(weight))
    refused("subgraph", lambda m: m.graph.node.append(branch))
    refused("domain 'com.microsoft'", lambda m: m.opset_import.add(domain="com.microsoft", version=1))
    refused("domain 'com.microsoft'", lambda m: m.graph.node.add(op_type="Gelu", domain="com.microsoft"))
    refused("functions", lambda m: m.functions.add(name="f"))
    refused("training", lambda m: m.training_info.add())
    refused("sparse constants", lambda m: m.graph.sparse_initializer.add())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"document": {"head": "gaussian"}}, "gaussian head cannot act"),
        ({"document": {"head": "categorical", "layers": 3}}, "layers"),
        ({"tensors": (TensorSpec("epsilon", (1,)),)}, "lacks the inputs"),
        ({"document": {"head": "q_values"}}, "and then those of its head: epsilon"),
        ({"blob": b""}, "not an ONNX model"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_onnx(replace(perceptron(), **change))


def test_a_failure_of_the_runtime_has_a_name() -> None:
    policy = build_policy(perceptron(), stored(perceptron()).snapshot)
    policy._network._weights["layers.0.bias"] = np.zeros(3, np.float32)  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match="cannot run"):
        policy.act(np.ones(WIDTH, np.float32), None, RandomSource(0), True)


FUZZ = """
import random, sys
from dataclasses import replace
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.graphs.model import encode_model
from rl4sys_zmq.policies.graphs.reader import decode_model
from rl4sys_zmq.policies.graphs.rules import OPERATORS
from rl4sys_zmq.policies.onnx_policy import check_onnx
from tests.policies.test_onnx_policy import convolution, perceptron

rng = random.Random(int(sys.argv[1]))
WHOLE = (0, 1, -1, 2, 3, -2, 7, 100, 1 << 19, -(1 << 19))

def flipped(data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), 0, 1, 127, 128, 255))
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)

def rewired(data):
    graph = decode_model(data)
    nodes, constants = list(graph.nodes), dict(graph.constants)
    at = rng.randrange(len(nodes))
    node = nodes[at]
    names = [value.name for value in graph.inputs] + list(constants) + [name for n in nodes[:at] for name in n.outputs] + [""]
    change = rng.randrange(4)
    if change == 0:
        node = replace(node, operator=rng.choice(sorted(OPERATORS)))
    elif change == 1 and node.inputs:
        node = replace(node, inputs=tuple(rng.choice((name, rng.choice(names))) for name in node.inputs))
    elif change == 2:
        name = rng.choice(("axis", "axes", "perm", "strides", "pads", "dilations", "group", "kernel_shape", "keepdims", "to"))
        value = rng.choice((rng.choice(WHOLE), tuple(rng.choices(WHOLE, k=rng.randrange(5)))))
        node = replace(node, attributes={**node.attributes, name: value})
    else:
        name = rng.choice([*constants, ""])
        if name and constants[name].dtype.kind == "i":
            constants[name] = constants[name] * 0 + rng.choice((*WHOLE, 1 << 40, -(1 << 62)))
    nodes[at] = node
    return encode_model(replace(graph, nodes=tuple(nodes), constants=constants))

for spec in (perceptron(), convolution()):
    for number in range(int(sys.argv[2])):
        try:
            check_onnx(replace(spec, blob=(rewired if number % 2 else flipped)(spec.blob)))
        except ConfigError:
            pass
print("alive")
"""


def convolution() -> PolicySpec:
    """Return the spec of a small convolutional network with many kinds of operators."""
    space = BoxSpace((8, 8, 3), low=0, high=255, dtype="|u1")
    weights = [TensorSpec("kernel", (4, 3, 3, 3)), TensorSpec("weight", (4, 16)), TensorSpec("scale", (16,))]
    builder = GraphBuilder()
    image = builder.add("Mul", builder.cast("observations", np.float32), builder.constant(np.float32(1 / 255)))
    image = builder.add("Transpose", image, perm=(0, 3, 1, 2))
    image = builder.add("Relu", builder.add("Conv", image, "kernel", strides=(2, 2), pads=(1, 1, 1, 1)))
    image = builder.add("MaxPool", image, kernel_shape=(2, 2), strides=(2, 2))
    flat = builder.add("Flatten", image)
    norm = builder.add("LayerNormalization", flat, builder.add("Slice", "scale", *(builder.constant([n]) for n in (0, 16))))
    batch = builder.add("Gather", builder.add("Shape", norm), builder.constant(np.int64(0)))
    shape = builder.add("Concat", builder.add("Unsqueeze", batch, builder.constant([0])), builder.constant([16]), axis=0)
    builder.add("Gemm", builder.add("Reshape", norm, shape), "weight", transB=1, output="outputs")
    inputs = [OnnxValue("observations", "uint8", (None, 8, 8, 3)), *(OnnxValue(t.name, t.dtype, t.shape) for t in weights)]
    graph: OnnxGraph = builder.graph(inputs, [OnnxValue("outputs", "float32", (None, 4))])
    return onnx_spec(space, ACTED, HeadParameters(head="categorical"), weights, encode_model(graph))


def test_a_damaged_graph_never_ends_the_process() -> None:
    check_policy(convolution())
    done = subprocess.run([sys.executable, "-c", FUZZ, "1", "100"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
