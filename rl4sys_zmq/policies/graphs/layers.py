"""A list of layers as an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from rl4sys_zmq.layers.layer_list import LayerList
from rl4sys_zmq.policies.graphs.model import GraphBuilder, OnnxValue, encode_model
from rl4sys_zmq.policies.graphs.rules import OUTPUTS
from rl4sys_zmq.policies.graphs.session import OnnxNetwork, observation_inputs
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.features import feature_layout


def add_layers(graph: GraphBuilder, space: ObservationSpace, layers: LayerList, names: Sequence[str]) -> str:
    """Append the features of observations and all layers to a graph, and return the name of the outputs ``[N, outputs]``.

    The graph has `observation_inputs` as inputs, and the tensors by these names, in the order of `LayerList.tensors`.

    Raises:
        ConfigError: If a layer has no form in ONNX.
    """
    parts = [graph.features(part) for part in feature_layout(space).parts]
    features = values = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    for layer, own, inputs in zip(layers.layers, layers.divided(names), layers.shapes, strict=False):
        values = layer.onnx_form(graph, values, own, features, inputs)
    return values


@lru_cache(maxsize=16)
def layers_model(space: ObservationSpace, layers: LayerList) -> tuple[bytes, tuple[OnnxValue, ...]]:
    """Return the ONNX model of a network whose weights are inputs of the graph, and the descriptions of these inputs."""
    graph = GraphBuilder()
    weights = tuple([OnnxValue(tensor.name, tensor.dtype, tensor.shape) for tensor in layers.tensors()])
    graph.add("Identity", add_layers(graph, space, layers, [weight.name for weight in weights]), output=OUTPUTS)
    outputs = OnnxValue(OUTPUTS, "float32", (None, layers.outputs))
    return encode_model(graph.graph([*observation_inputs(space), *weights], [outputs])), weights


def onnx_network(space: ObservationSpace, layers: LayerList, tensors: Mapping[str, NDArray[Any]]) -> OnnxNetwork:
    """Return a network that onnxruntime computes, with the weights `tensors`.

    Raises:
        ConfigError: If onnxruntime is not installed, or a layer has no form in ONNX.
    """
    model, weights = layers_model(space, layers)
    return OnnxNetwork(model, space, weights, layers.outputs, tensors)
