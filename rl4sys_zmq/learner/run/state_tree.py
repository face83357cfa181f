"""Conversion of an algorithm's state into a JSON tree and named arrays, and back, without pickle.

A value that JSON cannot express becomes an object whose first key begins with ``$``, such as ``{"$array": NAME, "dtype": ...,
"shape": ...}``.
"""

from __future__ import annotations

import base64
import importlib
import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.replay.pieces import StatePiece

Array = NDArray[Any]

_NATIVE = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "float16",
    "float32",
    "float64",
    "bool",
}
"""The dtypes that every version of safetensors can store. Arrays of other dtypes are stored as bytes."""

_WHOLE = 1 << 63
"""Integers of this size or larger are stored in hexadecimal: Python refuses decimal numbers of more than 4,300 digits."""

_PLAIN = (type(None), bool, str)


def piece_of(array: str) -> str:
    """Return the name of the `StatePiece` that has an array; empty if none. `array` is the name that `pack_state` gave it."""
    kind, _, rest = array.partition(":")
    return rest.partition(":")[0] if kind == "piece" else ""


def pieces_without_arrays(state: Any) -> Iterator[str]:
    """Yield the names of the pieces in a state that have no arrays, because the reader has them already (`StatePiece`)."""
    if isinstance(state, Mapping):
        state = list(state.values())
    if isinstance(state, list | tuple):
        for part in state:
            yield from pieces_without_arrays(part)
    elif type(state) is StatePiece and state.arrays is None:
        yield state.name


def _piece_prefix(name: str) -> str:
    return f"piece:{name}:"


def pack_state(state: Mapping[str, Any]) -> tuple[Any, dict[str, Array]]:
    """Split an algorithm's state into a tree of JSON values and a dict of arrays, which the tree refers to by name.

    A state consists of dicts (keys: str or int), lists, tuples, torch tensors, numpy arrays and scalars (any dtype without
    fields or objects), integers of any size, floats, bool, str, bytes, None and `StatePiece`. The arrays of a piece that has
    none are missing in the result. Contiguous arrays are not copied.
    """
    packer = _StatePacker()
    try:
        return packer.pack(state, "state"), packer.arrays
    except RecursionError as exc:
        raise CheckpointError("state", "it is nested too deeply or contains itself") from exc


