"""The reader of ONNX models: from bytes to an `OnnxGraph`, without the package ``onnx``.

The bytes can come from any peer. Descriptions such as documentation, metadata and the shapes of intermediate values are skipped.
Everything else that a policy does not need is refused: external files, functions, training, sparse tensors, subgraphs, text
tensors, and fields that this module does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.graphs.model import (
    ELEMENT_TYPES,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    STRING,
    TENSOR,
    Attribute,
    OnnxGraph,
    OnnxNode,
    OnnxValue,
)

OPSETS = range(13, 24)
"""The versions of the standard operators that a graph can use."""

MAX_GRAPH_NODES = 4096
"""The largest number of nodes, and of constants, of a graph."""
MAX_AXES = 8
MAX_ITEMS = 1024
"""The largest number of inputs, outputs, attributes or axes of one node, and of items of one attribute."""
MAX_NAME_BYTES = 512
MAX_PACKED = 1 << 20
"""The largest number of integers in one field. A Python integer takes 36 bytes, and 1 byte in the model."""

_DTYPES = {number: np.dtype(name).newbyteorder("<") for name, number in ELEMENT_TYPES.items()}
_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}
_KINDS = ", ".join(ELEMENT_TYPES)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, Any]
"""The number and the value of a field: an integer, or the bytes of a text, a message or several numbers."""


def decode_model(data: bytes) -> OnnxGraph:
    """Return the graph of an ONNX model.

    The reader checks the encoding only. The operators can be unknown to this package, and the parts need not fit together.

    Raises:
        ConfigError: If the bytes are not an ONNX model, or the model has a part that this module refuses.
    """
    opset = 0
    found: memoryview | None = None
    for number, value in _fields(memoryview(data), "model"):
        match number:
            case 7:
                if found is not None:
                    raise _refused("it has two graphs")
                found = _raw(value, "graph")
            case 8:
                domain, opset = _opset(_raw(value, "opset"))
                if domain not in ("", "ai.onnx"):
                    raise _refused(f"it uses operators of the domain {domain!r:.80}; expected only standard operators")
            case 1 | 2 | 3 | 4 | 5 | 6 | 14:
                pass
            case _:
                raise _unknown("model", number, {20: "training", 25: "functions", 26: "the configuration of devices"})
    if opset not in OPSETS:
        raise _refused(f"its operators have the version {opset}; expected an opset from {OPSETS[0]} to {OPSETS[-1]}")
    if found is None:
        raise _refused("it has no graph")
    return _graph(found, opset)


def _refused(problem: str) -> ConfigError:
    return ConfigError(f"the blob is not an ONNX model that a policy can use: {problem}", key="blob")


def _unknown(message: str, number: int, names: Mapping[int, str]) -> ConfigError:
    return _refused(f"the {message} has {names.get(number, f'the unknown field {number}')}")


def _fields(data: memoryview, message: str) -> Iterator[Field]:
    """Yield the fields of a message that is encoded as a protocol buffer. `message` is its name, for errors."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: Any
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            if length > end - at:
                raise _refused(f"the {message} ends in the middle of field {number}")
            value, at = data[at : at + length], at + length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            if length > end - at:
                raise _refused(f"the {message} ends in the middle of field {number}")
            value, at = data[at : at + length], at + length
        else:
            raise _refused(f"the {message} has a field of the unknown type {kind}")
        yield number, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value & (1 << 64) - 1, at
    raise _refused("a number in it has no end")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _raw(value: Any, name: str) -> Any:
    if not isinstance(value, memoryview):
        raise _refused(f"the {name} is a number; expected bytes")
    return value


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int):
        raise _refused(f"the {name} is not a number")
    return _signed(value)


