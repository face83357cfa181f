"""The export of a policy of the kind ``layers`` or ``onnx`` as an ONNX model with the weights, for programs without this library.

The graph maps a batch of observations ``[N, *obs]``, in the dtype of their space, to named outputs. Each array of a Dict or Tuple
is an input, such as ``observations['camera']``. The outputs:

- ``categorical``, ``q_values`` and ``q_distribution``: ``logits`` or ``q_values`` (the means of the distributions), float32
  ``[N, n]``, and ``action``, int64 ``[N]``: the first action with the largest output, with the space's `start` added.
- ``gaussian``: ``mean``, float32 ``[N, n]``; ``log_std``, float32 ``[n]``; and ``action``, ``[N, *shape]`` in the dtype of the
  space: the mean within the bounds of the space.
- ``squashed_gaussian``: ``mean`` and ``log_std``, float32 ``[N, n]``, of the sample before the tanh; and ``action``: the mean,
  squashed and scaled to the bounds.
- ``deterministic``: ``action`` alone.
- ``joint``: ``logits``, float32 ``[N, n]``, of all choices, if there are any; ``mean``, float32 ``[N, m]``, and ``log_std``,
  float32 ``[m]``, of all numbers, if there are any; and each array of the action, such as ``action['gear']``, in the dtype of its
  space. `rl4sys_zmq.values.action_layout.ActionLayout` has the order of choices and numbers.

So ``action`` is the action of the policy without exploration. There is no input for masks: apply a mask to the logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.action_bounds import action_bounds
from rl4sys_zmq.policies.folder import StoredPolicy
from rl4sys_zmq.policies.graphs.model import GraphBuilder, OnnxGraph, OnnxValue, encode_model
from rl4sys_zmq.policies.graphs.reader import decode_model
from rl4sys_zmq.policies.graphs.rules import OUTPUTS, check_graph
from rl4sys_zmq.policies.graphs.session import observation_inputs
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import read_network
from rl4sys_zmq.policies.onnx_policy import network_inputs
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec, Space
from rl4sys_zmq.values.action_layout import action_layout


def encode_onnx(policy: StoredPolicy) -> bytes:
    """Return a stored policy as the bytes of an ONNX model, for programs without this library.

    Raises:
        ConfigError: If the policy is of another kind, or has a graph that breaks a rule of `rl4sys_zmq.policies.graphs.rules`.
    """
    spec, snapshot, origin = policy.spec, policy.snapshot, policy.origin
    graphs = {"layers": _of_layers, "onnx": _network}
    if spec.kind not in graphs:
        raise ConfigError(
            f"a policy of kind {spec.kind!r} has no ONNX form; policies of the kinds {', '.join(graphs)} have one", key="kind"
        )
    graph = graphs[spec.kind](spec, spec.views(snapshot.flat, snapshot.others))
    facts = {
        "client_id": origin.client_id,
        "algorithm_name": origin.algorithm_name,
        "generation": str(snapshot.generation),
        "version": str(snapshot.version),
        "digest": f"{snapshot.digest:016x}",
    }
    return encode_model(graph, facts)


def _of_layers(spec: PolicySpec, tensors: Mapping[str, NDArray[Any]]) -> OnnxGraph:
    """Return the graph of a policy of the kind ``layers``."""
    head, layers = read_network(spec)
    graph = GraphBuilder()
    names = [graph.constant(tensors[tensor.name], tensor.name) for tensor in layers.tensors()]
    values = graph.layers(spec.observation_space, layers, names)
    outputs = _outputs(graph, spec, head, values, tensors)
    return graph.graph(observation_inputs(spec.observation_space), outputs)


def _network(spec: PolicySpec, tensors: Mapping[str, NDArray[Any]]) -> OnnxGraph:
    """Return the graph of a policy of the kind ``onnx``: the policy's graph with constant weights, and output nodes."""
    head, weights, size = network_inputs(spec)
    given, own = observation_inputs(spec.observation_space), decode_model(spec.blob)
    check_graph(own, [*given, *weights], size)
    inputs = {value.name for value in given}

    def renamed(names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of values, prefixed so that they differ from all names that the nodes of the outputs use."""
        return tuple([name if not name or name in inputs else f"network/{name}" for name in names])

    graph = GraphBuilder()
    graph.nodes = [replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs)) for node in own.nodes]
    constants = {**own.constants, **{value.name: tensors[value.name] for value in weights}}
    graph.constants = dict(zip(renamed(list(constants)), constants.values(), strict=True))
    (values,) = renamed([OUTPUTS])
    outputs = _outputs(graph, spec, head, values, tensors)
    return replace(graph.graph(given, outputs), opset=own.opset)


def _outputs(
    graph: GraphBuilder, spec: PolicySpec, document: HeadParameters, values: str, tensors: Mapping[str, NDArray[Any]]
) -> list[OnnxValue]:
    """Add the nodes that compute the model's outputs from the network's outputs `values`. Return their descriptions."""
    space = spec.action_space
    if document.head in ("joint", "gaussian"):
        return _sampled_outputs(graph, space, document, values, tensors)
    if not isinstance(space, BoxSpace):
        assert isinstance(space, DiscreteSpace)  # as the head needs
        name = "logits" if document.head == "categorical" else "q_values"
        if document.head == "q_distribution":
            values = _means(graph, document, values)
        graph.add("Identity", values, output=name)
        best = graph.add("ArgMax", values, axis=1, keepdims=0)
        graph.add("Add", best, graph.constant(np.int64(space.start)), output="action")
        return [OnnxValue(name, "float32", (None, space.n)), OnnxValue("action", "int64", (None,))]
    mean, described = _distribution(graph, space, document, values)
    return [*described, _bounded(graph, space, mean, "action", tanh=True)]


def _bounded(graph: GraphBuilder, space: BoxSpace, mean: str, output: str, *, tanh: bool) -> OnnxValue:
    """Add the nodes from a mean to an action within the bounds of a Box, and return the action."""
    bounds = action_bounds(space)
    action = graph.cast(mean, bounds.work)
    if tanh:
        action = graph.add("Mul", graph.add("Tanh", action), graph.constant(bounds.half))
        action = graph.add("Add", action, graph.constant(bounds.centre))
    if np.dtype(space.dtype).kind in "iub":
        action = graph.add("Round", action)
    action = graph.add("Max", action, graph.constant(bounds.low))
    action = graph.cast(graph.add("Min", action, graph.constant(bounds.high)), space.dtype)
    graph.add("Reshape", action, graph.constant([-1, *space.shape]), output=output)
    return OnnxValue(output, np.dtype(space.dtype).name, (None, *space.shape))


def _sampled_outputs(
    graph: GraphBuilder, space: Space, document: HeadParameters, values: str, tensors: Mapping[str, NDArray[Any]]
) -> list[OnnxValue]:
    """Add the nodes of the outputs of a ``joint`` or ``gaussian`` head: the distributions, and each array of the action."""
    layout = action_layout(space)

    def columns(source: str, start: int, stop: int, output: str = "") -> str:
        """Return the columns of an array, ``[N, stop - start]``."""
        limits = [graph.constant([number]) for number in (start, stop, 1)]
        return graph.add("Slice", source, *limits, output=output)

    described = []
    if layout.choices:
        logits = columns(values, 0, layout.logits, "logits")
        described.append(OnnxValue("logits", "float32", (None, layout.logits)))
    if layout.numbers:
        mean = columns(values, layout.logits, layout.outputs, "mean")
        graph.add("Identity", graph.constant(tensors["log_std"]), output="log_std")
        described.append(OnnxValue("mean", "float32", (None, layout.numbers)))
        described.append(OnnxValue("log_std", "float32", (layout.numbers,)))
    ends = np.cumsum(layout.counts).tolist()
    for part in layout.parts:
        name = part.name.replace("actions", "action", 1)
        if isinstance(part.space, BoxSpace):
            numbers = columns(mean, part.columns.start, part.columns.stop)
            described.append(_bounded(graph, part.space, numbers, name, tanh=document.squash == "tanh"))
            continue
        best = [
            graph.add("ArgMax", columns(logits, ends[at] - layout.counts[at], ends[at]), axis=1, keepdims=1)
            for at in range(part.columns.start, part.columns.stop)
        ]
        assert part.lowest is not None
        chosen = graph.add("Add", graph.add("Concat", *best, axis=1), graph.constant(part.lowest))
        shaped = graph.add("Reshape", chosen, graph.constant([-1, *part.space.shape]))
        graph.cast(shaped, part.space.dtype, output=name)
        described.append(OnnxValue(name, np.dtype(part.space.dtype).name, (None, *part.space.shape)))
    return described


def _means(graph: GraphBuilder, document: HeadParameters, logits: str) -> str:
    """Add the nodes of the means ``[N, n]`` of the distributions of a ``q_distribution`` head."""
    table = graph.add("Reshape", logits, graph.constant([0, -1, document.atoms]))
    atoms = np.linspace(document.v_min, document.v_max, document.atoms, dtype=np.float32)
    return graph.add("MatMul", graph.add("Softmax", table, axis=2), graph.constant(atoms))


def _distribution(graph: GraphBuilder, space: BoxSpace, document: HeadParameters, values: str) -> tuple[str, list[OnnxValue]]:
    """Add the nodes of the distribution before the tanh. Return the name of the means ``[N, n]``, and the outputs."""
    if document.head == "deterministic":
        return values, []
    size, start, end = (graph.constant([number]) for number in (space.size, 0, 2 * space.size))
    axis = graph.constant([1])
    mean = graph.add("Slice", values, start, size, axis, output="mean")
    limits = [graph.constant(np.float32(limit)) for limit in (document.log_std_min, document.log_std_max)]
    graph.add("Clip", graph.add("Slice", values, size, end, axis), *limits, output="log_std")
    return mean, [OnnxValue(name, "float32", (None, space.size)) for name in ("mean", "log_std")]