def unpack_state(tree: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the state that `pack_state` has split. Tensors are on the CPU; arrays are writable."""
    if type(tree) is list:
        return [item if type(item) in (int, float) else unpack_state(item, arrays) for item in tree]
    if type(tree) is not dict:
        return tree
    tag = next(iter(tree), "")
    if not tag.startswith("$"):
        return {key: unpack_state(value, arrays) for key, value in tree.items()}
    return _READERS[tag](tree, arrays)


class _StatePacker:
    """The converter of one algorithm's state to a tree of JSON values. `arrays`: those found so far, by their path."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def pack(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -_WHOLE <= value < _WHOLE else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        if kind is list:
            return self._items(value, path)
        if kind is tuple:
            return {"$tuple": self._items(value, path)}
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if kind is np.ndarray:
            return self._array("$array", value, path)
        if isinstance(value, np.generic):
            return self._array("$scalar", np.asarray(value), path)
        if kind is StatePiece:
            return self._piece(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):  # torch may be partly imported
            return self._tensor(value, path, torch)
        raise CheckpointError(path, f"a {kind.__module__}.{kind.__qualname__} cannot be stored")

    def _items(self, values: Sequence[Any], path: str) -> list[Any]:
        if values and set(map(type, values)) == {int} and min(values) >= -_WHOLE and max(values) < _WHOLE:
            return list(values)  # a fast path for long lists of numbers
        return [self.pack(item, f"{path}[{index}]") for index, item in enumerate(values)]

    def _mapping(self, values: Mapping[Any, Any], path: str) -> dict[str, Any]:
        if all(type(key) is str and not key.startswith("$") for key in values):
            return {key: self.pack(value, f"{path}.{key}") for key, value in values.items()}
        for key in values:
            if type(key) not in (str, int):
                raise CheckpointError(f"{path}[{key!r:.80}]", f"a key must be a str or an int, not a {type(key).__qualname__}")
        return {"$pairs": [[self.pack(key, path), self.pack(value, f"{path}.{key}")] for key, value in values.items()]}

    def _array(self, tag: str, array: Array, path: str) -> dict[str, Any]:
        dtype = array.dtype
        if dtype.hasobject or np.dtype(dtype.str) != dtype:
            raise CheckpointError(path, f"an array of dtype {dtype} cannot be stored")
        shape = list(array.shape)
        if not array.nbytes:
            return {tag: None, "dtype": dtype.str, "shape": shape}
        array = np.ascontiguousarray(array)
        as_it_is = dtype.name in _NATIVE and dtype.isnative
        stored = array.reshape(shape) if as_it_is else array.reshape(-1).view(np.uint8)
        return {tag: self._keep(stored, path), "dtype": dtype.str, "shape": shape}

    def _tensor(self, tensor: Any, path: str, torch: Any) -> dict[str, Any]:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise CheckpointError(path, f"a tensor of dtype {tensor.dtype} and layout {tensor.layout} cannot be stored")
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        if not tensor.numel():
            return {"$tensor": None, "dtype": dtype, "shape": shape}
        stored = tensor.numpy() if dtype in _NATIVE else tensor.reshape(-1).view(torch.uint8).numpy()
        return {"$tensor": self._keep(stored, path), "dtype": dtype, "shape": shape}

    def _piece(self, piece: StatePiece) -> dict[str, Any]:
        self.arrays |= {f"{_piece_prefix(piece.name)}{name}": array for name, array in (piece.arrays or {}).items()}
        return {"$piece": piece.name}

    def _keep(self, array: Array, path: str) -> str:
        name = path.encode("ascii", "backslashreplace").decode()
        if name in self.arrays:  # keys that contain dots
            name = f"{name}#{len(self.arrays)}"
        self.arrays[name] = array
        return name


def _read_array(node: dict[str, Any], arrays: Mapping[str, Array]) -> Array:
    dtype, shape, name = np.dtype(node["dtype"]), tuple(node["shape"]), next(iter(node.values()))
    if name is None:
        return np.empty(shape, dtype)
    array: Array = arrays[name].reshape(-1).view(dtype).reshape(shape)
    return array if array.flags.writeable else array.copy()


def _read_tensor(node: dict[str, Any], arrays: Mapping[str, Array]) -> Any:
    torch: Any = importlib.import_module("torch")
    dtype, shape = getattr(torch, node["dtype"]), tuple(node["shape"])
    if node["$tensor"] is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    array = arrays[node["$tensor"]].reshape(-1)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).view(dtype).reshape(shape)


def _read_piece(node: dict[str, Any], arrays: Mapping[str, Array]) -> StatePiece:
    name = str(node["$piece"])
    prefix = _piece_prefix(name)
    return StatePiece(name, {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)})


_READERS: dict[str, Callable[[dict[str, Any], Mapping[str, Array]], Any]] = {
    "$int": lambda node, _: int(node["$int"], 16),
    "$float": lambda node, _: struct.unpack(">d", bytes.fromhex(node["$float"]))[0],
    "$bytes": lambda node, _: base64.b64decode(node["$bytes"], validate=True),
    "$tuple": lambda node, arrays: tuple(unpack_state(node["$tuple"], arrays)),
    "$pairs": lambda node, arrays: {unpack_state(key, arrays): unpack_state(value, arrays) for key, value in node["$pairs"]},
    "$array": _read_array,
    "$scalar": lambda node, arrays: _read_array(node, arrays)[()],
    "$tensor": _read_tensor,
    "$piece": _read_piece,
}
