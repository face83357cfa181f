"""The reader of ONNX models: from bytes to an `OnnxGraph`, without the package ``onnx``.

The bytes can come from any peer. Descriptions such as documentation, metadata and the shapes of intermediate values are skipped.
Everything else that a policy does not need is refused: external files, functions, training, sparse tensors, subgraphs, text
tensors, and fields that this module does not know.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain
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
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""The sizes of the values of the other types of fields, in bytes."""

Reader = Callable[[Any, str], Any]
"""A function that converts the value of a field, whose name it gets for errors."""


def decode_model(data: bytes) -> OnnxGraph:
    """Return the graph of an ONNX model.

    The reader checks the encoding only. The operators can be unknown to this package, and the parts need not fit together.

    Raises:
        ConfigError: If the bytes are not an ONNX model, or the model has a part that this module refuses.
    """
    found = _read(
        memoryview(data),
        "model",
        {7: ("graph", _raw), 8: ("opset", _opset)},
        skipped=(1, 2, 3, 4, 5, 6, 14),
        refused={20: "training", 25: "functions", 26: "the configuration of devices"},
    )
    opset = _last(found[8], 0)
    if opset not in OPSETS:
        raise _refused(f"its operators have the version {opset}; expected an opset from {OPSETS[0]} to {OPSETS[-1]}")
    if len(found[7]) != 1:
        raise _refused(f"it has {len(found[7])} graphs; expected one")
    return _graph(found[7][0], opset)


def _refused(problem: str) -> ConfigError:
    return ConfigError(f"the blob is not an ONNX model that a policy can use: {problem}", key="blob")


def _read(
    data: memoryview,
    message: str,
    known: Mapping[int, tuple[str, Reader]],
    *,
    skipped: Container[int] = (),
    refused: Mapping[int, str] | None = None,
    most: int = MAX_PACKED,
) -> dict[int, list[Any]]:
    """Return the values of the `known` fields of a message by number. Raise ConfigError for others, except `skipped` ones."""
    found: dict[int, list[Any]] = {number: [] for number in known}
    for number, value in _fields(data, message):
        if number in known:
            name, reader = known[number]
            if len(found[number]) == most:
                raise _refused(f"the {message} has more than {most} fields for a {name}")
            found[number].append(reader(value, name))
        elif number not in skipped:
            raise _refused(f"the {message} has {(refused or {}).get(number, f'the unknown field {number}')}")
    return found


def _last(values: Sequence[Any], default: Any) -> Any:
    return values[-1] if values else default


def _fields(data: memoryview, message: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message in the encoding of protocol buffers: an integer, or bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise _refused(f"the {message} has a field of the unknown type {kind}")
        if length > end - at:
            raise _refused(f"the {message} ends in the middle of field {number}")
        yield number, data[at : at + length]
        at += length


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


def _raw(value: Any, name: str) -> memoryview:
    if not isinstance(value, memoryview):
        raise _refused(f"the {name} is a number; expected bytes")
    return value


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int):
        raise _refused(f"the {name} is not a number")
    return _signed(value)


def _short(value: Any, name: str) -> bytes:
    data = bytes(_raw(value, name))
    if len(data) > MAX_NAME_BYTES:
        raise _refused(f"the {name} has {len(data)} bytes; expected at most {MAX_NAME_BYTES}")
    return data


def _text(value: Any, name: str) -> str:
    try:
        return _short(value, name).decode()
    except UnicodeDecodeError:
        raise _refused(f"the {name} is not UTF-8") from None


