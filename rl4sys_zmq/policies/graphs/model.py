"""The contents of an ONNX model, a builder of such models, and their encoding. This module does not need the package ``onnx``.

A model has one graph: named inputs and outputs, constants, and nodes (operations) in the order of their computation. The encoding
is that of the protocol buffers in ``onnx.proto`` (ONNX 1.12, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Only the
fields that a policy needs are written; `rl4sys_zmq.policies.graphs.reader` reads the same ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.layers.layer_list import LayerList
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.features import FeatureLeaf, feature_layout

OPSET, IR_VERSION = 17, 8
"""The versions of the operators and of the file format. Runtimes from 2022 on can read them (ONNX 1.12, onnxruntime 1.12)."""

ELEMENT_TYPES: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}
"""ONNX's numbers of the dtypes of tensors, by NumPy's names."""

FLOAT, INT, STRING, TENSOR, FLOATS, INTS = 1, 2, 3, 4, 6, 7
"""ONNX's numbers of the types of attributes. Other types, among them graphs, are not used."""

Attribute = int | float | bytes | tuple[int, ...] | tuple[float, ...] | NDArray[Any]
"""The value of an attribute of a node. An array is a tensor."""

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """The description of an input or output of a graph."""

    name: str
    dtype: str  # by NumPy's name, such as float32
    shape: tuple[int | None, ...]  # None: the length of this axis is not fixed


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """One operation of a graph. An empty name stands for an omitted input or output."""

    operator: str  # a standard operator, such as Gemm
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class OnnxGraph:
    """The graph of a model, with operators of the version `opset`."""

    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    nodes: tuple[OnnxNode, ...]  # each after those whose outputs it takes
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    opset: int = OPSET

    def renamed(self, names: Mapping[str, str], inputs: Sequence[OnnxValue], outputs: int) -> OnnxGraph:
        """Return the graph with inputs renamed by `names` (old to new) and described by `inputs`, with `outputs` columns."""
        nodes = tuple([replace(node, inputs=tuple([names.get(name, name) for name in node.inputs])) for node in self.nodes])
        described = tuple([replace(value, shape=(None, outputs)) for value in self.outputs])
        return replace(self, nodes=nodes, inputs=tuple(inputs), outputs=described)


class GraphBuilder:
    """A graph under construction: nodes in the order of their computation, and constants."""

    def __init__(self) -> None:
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, NDArray[Any]] = {}

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Attribute) -> str:
        """Append a node (one operation) to the graph, and return the name of its output."""
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(OnnxNode(operator, inputs, (output,), attributes))
        return output

    def constant(self, array: NDArray[Any] | np.generic | Sequence[int], name: str = "") -> str:
        """Add a constant array to the graph, and return its name. Integers become int64."""
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def cast(self, value: str, dtype: Any, output: str = "") -> str:
        """Append a node that converts an array to a NumPy dtype, and return the name of its output."""
        return self.add("Cast", value, output=output, to=ELEMENT_TYPES[np.dtype(dtype).name])

    def features(self, leaf: FeatureLeaf) -> str:
        """Append the nodes of the features of one array of an observation, and return their name, float32 ``[N, n]``.

        The results equal those of `rl4sys_zmq.values.features`. The graph's input has the name of the leaf, the shape ``[N,
        *shape]`` and the dtype of the space. All features of an integer outside its space are 0.
        """
        if leaf.lowest is None:
            size = leaf.columns.stop - leaf.columns.start
            return self.add("Reshape", self.cast(leaf.name, np.float32), self.constant([-1, size]))
        # Each feature is 1 if one of the integers has one value: repeat the integers, and compare them with the values.
        integers = self.add("Reshape", self.cast(leaf.name, np.int64), self.constant([-1, len(leaf.counts)]))
        repeated = self.add("Gather", integers, self.constant(np.repeat(np.arange(len(leaf.counts)), leaf.counts)), axis=1)
        values = np.concatenate([low + np.arange(count) for low, count in zip(leaf.lowest, leaf.counts, strict=True)])
        return self.cast(self.add("Equal", repeated, self.constant(values)), np.float32)

    def layers(self, space: ObservationSpace, layers: LayerList, names: Sequence[str]) -> str:
        """Append the features of observations and all layers, and return the name of the outputs ``[N, outputs]``.

        The graph's inputs are the arrays of observations. `names` are those of the tensors, in the order of `LayerList.tensors`.

        Raises:
            ConfigError: If a layer has no form in ONNX.
        """
        parts = [self.features(part) for part in feature_layout(space).parts]
        features = values = parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)
        for layer, own, inputs in zip(layers.layers, layers.divided(names), layers.shapes, strict=False):
            values = layer.onnx_form(self, values, own, features, inputs)
        return values

    def graph(self, inputs: Iterable[OnnxValue], outputs: Iterable[OnnxValue]) -> OnnxGraph:
        """Return the finished graph, with the given inputs and outputs."""
        return OnnxGraph(tuple(inputs), tuple(outputs), tuple(self.nodes), dict(self.constants))


