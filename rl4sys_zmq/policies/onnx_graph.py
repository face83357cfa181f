"""The ONNX form of a policy of the kind ``mlp``, for programs without this library. Needs the package ``onnx``.

The graph maps a batch of observations ``[N, *obs]``, in the dtype of their space, to named outputs:

- ``categorical`` and ``q_values``: ``logits`` or ``q_values``, float32 ``[N, n]``, and ``action``, int64 ``[N]``: the first
  action with the largest output, with the space's `start` added.
- ``gaussian``: ``mean``, float32 ``[N, n]``; ``log_std``, float32 ``[n]``; and ``action``, ``[N, *shape]`` in the dtype of the
  space: the mean within the bounds of the space.
- ``squashed_gaussian``: ``mean`` and ``log_std``, float32 ``[N, n]``, of the sample before the tanh; and ``action``: the mean,
  squashed and scaled to the bounds.
- ``deterministic``: ``action`` alone.

So ``action`` is the action of the policy without exploration. There is no input for masks: apply a mask to the logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.folder import StoredPolicy
from rl4sys_zmq.policies.gaussian import action_bounds
from rl4sys_zmq.policies.mlp import OBS_CLIP, MLPParameters, mlp_document
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec, feature_size
from rl4sys_zmq.values.observations import flat_space

__all__ = ["OPSET", "encode_onnx"]

OPSET, IR_VERSION = 17, 8
"""The versions of the operators and of the file format. Runtimes from 2022 on can read them (ONNX 1.12, onnxruntime 1.12)."""


class _Graph:
    """An ONNX graph under construction: nodes in the order of their computation, and constants."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node (one operation) to the graph, and return the name of its output."""
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, array: NDArray[Any] | np.generic | Sequence[int], name: str = "") -> str:
        """Add a constant array to the graph, and return its name. Integers become int64."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def cast(self, value: str, dtype: Any, output: str = "") -> str:
        """Append a node that converts an array to a NumPy dtype, and return the name of its output."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", value, output=output, to=kind)


