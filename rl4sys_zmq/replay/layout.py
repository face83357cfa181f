"""The shape and dtype of each value of a data store's items, and the validation of new items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, DataError, config_error
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.arrays import BFLOAT16_BITS, array_from, read_bfloat16
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import STORED_DEPTH, Path, is_text, keys_of, map_tree

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_PLAIN = (type(None), bool, int, float, str, bytes)
_DTYPES = {dtype for d in DTYPES for dtype in (np.dtype(d), np.dtype(d).newbyteorder(">"))}


@dataclass(frozen=True, slots=True)
class DataShape:
    """The declaration of one value of a data store's items: its name, shape and dtype.

    Attributes:
        name: Key of the value, or a path like ``observations/camera`` if dicts are nested.
        shape: Shape of the value in one item.
        dtype: Dtype of the value, as numpy names it.

    Raises:
        ConfigError: If the dtype is not numeric or boolean, or the shape is invalid.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def leaf(self) -> ArraySpec:
        """Check the shape and the dtype, and return them as an `ArraySpec`."""
        name, shape, dtype = self.name, self.shape, self.dtype
        try:
            leaf = ArraySpec(tuple([int(n) for n in shape]), np.dtype(dtype))
        except (TypeError, ValueError) as exc:
            raise config_error(name, f"shape {shape!r:.60} and dtype {dtype!r:.60} are invalid for a column ({exc})") from exc
        if leaf.dtype.str not in DTYPES or any(n < 0 for n in leaf.shape):
            raise config_error(name, f"{leaf} are invalid for a column; only numbers and booleans can be stored")
        return leaf


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The shape and dtype of one value of an item, or of a whole column."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The size of the value in bytes."""
        return self.dtype.itemsize * prod(self.shape)

    def __str__(self) -> str:
        return f"shape {self.shape} and dtype {self.dtype}"


class StoreLayout:
    """The shapes and dtypes of the values of a data store's items, with which it validates items and packs them into arrays.

    Attributes:
        leaves: The shape and dtype of each value, by key; a nested value has a path like ``observations/camera``.
    """

    def __init__(self, leaves: Mapping[str, ArraySpec]) -> None:
        self.leaves = dict(leaves)

    def pack(self, rows: Sequence[Mapping[str, object]]) -> dict[str, NDArray[Any]]:
        """Check items, and return one array for each of their values, by key. Raise `DataError` if an item does not fit."""
        for row in rows:
            if row.keys() != self.leaves.keys():
                raise self._other_keys(row)
        return {path: self._column(path, leaf, [row[path] for row in rows]) for path, leaf in self.leaves.items()}

    def _column(self, path: str, leaf: ArraySpec, values: list[object]) -> NDArray[Any]:
        if len(values) > 1:
            try:  # all at once, if numpy can make one array of them
                block = np.asarray(values)
            except (ValueError, TypeError, RuntimeError, OverflowError):
                pass
            else:
                if block.dtype == leaf.dtype and block.shape[1:] == leaf.shape:
                    return block
        out = np.empty((len(values), *leaf.shape), leaf.dtype)
        for row, value in enumerate(values):
            array = as_leaf(path, value)
            if array.shape != leaf.shape:
                raise DataError(path, f"shape {array.shape} and dtype {array.dtype}, but the store holds {leaf}")
            out[row] = _fit(path, array, leaf)
        return out

    def _other_keys(self, row: Mapping[str, object]) -> DataError:
        missing, unknown = self.leaves.keys() - row.keys(), row.keys() - self.leaves.keys()
        key = min(missing or unknown)
        problem = "is missing" if missing else "is not a key of this store"
        return DataError(key, f"{problem}; its keys are {', '.join(sorted(self.leaves))}")


def as_leaf(path: str, value: object) -> NDArray[Any]:
    """Convert a value to an array in little-endian byte order."""
    try:
        foreign = None if type(value) is np.ndarray and value.dtype.str in DTYPES else array_from(value)
        array = np.asarray(value) if foreign is None else foreign
    except (ValueError, TypeError, RuntimeError, OverflowError) as exc:
        raise DataError(path, f"not an array: {exc!s:.200}") from exc
    if array.dtype == BFLOAT16_BITS:
        return read_bfloat16(array).astype(np.float32)
    if array.dtype.str in DTYPES:
        return array
    little = array.dtype.newbyteorder("<")
    if little.str not in DTYPES:
        raise DataError(path, f"dtype {array.dtype} ({type(value).__name__}); only numbers and booleans can be stored")
    return array.astype(little)