def _wholes(value: Any, name: str) -> list[int]:
    """Return the integers in one field of a protocol buffer: several packed ones, or a single one."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers: list[int] = []
    data, at = _raw(value, name), 0
    while at < len(data):
        if len(numbers) == MAX_PACKED:
            raise _refused(f"it has more than {MAX_PACKED} numbers in the {name}; write it as raw data")
        number, at = _varint(data, at)
        numbers.append(_signed(number))
    return numbers


def _floats(value: Any, name: str) -> tuple[float, ...]:
    data = bytes(_raw(value, name))
    if len(data) % 4:
        raise _refused(f"the {name} has {len(data)} bytes; expected a multiple of 4")
    return struct.unpack(f"<{len(data) // 4}f", data)


def _domain(value: Any, name: str) -> None:
    domain = _text(value, name)
    if domain not in ("", "ai.onnx"):
        raise _refused(f"it uses operators of the domain {domain!r:.80}; expected only standard operators")


def _opset(value: Any, name: str) -> int:
    found = _read(_raw(value, name), name, {1: ("domain", _domain), 2: ("version of the operators", _whole)})
    version: int = _last(found[2], 0)
    return version


def _graph(data: memoryview, opset: int) -> OnnxGraph:
    found = _read(
        data,
        "graph",
        {1: ("node", _node), 5: ("constant", _tensor), 11: ("input or output", _value), 12: ("input or output", _value)},
        skipped=(2, 10, 13, 14, 16),  # descriptions
        refused={15: "sparse constants"},
        most=MAX_GRAPH_NODES,
    )
    constants = dict(found[5])
    if "" in constants or len(constants) < len(found[5]):
        raise _refused("two of its constants have the same name, or one has none")
    return OnnxGraph(tuple(found[11]), tuple(found[12]), tuple(found[1]), constants, opset)


def _node(value: Any, name: str) -> OnnxNode:
    found = _read(
        _raw(value, name),
        name,
        {
            1: ("name of a value", _text),
            2: ("name of a value", _text),
            4: ("name of an operator", _text),
            5: ("attribute", _attribute),
            7: ("domain", _domain),
        },
        skipped=(3, 6, 9),
        refused={8: "an overload of a function", 10: "the configuration of devices"},
        most=MAX_ITEMS,
    )
    return OnnxNode(_last(found[4], ""), tuple(found[1]), tuple(found[2]), dict(found[5]))


def _attribute(value: Any, name: str) -> tuple[str, Attribute]:
    found = _read(
        _raw(value, name),
        name,
        {
            1: ("name of an attribute", _text),
            2: (name, _floats),
            3: (name, _whole),
            4: ("text of an attribute", _short),
            5: (name, _tensor),
            7: (name, _floats),
            8: (name, _wholes),
            20: ("type of an attribute", _whole),
        },
        skipped=(13,),
        refused={6: "a subgraph", 11: "subgraphs", 9: "texts", 10: "tensors"},
    )
    floats, wholes = (tuple(chain.from_iterable(found[number])) for number in (7, 8))
    if max(len(floats), len(wholes)) > MAX_ITEMS:
        raise _refused(f"it has more than {MAX_ITEMS} items of an attribute")
    values: dict[int, Any] = {
        FLOAT: sum(_last(found[2], ())[:1], 0.0),
        INT: _last(found[3], 0),
        STRING: _last(found[4], b""),
        TENSOR: _last(found[5], ("", None))[1],
        FLOATS: floats,
        INTS: wholes,
    }
    own, kind = _last(found[1], ""), _last(found[20], 0)
    if values.get(kind) is None:
        raise _refused(f"the attribute {own!r:.80} has the type {kind}, or no value; expected numbers, a text or a tensor")
    return own, values[kind]


def _tensor(value: Any, name: str) -> tuple[str, NDArray[Any]]:
    """Return the name of a tensor, and its elements as a new array."""
    found = _read(
        _raw(value, name),
        "tensor",
        {
            1: ("shape of a constant", _wholes),
            2: ("dtype of a constant", _whole),
            8: ("name of a constant", _text),
            14: ("location of a constant", _whole),
            **dict.fromkeys((4, 9, 10), ("constant", _raw)),
            **dict.fromkeys((5, 7, 11), ("constant", _wholes)),
        },
        skipped=(12, 16),
        refused={3: "a segment", 6: "texts", 13: "data in another file"},
    )
    own, kind, shape = _last(found[8], ""), _last(found[2], 0), list(chain.from_iterable(found[1]))
    if kind not in _DTYPES or _last(found[14], 0):
        raise _refused(f"the constant {own!r:.80} has the dtype number {kind}, or is in another file; expected {_KINDS}")
    dtype = _DTYPES[kind]
    if len(shape) > MAX_AXES or any(not 0 <= length < 1 << 31 for length in shape):
        raise _refused(f"the constant {own!r:.80} has the shape {shape!s:.80}")
    try:
        array = _elements(dtype, found)
    except (ValueError, OverflowError) as exc:
        raise _refused(f"the constant {own!r:.80} has elements that are not {dtype.name}: {exc}") from None
    if array.size != prod(shape):
        raise _refused(f"the constant {own!r:.80} has {array.size} elements; its shape is {shape}")
    return own, array.astype(np.dtype(dtype.name)).reshape(shape)


def _elements(dtype: np.dtype[Any], found: Mapping[int, list[Any]]) -> NDArray[Any]:
    """Return the elements of a tensor as a flat array, from the field in which they are."""
    if found[9]:
        raw = found[9][-1]
        return np.frombuffer(raw, np.uint8).astype(np.bool_) if dtype.kind == "b" else np.frombuffer(raw, dtype)
    if dtype.name in ("float32", "float64"):
        return np.frombuffer(b"".join(found[4 if dtype.itemsize == 4 else 10]), dtype)
    wholes = list(chain(*found[5], *found[7], *found[11]))
    if dtype.name == "float16":
        return np.array(wholes, np.uint16).view(np.float16)
    if dtype.name == "uint64":
        return np.array([value & (1 << 64) - 1 for value in wholes], dtype)
    return np.array(wholes, dtype)


def _value(value: Any, name: str) -> OnnxValue:
    found = _read(_raw(value, name), name, {1: (f"name of an {name}", _text), 2: ("type", _type)}, skipped=(3, 4))
    own, (kind, shape) = _last(found[1], ""), _last(found[2], (0, None))
    if not own or kind not in _NAMES or shape is None or len(shape) > MAX_AXES:
        raise _refused(f"the {name} {own!r:.80} has no name, dtype or shape that a policy can use")
    return OnnxValue(own, _NAMES[kind], shape)


def _type(value: Any, name: str) -> tuple[int, tuple[int | None, ...] | None]:
    """Return the number of the dtype and the shape of a tensor."""
    others = {4: "a sequence", 5: "a map", 8: "a sparse tensor", 9: "an optional value"}
    tensors = _read(_raw(value, name), name, {1: (name, _raw)}, skipped=(6,), refused=others)[1]
    found = _read(_last(tensors, memoryview(b"")), name, {1: ("dtype", _whole), 2: ("shape", _shape)})
    return _last(found[1], 0), _last(found[2], None)


def _shape(value: Any, name: str) -> tuple[int | None, ...]:
    return tuple(_read(_raw(value, name), name, {1: ("axis", _axis)})[1])


def _axis(value: Any, name: str) -> int | None:
    """Return the length of an axis; None for a length that is not fixed."""
    found = _read(_raw(value, name), name, {1: ("length of an axis", _whole)}, skipped=(2, 3))
    length: int | None = _last(found[1], None)
    if length is not None and not 0 <= length < 1 << 31:
        raise _refused(f"an axis of an input or output has the length {length}")
    return length