def encode_onnx(policy: StoredPolicy) -> bytes:
    """Return a stored policy as the bytes of an ONNX model, for programs without this library.

    Raises:
        ConfigError: If the policy is of another kind than ``mlp``, or the package ``onnx`` is not installed.
    """
    spec, snapshot, origin = policy.spec, policy.snapshot, policy.origin
    if spec.kind != "mlp":
        raise ConfigError(f"a policy of kind {spec.kind!r} has no ONNX form; only policies of kind 'mlp' have one", key="kind")
    document = mlp_document(spec)
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ModuleNotFoundError as exc:
        raise ConfigError(f"an ONNX file needs the package onnx ({exc}): pip install 'rl4sys-zmq[onnx]'") from exc
    graph = _Graph(onnx)
    tensors = spec.views(snapshot.flat, snapshot.others)
    values = _layers(graph, _features(graph, spec, document, tensors), document, tensors)
    outputs = _outputs(graph, spec, document, values, tensors)
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
    space = flat_space(spec.observation_space, "an mlp policy")
    dtype = np.int64 if isinstance(space, DiscreteSpace) else space.dtype
    given = helper.make_tensor_value_info("observations", kind(np.dtype(dtype)), ["N", *space.shape])
    described = [helper.make_tensor_value_info(name, kind(np.dtype(t)), shape) for name, t, shape in outputs]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", [given], described, initializer=graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="rl4sys_zmq",
    )
    facts = {
        "client_id": origin.client_id,
        "algorithm_name": origin.algorithm_name,
        "generation": str(snapshot.generation),
        "version": str(snapshot.version),
        "digest": f"{snapshot.digest:016x}",
    }
    helper.set_model_props(model, facts)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _features(graph: _Graph, spec: PolicySpec, document: MLPParameters, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Add the nodes from the observations to the input of the first layer, float32 ``[N, width]``."""
    space = flat_space(spec.observation_space, "an mlp policy")
    width = feature_size(space)
    if isinstance(space, DiscreteSpace):
        index = graph.add("Sub", "observations", graph.constant(np.int64(space.start)))
        on = graph.constant(np.array([0.0, 1.0], np.float32))
        features = graph.add("OneHot", index, graph.constant(np.int64(width)), on, axis=-1)
    else:
        features = graph.add("Reshape", graph.cast("observations", np.float32), graph.constant([-1, width]))
    if not document.normalise_observations:
        return features
    centred = graph.add("Sub", features, graph.constant(tensors["obs_mean"], "obs_mean"))
    scaled = graph.add("Mul", centred, graph.constant(tensors["obs_scale"], "obs_scale"))
    return graph.add("Clip", scaled, graph.constant(np.float32(-OBS_CLIP)), graph.constant(np.float32(OBS_CLIP)))


def _layers(graph: _Graph, features: str, document: MLPParameters, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Add the layers, and return the name of the network's outputs ``[N, outputs]``."""
    last = len(document.hidden_sizes)
    values = features
    for index in range(last + 1):
        names = [f"layers.{index}.{part}" for part in ("weight", "bias")]
        values = graph.add("Gemm", values, *(graph.constant(tensors[name], name) for name in names), transB=1)
        if index < last:
            values = _activation(graph, document.activation, values)
    return values


def _activation(graph: _Graph, name: str, values: str) -> str:
    match name:
        case "silu":
            return graph.add("Mul", values, graph.add("Sigmoid", values))
        case "gelu":
            scaled = graph.add("Mul", values, graph.constant(np.float32(0.5**0.5)))
            gate = graph.add("Add", graph.add("Erf", scaled), graph.constant(np.float32(1.0)))
            return graph.add("Mul", graph.add("Mul", values, graph.constant(np.float32(0.5))), gate)
        case "identity":
            return values
        case "leaky_relu":
            return graph.add("LeakyRelu", values, alpha=0.01)
        case _:
            return graph.add({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[name], values)


def _outputs(
    graph: _Graph, spec: PolicySpec, document: MLPParameters, values: str, tensors: Mapping[str, NDArray[Any]]
) -> list[tuple[str, Any, list[Any]]]:
    """Add the nodes of the outputs, and return the name, the dtype and the shape of each output."""
    space = spec.action_space
    if not isinstance(space, BoxSpace):
        name = "logits" if document.head == "categorical" else "q_values"
        graph.add("Identity", values, output=name)
        best = graph.add("ArgMax", values, axis=1, keepdims=0)
        graph.add("Add", best, graph.constant(np.int64(space.start)), output="action")
        return [(name, np.float32, ["N", space.n]), ("action", np.int64, ["N"])]
    mean, described = _distribution(graph, space, document, values, tensors)
    bounds = action_bounds(space)
    action = graph.cast(mean, bounds.work)
    if document.squash == "tanh" or document.head != "gaussian":
        action = graph.add("Mul", graph.add("Tanh", action), graph.constant(bounds.half))
        action = graph.add("Add", action, graph.constant(bounds.centre))
    if np.dtype(space.dtype).kind in "iub":
        action = graph.add("Round", action)
    action = graph.add("Max", action, graph.constant(bounds.low))
    action = graph.cast(graph.add("Min", action, graph.constant(bounds.high)), space.dtype)
    graph.add("Reshape", action, graph.constant([-1, *space.shape]), output="action")
    return [*described, ("action", space.dtype, ["N", *space.shape])]


def _distribution(
    graph: _Graph, space: BoxSpace, document: MLPParameters, values: str, tensors: Mapping[str, NDArray[Any]]
) -> tuple[str, list[tuple[str, Any, list[Any]]]]:
    """Add the nodes of the normal distribution of continuous actions, if there is one.

    Returns:
        The name of the means ``[N, n]``; and the name, the dtype and the shape of each output.
    """
    if document.head == "deterministic":
        return values, []
    if document.head == "gaussian":
        mean = graph.add("Identity", values, output="mean")
        graph.add("Identity", graph.constant(tensors["log_std"]), output="log_std")
        return mean, [("mean", np.float32, ["N", space.size]), ("log_std", np.float32, [space.size])]
    size, start, end = (graph.constant([number]) for number in (space.size, 0, 2 * space.size))
    axis = graph.constant([1])
    mean = graph.add("Slice", values, start, size, axis, output="mean")
    limits = [graph.constant(np.float32(limit)) for limit in (document.log_std_min, document.log_std_max)]
    graph.add("Clip", graph.add("Slice", values, size, end, axis), *limits, output="log_std")
    return mean, [("mean", np.float32, ["N", space.size]), ("log_std", np.float32, ["N", space.size])]