def encode_model(graph: OnnxGraph, facts: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of an ONNX model with this graph, and with `facts` as metadata. Equal arguments give equal bytes."""
    parts = [_number(1, IR_VERSION), _text(2, "rl4sys_zmq"), _bytes(7, _graph(graph))]
    parts.append(_bytes(8, _number(2, graph.opset)))
    parts += [_bytes(14, _text(1, key) + _text(2, value)) for key, value in (facts or {}).items()]
    return b"".join(parts)


def _graph(graph: OnnxGraph) -> bytes:
    parts = [_bytes(1, _node(node)) for node in graph.nodes]
    parts.append(_text(2, "policy"))
    parts += [_bytes(5, _tensor(array, name)) for name, array in graph.constants.items()]
    parts += [_bytes(11, _value(value)) for value in graph.inputs]
    parts += [_bytes(12, _value(value)) for value in graph.outputs]
    return b"".join(parts)


def _node(node: OnnxNode) -> bytes:
    parts = [_text(1, name) for name in node.inputs] + [_text(2, name) for name in node.outputs]
    parts.append(_text(4, node.operator))
    parts += [_bytes(5, _attribute(name, value)) for name, value in node.attributes.items()]
    return b"".join(parts)


def _attribute(name: str, value: Attribute) -> bytes:
    start = _text(1, name)
    if isinstance(value, np.ndarray):
        return start + _bytes(5, _tensor(value)) + _number(20, TENSOR)
    if isinstance(value, bytes):
        return start + _bytes(4, value) + _number(20, STRING)
    if isinstance(value, int):
        return start + _number(3, value) + _number(20, INT)
    if isinstance(value, float):
        return start + _fixed32(2, value) + _number(20, FLOAT)
    if all(type(item) is int for item in value):
        return start + b"".join(_number(8, int(item)) for item in value) + _number(20, INTS)
    return start + b"".join(_fixed32(7, item) for item in value) + _number(20, FLOATS)


def _tensor(array: NDArray[Any], name: str = "") -> bytes:
    plain = np.asarray(array, order="C")
    parts = [_number(1, length) for length in plain.shape]
    parts.append(_number(2, ELEMENT_TYPES[plain.dtype.name]))
    parts.append(_text(8, name))
    parts.append(_bytes(9, plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes()))
    return b"".join(parts)


def _value(value: OnnxValue) -> bytes:
    axes = [_bytes(1, _text(2, "N") if length is None else _number(1, length)) for length in value.shape]
    tensor = _number(1, ELEMENT_TYPES[value.dtype]) + _bytes(2, b"".join(axes))
    return _text(1, value.name) + _bytes(2, _bytes(1, tensor))


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # a negative number is written as its two's complement
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field_number: int, value: int) -> bytes:
    return _varint(field_number << 3 | _VARINT) + _varint(value)


def _fixed32(field_number: int, value: float) -> bytes:
    return _varint(field_number << 3 | _FIXED32) + struct.pack("<f", value)


def _bytes(field_number: int, value: bytes) -> bytes:
    return _varint(field_number << 3 | _BYTES) + _varint(len(value)) + value


def _text(field_number: int, value: str) -> bytes:
    return _bytes(field_number, value.encode())
