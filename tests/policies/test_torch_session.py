"""Policies that run an ONNX graph in torch (`run_with: torch`): every operator and every head equals that of onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.errors import ConfigError, PolicyError
from rl4sys_zmq.policies import RandomSource, bind, build_policy, check_runtime, require_policy
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.onnx_model import ELEMENT_TYPES, OnnxGraph, OnnxNode, OnnxValue, encode_model
from rl4sys_zmq.policies.onnx_policy import check_by_torch, onnx_spec
from rl4sys_zmq.policies.onnx_rules import OPERATORS, SHAPED
from rl4sys_zmq.values import PolicySpec, TensorSpec

from . import test_onnx_policy as twin
from .stored import stored

torch = pytest.importorskip("torch")

rng = np.random.default_rng(7)
X: Any = rng.standard_normal((2, 4, 6, 6)).astype(np.float32)
V: Any = rng.standard_normal((3, 5)).astype(np.float32)
ROW: Any = rng.standard_normal(5).astype(np.float32)
HALVES: Any = np.array([[-2.5, -1.5, -0.5, 0.0, 0.5], [1.5, 2.5, 0.2, -0.7, 3.0]], np.float32)
FOUR: Any = rng.standard_normal(4).astype(np.float32)
BOOLS: Any = np.array([[True, False], [False, False]]), np.array([[True, True], [False, True]])
WHOLE: Any = np.array([[7, -7, 3], [1, 0, -1]])
KERNEL: Any = rng.standard_normal((6, 2, 3, 3)).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


Case = tuple[str, list[Any], dict[str, Any]]
PLAIN = (
    "Abs Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu LogSoftmax Mish Neg Relu Round Selu "
    "Sigmoid Sign Sin Softmax Softplus Softsign Tanh Reciprocal"
)
CASES: list[Case] = [
    *((name, [HALVES + np.float32(0.1) * (name == "Reciprocal")], {"opset": 22}) for name in PLAIN.split()),
    *((name, [np.abs(V)], {}) for name in ("Log", "Sqrt")),
    *((name, [V, ROW], {}) for name in ("Add", "Div", "Mul", "Sub", "PRelu")),
    *((name, [V, V.round(), ROW], {}) for name in ("Max", "Mean", "Min", "Sum")),
    *((name, [V.round(), ROW.round()], {}) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *((name, list(BOOLS), {}) for name in ("And", "Or")),
    ("Not", [BOOLS[0]], {}),
    ("Where", [V > 0, V, ROW], {}),
    ("Div", [WHOLE, ints(2)], {}),
    ("Pow", [np.abs(V), ints(3)], {}),
    ("Celu", [V], {"alpha": 0.5}),
    ("Elu", [V], {"alpha": 0.5}),
    ("Selu", [V], {"alpha": 0.5, "gamma": 2.0}),
    ("HardSigmoid", [V], {"alpha": 0.3, "beta": 0.1}),
    ("LeakyRelu", [V], {"alpha": 0.3}),
    ("Gelu", [V], {"approximate": b"tanh", "opset": 20}),
    ("Clip", [V, np.float32(-0.5), np.float32(0.7)], {}),
    ("Clip", [V], {}),
    ("Clip", [V, None, np.float32(0.1)], {}),
    *((name, [V, V.T.copy()], {}) for name in ("MatMul",)),
    ("MatMul", [X, X], {}),
    ("Gemm", [V, V.T.copy(), V[:, :3].copy()], {"alpha": 0.5, "beta": 2.0}),
    ("Gemm", [V, V, ROW[:3].copy()], {"transB": 1}),
    ("Gemm", [V, V], {"transA": 1}),
    *((name, [HALVES.round()], {"axis": 1, "keepdims": 0}) for name in ("ArgMax", "ArgMin")),
    ("ArgMax", [WHOLE * 0], {"axis": 0, "select_last_index": 1}),
    *((name, [X], {"axis": 1}) for name in ("Softmax", "LogSoftmax")),
    *((name, [V], {"to": ELEMENT_TYPES[dtype]}) for name, dtype in (("Cast", "int64"), ("Cast", "bool"), ("Cast", "float64"))),
    ("Concat", [X, X[:, :2].copy()], {"axis": -3}),
    ("Constant", [], {"value": V}),
    ("Constant", [], {"value_ints": (3, 4)}),
    ("Constant", [], {"value_float": 0.5}),
    ("ConstantOfShape", [ints(2, 3)], {"value": np.array([7], np.int64)}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("Expand", [ROW, ints(3, 1)], {}),
    ("Flatten", [X], {}),
    ("Flatten", [X], {"axis": 3}),
    ("Flatten", [X], {"axis": -1}),
    ("Gather", [X, ints(-1, 0, 2)], {"axis": 1}),
    ("Gather", [V, np.array([[0, 1], [2, -3]])], {}),
    ("Gather", [V, np.int64(1)], {"axis": 1}),
    ("OneHot", [ints(0, 2, -1, 5), np.int64(4), np.array([0.5, 2.0], np.float32)], {"axis": 0}),
    ("OneHot", [WHOLE, np.int64(3), np.array([0.0, 1.0], np.float32)], {}),
    ("Pad", [X, ints(0, 1, 2, 0, 1, 0, 0, 3), np.float32(0.5)], {}),
    ("Pad", [X, ints(0, 0, 1, 2, 0, 0, 2, 1)], {"mode": b"reflect"}),
    ("Pad", [X, ints(0, 0, 1, 2, 0, 0, 2, 1)], {"mode": b"edge"}),
    ("Pad", [X, ints(1, -1), None, ints(-1)], {"opset": 18}),
    ("Range", [np.int64(2), np.int64(11), np.int64(3)], {}),
    ("Range", [np.float32(2), np.float32(0), np.float32(-0.5)], {}),
    *((f"Reduce{name}", [X], {"axes": (1, -1), "keepdims": 0}) for name in ("L2", "Max", "Mean", "Min", "Prod", "SumSquare")),
    *((f"Reduce{name}", [X, ints(1, -1)], {"opset": 18}) for name in ("L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")),
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}),
    ("ReduceSum", [WHOLE], {"keepdims": 0}),
    ("Reshape", [X, ints(0, -1, 3)], {}),
    ("Reshape", [X, ints(8, -1)], {"allowzero": 1}),
    ("Shape", [X], {}),
    ("Shape", [X], {"start": 1, "end": -1}),
    ("Slice", [X, ints(1, -3), ints(1 << 40, -1), ints(1, 3), ints(2, 1)], {}),
    ("Slice", [X, ints(-1), ints(-(1 << 40)), ints(2), ints(-2)], {}),
    ("Slice", [X, ints(1), ints(2)], {}),
    ("Split", [X], {"axis": 1, "outputs": 2}),
    ("Split", [X, ints(1, 3)], {"axis": 1, "outputs": 2}),
    ("Split", [V], {"axis": 1, "outputs": 3, "num_outputs": 3, "opset": 18}),
    ("Squeeze", [X[:1, :1].copy()], {}),
    ("Squeeze", [X[:1, :1].copy(), ints(1)], {}),
    ("Tile", [V, ints(2, 3)], {}),
    ("Transpose", [X], {"perm": (0, 2, 3, 1)}),
    ("Transpose", [X], {}),
    ("Unsqueeze", [V, ints(-1, 0)], {}),
    *((name, [X], {}) for name in ("GlobalAveragePool", "GlobalMaxPool")),
    ("BatchNormalization", [X, FOUR, FOUR * 2, FOUR, np.abs(FOUR)], {"epsilon": 0.1}),
    ("InstanceNormalization", [X, FOUR, FOUR * 2], {}),
    ("LayerNormalization", [X, X[0, 0, 0].copy(), X[0, 0, 1].copy()], {"epsilon": 0.1}),
    ("LayerNormalization", [X, X[0, 0].copy()], {"axis": 2}),
    ("GroupNormalization", [X, FOUR[:2].copy(), FOUR[2:].copy()], {"num_groups": 2, "opset": 18}),
    ("GroupNormalization", [X, FOUR, FOUR * 2], {"num_groups": 2, "opset": 21}),
    ("Conv", [X, KERNEL, np.arange(6, dtype=np.float32)], {"group": 2, "pads": (0, 1, 2, 1), "strides": (2, 1)}),
    ("Conv", [X, KERNEL], {"group": 2, "auto_pad": b"SAME_UPPER", "strides": (2, 2)}),
    ("Conv", [X, KERNEL], {"group": 2, "auto_pad": b"SAME_LOWER", "strides": (2, 1)}),
    ("Conv", [X, KERNEL], {"group": 2, "auto_pad": b"VALID", "dilations": (2, 1)}),
    ("Conv", [X[:, :, 0].copy(), KERNEL[:, :, 0].copy()], {"group": 2, "pads": (1, 1)}),
    ("MaxPool", [X], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}),
    ("MaxPool", [X], {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}),
    ("MaxPool", [X], {"kernel_shape": (2, 2), "dilations": (2, 3)}),
    ("MaxPool", [(X[0] * 10).astype(np.int8)], {"kernel_shape": (3,), "pads": (1, 1)}),
    ("AveragePool", [X], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}),
    ("AveragePool", [X], {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "count_include_pad": 1}),
    ("AveragePool", [X], {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2), "ceil_mode": 1}),
    ("AveragePool", [X], {"kernel_shape": (3, 3), "auto_pad": b"SAME_UPPER", "strides": (2, 2)}),
]


def test_the_cases_cover_every_operator() -> None:
    assert {operator for operator, *_ in CASES} == OPERATORS


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}{'-'.join(case[2])}")
def test_an_operator_computes_what_onnxruntime_computes(case: Case) -> None:
    import onnxruntime

    from rl4sys_zmq.policies.torch_attributes import tensor_of
    from rl4sys_zmq.policies.torch_session import TorchGraph

    operator, arrays, options = case
    attributes = {name: value for name, value in options.items() if name not in ("opset", "outputs")}
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    shaped = SHAPED.get(operator, ())
    constants = {f"x{at}": np.asarray(array) for at, array in enumerate(arrays) if at in shaped and array is not None}
    given = {f"x{at}": np.asarray(array) for at, array in enumerate(arrays) if at not in shaped and array is not None}
    outputs = ["outputs", *(f"y{at}" for at in range(1, options.get("outputs", 1)))]
    inputs = tuple([OnnxValue(name, array.dtype.name, array.shape) for name, array in given.items()])
    node = OnnxNode(operator, tuple(names), tuple(outputs), attributes)
    graph = OnnxGraph(inputs, (), (node,), constants, options.get("opset", 17))
    made = TorchGraph(graph, ())
    found = made.run({name: tensor_of(array) for name, array in given.items()}, {})
    # Their types are written into a model, but the number of axes is not known: onnxruntime infers it.
    kind = str(found.dtype).removeprefix("torch.")
    model = encode_model(replace(graph, outputs=(OnnxValue("outputs", kind, tuple(found.shape)),)))
    (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(["outputs"], given)
    assert (found.dtype, tuple(found.shape)) == (torch.tensor(expected).dtype, expected.shape)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)
    shapes = made.run({name: tensor_of(array) for name, array in given.items()}, made.known)
    assert torch.equal(shapes, found)  # the values that are computed once equal those of each pass


CONTEXTS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),  # as `torch.set_default_device`, with which a host can choose its GPU
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}{'-'.join(case[2])}")
def test_an_operator_uses_the_cpu_whatever_device_the_host_uses(case: Case) -> None:
    with CONTEXTS["device"]():
        test_an_operator_computes_what_onnxruntime_computes(case)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("built", ["before", "in it"])
def test_a_policy_acts_in_a_context_of_the_host(context: str, built: str) -> None:
    from rl4sys_zmq.policies.torch_session import load_graph

    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    load_graph.cache_clear()
    if built == "before":
        both(twin.convolution())
    with CONTEXTS[context]():
        compare(twin.convolution(), images, lambda k: images[k], 5)
    load_graph.cache_clear()


def both(spec: PolicySpec, seed: int = 0) -> list[Any]:
    """Return the policy in onnxruntime, and the same policy in torch."""
    return [build_policy(spec, stored(spec, seed).snapshot, runtime) for runtime in ("onnxruntime", "torch")]


def compare(spec: PolicySpec, observations: Any, one: Callable[[int], Any], count: int) -> None:
    """Assert that both runtimes choose the same actions, with equal log-probabilities, in all three forms."""
    policies = both(spec)
    for explore in (True, False):
        batches = [policy.act_batch(observations, None, RandomSource(1), explore) for policy in policies]
        for left, right in zip(*batches, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
        acts = [bind(policy, RandomSource(2), explore) for policy in policies]
        for k in range(count):
            found = [policy.act(one(k), None, RandomSource(3), explore) for policy in policies]
            found += [act(one(k), None) for act in acts]
            for left, right in ((found[0], found[1]), (found[2], found[3])):
                np.testing.assert_allclose(np.asarray(left[0]), np.asarray(right[0]), rtol=1e-4, atol=1e-5)
                assert left[2] == pytest.approx(right[2], abs=1e-4)


@pytest.mark.parametrize("head", twin.HEADS)
def test_it_acts_as_onnxruntime_with_every_head(head: str) -> None:
    observations = np.random.default_rng(1).standard_normal((16, twin.WIDTH)).astype(np.float32)
    compare(twin.perceptron(head, twin.HEADS[head]), observations, lambda k: observations[k], 4)


def test_it_acts_as_onnxruntime_on_images() -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    compare(twin.convolution(), images, lambda k: images[k], 5)


def test_a_new_version_uses_the_same_graph_and_its_own_copy_of_the_weights() -> None:
    spec = twin.perceptron()
    first, second = (build_policy(spec, stored(spec, seed).snapshot, "torch") for seed in (1, 2))
    assert first._network._graph is second._network._graph  # type: ignore[attr-defined]
    observation = np.ones(twin.WIDTH, np.float32)
    acts = [bind(policy, RandomSource(0), True) for policy in (first, second)]
    expected = [policy.act(observation, None, RandomSource(0), True)[2] for policy in (first, second)]
    assert expected[0] != expected[1]
    assert [act(observation, None)[2] for act in (*acts, *acts)][:2] == pytest.approx(expected)


@pytest.mark.parametrize("case", twin.BAD)
def test_a_bad_graph_is_refused(case: str) -> None:
    model, problem = twin.BAD[case]
    weights = [TensorSpec("weight", (twin.WIDTH, 4))]
    with pytest.raises(ConfigError, match=problem):
        check_by_torch(onnx_spec(twin.OBSERVED, twin.ACTED, HeadParameters(head="categorical"), weights, model))


def test_a_batch_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy: Any = build_policy(twin.perceptron(), stored(twin.perceptron()).snapshot, "torch")
    monkeypatch.setattr("rl4sys_zmq.policies.torch_session.MAX_MEMORY_BYTES", 1 << 20)
    rows = np.zeros((1 << 16, twin.WIDTH), np.float32)
    with pytest.raises(PolicyError, match="more than 1048576 bytes for 65536 observations"):
        policy.act_batch(rows, None, RandomSource(0), True)
    policy.act_batch(rows[:100], None, RandomSource(0), True)


def test_without_torch_the_constructor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("torch_session", "torch_operators", "torch_shapes", "torch_windows", "torch_attributes"):
        monkeypatch.delitem(sys.modules, f"rl4sys_zmq.policies.{name}", raising=False)
    with pytest.raises(ConfigError, match="pip install torch; or use run_with: onnxruntime"):
        RL4SysAgent(config=AgentConfig(client_id="pole", train_server_address="inproc://nobody", run_with="torch"))
    with pytest.raises(ConfigError, match="pip install torch"):
        build_policy(twin.perceptron(), stored(twin.perceptron()).snapshot, "torch")
    with pytest.raises(ConfigError, match="onnxruntime, torch, not 'tensorflow'"):
        check_runtime("tensorflow")


def test_other_kinds_have_one_runtime() -> None:
    assert require_policy("mlp", "torch") is require_policy("mlp")
    assert require_policy("onnx", "torch") is not require_policy("onnx")


FORKED = """
import os, signal, numpy as np, torch
from rl4sys_zmq.policies import RandomSource, build_policy
from tests.policies.stored import stored
from tests.policies.test_onnx_policy import convolution

torch.set_num_threads(2)
policy = build_policy(convolution(), stored(convolution()).snapshot, "torch")
images = np.zeros((4096, 8, 8, 3), np.uint8)
policy.act_batch(images, None, RandomSource(0), True)
child = os.fork()
if not child:
    signal.alarm(60)
    policy.act_batch(images, None, RandomSource(0), True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_damaged_graph_never_ends_the_process_and_a_forked_child_can_act() -> None:
    script = twin.FUZZ.replace("check_onnx", "check_by_torch") + FORKED
    done = subprocess.run([sys.executable, "-c", script, "2", "40"], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n0\n"), done.stderr