def flag(path: str, value: object) -> bool:
    if type(value) is bool:
        return value
    array = as_leaf(path, value)
    if array.shape != () or array not in (0, 1):
        raise DataError(path, f"shape {array.shape} and dtype {array.dtype}, not a boolean or 0 or 1")
    return bool(array)


def is_space(value: object) -> bool:
    """Return True for a space of Gymnasium or of this library."""
    return hasattr(value, "spaces") or (hasattr(value, "shape") and hasattr(value, "dtype") and not hasattr(value, "__array__"))


def space_leaves(prefix: str, space: object) -> dict[str, ArraySpec]:
    """Return the shape and dtype of each array in the elements of a space, by path, which begins with `prefix`."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {path: leaf for key, part in parts.items() for path, leaf in space_leaves(f"{prefix}/{key}", part).items()}
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise ConfigError(f"a space of type {type(space).__name__} has no fixed shape; use Dict, Box or Discrete", key=prefix)
    return {prefix: DataShape(prefix, shape, dtype).leaf()}


def copy_payload(value: object) -> Any:
    """Return a copy of an item and its arrays, so that the caller can change the original."""
    return map_tree(_copy_leaf, value, _data_error, STORED_DEPTH)


def _data_error(path: Path, problem: str) -> DataError:
    return DataError("/".join(map(str, keys_of(path))), problem)


def _copy_leaf(value: Any, path: Path) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return _copy_array(value, value, path)
    if isinstance(value, str) and not is_text(value):
        raise _data_error(path, "a string that is not UTF-8 cannot be sent")
    if isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX:
        raise _data_error(path, "an integer of more than 64 bits cannot be sent")
    if isinstance(value, _PLAIN):
        return value
    try:
        array = array_from(value)
    except (TypeError, ValueError, RuntimeError) as exc:
        raise _data_error(path, f"a {type(value).__name__} cannot be converted to an array: {exc!s:.200}") from exc
    if array is None:
        raise _data_error(path, f"a value of type {type(value).__name__} cannot be sent")
    return _copy_array(array, value, path)


def _copy_array(array: Any, value: object, path: Path) -> Any:
    if array.dtype == BFLOAT16_BITS:
        array = read_bfloat16(array)
    elif (array.dtype not in _DTYPES and array.dtype.name != "bfloat16") or isinstance(array, np.ma.MaskedArray):
        raise _data_error(path, f"a {type(value).__name__} of dtype {array.dtype} cannot be sent")
    if array.ndim > MAX_DIMENSIONS:
        raise _data_error(path, f"an array of more than {MAX_DIMENSIONS} dimensions cannot be sent")
    return array.copy()


def zeros(leaf: ArraySpec) -> NDArray[Any]:
    try:
        return np.zeros(leaf.shape, leaf.dtype)
    except (MemoryError, ValueError) as exc:
        raise ConfigError(
            f"{leaf.nbytes:,} bytes do not fit in memory; use a smaller capacity, or path= for disk; for an algorithm, a smaller "
            "buffer_size, or a run directory and a smaller buffer_memory_bytes",
            key="capacity",
        ) from exc


def _fit(path: str, array: NDArray[Any], leaf: ArraySpec) -> NDArray[Any]:
    """Convert an array to the dtype of a column. No value changes, except by rounding to a float dtype."""
    target = leaf.dtype
    if array.dtype == target:
        return array
    if array.dtype.kind == "f" and target.kind in "iu":
        raise DataError(path, f"shape {array.shape} and dtype {array.dtype}, but the store holds {leaf}")
    with np.errstate(over="ignore"):
        fitted = array.astype(target)
    same = np.isfinite(fitted) == np.isfinite(array) if target.kind == "f" else fitted == array
    if not np.all(same):
        raise DataError(path, f"dtype {array.dtype} with a value that {target} cannot hold")
    return fitted