def _text(value: Any, name: str) -> str:
    data = bytes(_raw(value, name))
    if len(data) > MAX_NAME_BYTES:
        raise _refused(f"the {name} has {len(data)} bytes; expected at most {MAX_NAME_BYTES}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _refused(f"the {name} is not UTF-8") from None


def _wholes(value: Any, name: str) -> list[int]:
    """Return the integers in one occurrence of a repeated field, packed or single."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers: list[int] = []
    at = 0
    while at < len(_raw(value, name)):
        _limit(len(numbers) + 1, MAX_PACKED, f"numbers in the {name}; write it as raw data")
        number, at = _varint(value, at)
        numbers.append(_signed(number))
    return numbers


def _floats(value: Any, name: str) -> list[float]:
    data = bytes(_raw(value, name))
    if len(data) % 4:
        raise _refused(f"the {name} has {len(data)} bytes; expected a multiple of 4")
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _limit(count: int, most: int, name: str) -> None:
    if count > most:
        raise _refused(f"it has more than {most} {name}")


def _opset(data: memoryview) -> tuple[str, int]:
    domain, version = "", 0
    for number, value in _fields(data, "opset"):
        if number == 1:
            domain = _text(value, "domain")
        elif number == 2:
            version = _whole(value, "version of the operators")
        else:
            raise _unknown("opset", number, {})
    return domain, version


def _graph(data: memoryview, opset: int) -> OnnxGraph:
    nodes: list[OnnxNode] = []
    constants: dict[str, NDArray[Any]] = {}
    inputs: list[OnnxValue] = []
    outputs: list[OnnxValue] = []
    for number, value in _fields(data, "graph"):
        match number:
            case 1:
                _limit(len(nodes) + 1, MAX_GRAPH_NODES, "nodes")
                nodes.append(_node(_raw(value, "node")))
            case 5:
                _limit(len(constants) + 1, MAX_GRAPH_NODES, "constants")
                name, array = _tensor(_raw(value, "constant"))
                if not name or name in constants:
                    raise _refused(f"it has two constants with the name {name!r:.80}")
                constants[name] = array
            case 11 | 12:
                values = inputs if number == 11 else outputs
                _limit(len(values) + 1, MAX_GRAPH_NODES, "inputs or outputs")
                values.append(_value(_raw(value, "input or output")))
            case 2 | 10 | 13 | 14 | 16:  # descriptions
                pass
            case _:
                raise _unknown("graph", number, {15: "sparse constants"})
    return OnnxGraph(tuple(inputs), tuple(outputs), tuple(nodes), constants, opset)


def _node(data: memoryview) -> OnnxNode:
    inputs: list[str] = []
    outputs: list[str] = []
    operator, attributes = "", dict[str, Attribute]()
    for number, value in _fields(data, "node"):
        match number:
            case 1 | 2:
                names = inputs if number == 1 else outputs
                _limit(len(names) + 1, MAX_ITEMS, "inputs or outputs of a node")
                names.append(_text(value, "name of a value"))
            case 4:
                operator = _text(value, "name of an operator")
            case 5:
                _limit(len(attributes) + 1, MAX_ITEMS, "attributes of a node")
                name, attribute = _attribute(_raw(value, "attribute"))
                attributes[name] = attribute
            case 7:
                domain = _text(value, "domain")
                if domain not in ("", "ai.onnx"):
                    raise _refused(f"it uses an operator of the domain {domain!r:.80}; expected only standard operators")
            case 3 | 6 | 9:
                pass
            case _:
                raise _unknown("node", number, {8: "an overload of a function", 10: "the configuration of devices"})
    return OnnxNode(operator, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview) -> tuple[str, Attribute]:
    name, kind = "", 0
    floats: list[float] = []
    whole: list[int] = []
    text, tensor, single = b"", None, 0.0
    number_value = 0
    for number, value in _fields(data, "attribute"):
        match number:
            case 1:
                name = _text(value, "name of an attribute")
            case 2:
                single = sum(_floats(value, "attribute")[:1])
            case 3:
                number_value = _whole(value, "attribute")
            case 4:
                text = bytes(_raw(value, "attribute"))
                _limit(len(text), MAX_NAME_BYTES, "bytes of text in an attribute")
            case 5:
                tensor = _tensor(_raw(value, "attribute"))[1]
            case 7:
                floats += _floats(value, "attribute")
            case 8:
                whole += _wholes(value, "attribute")
            case 20:
                kind = _whole(value, "type of an attribute")
            case 13:
                pass
            case _:
                raise _unknown("attribute", number, {6: "a subgraph", 11: "subgraphs", 9: "texts", 10: "tensors"})
    _limit(max(len(floats), len(whole)), MAX_ITEMS, "items of an attribute")
    values: dict[int, Any] = {
        FLOAT: single,
        INT: number_value,
        STRING: text,
        TENSOR: tensor,
        FLOATS: tuple(floats),
        INTS: tuple(whole),
    }
    if values.get(kind) is None:
        raise _refused(f"the attribute {name!r:.80} has the type {kind}, or no value; expected numbers, a text or a tensor")
    return name, values[kind]


def _tensor(data: memoryview) -> tuple[str, NDArray[Any]]:
    """Return the name of a tensor, and its elements as a new array."""
    name, kind, location, raw = "", 0, 0, None
    shape: list[int] = []
    wholes: list[int] = []
    parts: dict[int, list[bytes]] = {4: [], 10: []}
    for number, value in _fields(data, "tensor"):
        match number:
            case 1:
                shape += _wholes(value, "shape of a constant")
            case 2:
                kind = _whole(value, "dtype of a constant")
            case 8:
                name = _text(value, "name of a constant")
            case 9:
                raw = _raw(value, "constant")
            case 4 | 10:
                parts[number].append(bytes(_raw(value, "constant")))
            case 5 | 7 | 11:
                wholes += _wholes(value, "constant")
            case 12 | 16:
                pass
            case 14:
                location = _whole(value, "location of a constant")
            case _:
                raise _unknown("tensor", number, {3: "a segment", 6: "texts", 13: "data in another file"})
    if kind not in _DTYPES or location:
        raise _refused(f"the constant {name!r:.80} has the dtype number {kind}, or is in another file; expected {_KINDS}")
    dtype = _DTYPES[kind]
    if len(shape) > MAX_AXES or any(not 0 <= length < 1 << 31 for length in shape):
        raise _refused(f"the constant {name!r:.80} has the shape {shape!s:.80}")
    try:
        array = _elements(dtype, raw, wholes, parts)
    except (ValueError, OverflowError) as exc:
        raise _refused(f"the constant {name!r:.80} has elements that are not {dtype.name}: {exc}") from None
    if array.size != prod(shape):
        raise _refused(f"the constant {name!r:.80} has {array.size} elements; its shape is {shape}")
    return name, array.astype(np.dtype(dtype.name)).reshape(shape)


def _elements(dtype: np.dtype[Any], raw: memoryview | None, wholes: list[int], parts: dict[int, list[bytes]]) -> NDArray[Any]:
    """Return the elements of a tensor as a flat array, from the field in which they are."""
    if raw is not None:
        return np.frombuffer(raw, np.uint8).astype(np.bool_) if dtype.kind == "b" else np.frombuffer(raw, dtype)
    if dtype.name in ("float32", "float64"):
        return np.frombuffer(b"".join(parts[4 if dtype.itemsize == 4 else 10]), dtype)
    if dtype.name == "float16":
        return np.array(wholes, np.uint16).view(np.float16)
    if dtype.name == "uint64":
        return np.array([value & (1 << 64) - 1 for value in wholes], dtype)
    return np.array(wholes, dtype)


def _value(data: memoryview) -> OnnxValue:
    name, tensor = "", None
    for number, value in _fields(data, "input or output"):
        if number == 1:
            name = _text(value, "name of an input or output")
        elif number == 2:
            for part, content in _fields(_raw(value, "type"), "type"):
                if part not in (1, 6):
                    raise _refused(f"the input or output {name!r:.80} is not a tensor")
                tensor = _raw(content, "type") if part == 1 else tensor
        elif number not in (3, 4):
            raise _unknown("input or output", number, {})
    if not name or tensor is None:
        raise _refused(f"the input or output {name!r:.80} has no name or no type")
    kind, shape = 0, None
    for number, value in _fields(tensor, "type"):
        if number == 1:
            kind = _whole(value, "dtype")
        elif number == 2:
            shape = tuple(_axes(_raw(value, "shape"), name))
        else:
            raise _unknown("type", number, {})
    if kind not in _NAMES or shape is None or len(shape) > MAX_AXES:
        raise _refused(f"the input or output {name!r:.80} has no dtype or shape that a policy can use")
    return OnnxValue(name, _NAMES[kind], shape)


def _axes(data: memoryview, name: str) -> Iterator[int | None]:
    """Yield the length of each axis of a shape; None for a length that is not fixed."""
    for number, value in _fields(data, "shape"):
        if number != 1:
            raise _unknown("shape", number, {})
        length: int | None = None
        for part, content in _fields(_raw(value, "axis"), "axis"):
            if part == 1:
                length = _whole(content, "length of an axis")
                if not 0 <= length < 1 << 31:
                    raise _refused(f"the input or output {name!r:.80} has an axis of length {length}")
            elif part not in (2, 3):
                raise _unknown("axis", part, {})
        yield length
