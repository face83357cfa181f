"""The columns of a data store, one for each leaf of its items, and the checks of what goes into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, DataError
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import STORED_DEPTH, Path, is_text, keys_of, map_tree

__all__ = ["DataShape", "Layout", "Leaf", "as_leaf", "copy_payload", "flag", "space_leaves", "zeros"]

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_PLAIN = (type(None), bool, int, float, str, bytes)
_DTYPES = {dtype for d in DTYPES for dtype in (np.dtype(d), np.dtype(d).newbyteorder(">"))}


@dataclass(frozen=True, slots=True)
class DataShape:
    """One column, declared: `name` (a path like ``observations/camera`` for a nested one), and the shape and dtype of an item.

    Raises:
        ConfigError: when the dtype is not one of numbers or booleans, or the shape is not one.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def leaf(self) -> Leaf:
        """The same, checked."""
        return _leaf(self.name, self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Leaf:
    """What an item of one column is: `shape` and `dtype`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"shape {self.shape} and dtype {self.dtype}"


class Layout:
    """The columns of a store: what fits, and what does not and why."""

    def __init__(self, leaves: Mapping[str, Leaf]) -> None:
        self.leaves = dict(leaves)

    def pack(self, rows: Sequence[Mapping[str, object]]) -> dict[str, NDArray[Any]]:
        """The columns of some rows.

        Args:
            rows: flat trees.

        Returns:
            For each leaf an array ``[len(rows), *shape]`` of its dtype; it may share memory with a row.

        Raises:
            DataError: when a row lacks a key, has another one, or a value of another shape or dtype.
        """
        for row in rows:
            if row.keys() != self.leaves.keys():
                raise self._other_keys(row)
        return {path: self._column(path, leaf, [row[path] for row in rows]) for path, leaf in self.leaves.items()}

    def _column(self, path: str, leaf: Leaf, values: list[object]) -> NDArray[Any]:
        if len(values) > 1:
            try:  # all at once, if numpy can see them as one array
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
                raise DataError(path, f"shape {array.shape} and dtype {array.dtype}, where the store holds {leaf}")
            out[row] = _fit(path, array, leaf)
        return out

    def _other_keys(self, row: Mapping[str, object]) -> DataError:
        missing, unknown = self.leaves.keys() - row.keys(), row.keys() - self.leaves.keys()
        key = min(missing or unknown)
        problem = "is missing" if missing else "is not a key of this store"
        return DataError(key, f"{problem}; its keys are {', '.join(sorted(self.leaves))}")


def as_leaf(path: str, value: object) -> NDArray[Any]:
    """A value as the array that it is, in little-endian byte order.

    Raises:
        DataError: when it is not an array of numbers or booleans.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as exc:
        raise DataError(path, f"not an array: {exc!s:.200}") from exc
    if array.dtype.str in DTYPES:
        return array
    little = array.dtype.newbyteorder("<")
    if little.str not in DTYPES:
        raise DataError(path, f"dtype {array.dtype} ({type(value).__name__}), where numbers and booleans can be stored")
    return array.astype(little)


def flag(path: str, value: object) -> bool:
    """A value that says yes or no.

    Raises:
        DataError: when it is neither a boolean nor 0 or 1.
    """
    if type(value) is bool:
        return value
    array = as_leaf(path, value)
    if array.shape != () or array not in (0, 1):
        raise DataError(path, f"shape {array.shape} and dtype {array.dtype}, not a boolean or 0 or 1")
    return bool(array)


def space_leaves(prefix: str, space: object) -> dict[str, Leaf]:
    """The leaves of what a space describes: Gymnasium's (Dict or any with a shape and a dtype) or ours.

    Raises:
        ConfigError: for a space whose elements are not arrays of one shape.
    """
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {path: leaf for key, part in parts.items() for path, leaf in space_leaves(f"{prefix}/{key}", part).items()}
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise ConfigError(f"a space of type {type(space).__name__} has no fixed shape: use Dict, Box or Discrete", key=prefix)
    return {prefix: _leaf(prefix, shape, dtype)}


def copy_payload(value: object) -> Any:
    """Return a payload with its arrays copied.

    Raises:
        DataError: If a part of it cannot travel. It names the path.
    """
    return map_tree(_copy_leaf, value, _data_error, STORED_DEPTH)


def _data_error(path: Path, problem: str) -> DataError:
    return DataError("/".join(map(str, keys_of(path))), problem)


def _copy_leaf(value: Any, path: Path) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype not in _DTYPES or isinstance(value, np.ma.MaskedArray):
            raise _data_error(path, f"a {type(value).__name__} of dtype {value.dtype} cannot travel")
        if value.ndim > MAX_DIMENSIONS:
            raise _data_error(path, f"an array of more than {MAX_DIMENSIONS} dimensions cannot travel")
        return value.copy()
    if isinstance(value, str) and not is_text(value):
        raise _data_error(path, "a string that is not UTF-8 cannot travel")
    if isinstance(value, int) and not _INT_MIN <= value <= _INT_MAX:
        raise _data_error(path, "an integer of more than 64 bits cannot travel")
    if not isinstance(value, _PLAIN):
        raise _data_error(path, f"a value of type {type(value).__name__} cannot travel")
    return value


def zeros(leaf: Leaf) -> NDArray[Any]:
    """A whole column in memory.

    Raises:
        ConfigError: when that is more memory than there is.
    """
    try:
        return np.zeros(leaf.shape, leaf.dtype)
    except (MemoryError, ValueError) as exc:
        size = leaf.dtype.itemsize * prod(leaf.shape)
        raise ConfigError(f"{size} bytes do not fit in memory: a smaller capacity, or path= for disk", key="capacity") from exc


def _leaf(name: str, shape: object, dtype: object) -> Leaf:
    try:
        found = Leaf(tuple(int(n) for n in shape), np.dtype(dtype))  # type: ignore[attr-defined, call-overload]
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{name}: shape {shape!r:.60} and dtype {dtype!r:.60} are no column ({exc})", key=name) from exc
    if found.dtype.str not in DTYPES or any(n < 0 for n in found.shape):
        raise ConfigError(f"{name}: {found} are no column: numbers and booleans can be stored", key=name)
    return found


def _fit(path: str, array: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """The array in the column's dtype: rounded into floats, and into integers and booleans only if no value changes."""
    target = leaf.dtype
    if array.dtype == target:
        return array
    if array.dtype.kind == "f" and target.kind in "iu":
        raise DataError(path, f"shape {array.shape} and dtype {array.dtype}, where the store holds {leaf}")
    with np.errstate(over="ignore"):
        fitted = array.astype(target)
    same = np.isfinite(fitted) == np.isfinite(array) if target.kind == "f" else fitted == array
    if not np.all(same):
        raise DataError(path, f"dtype {array.dtype} with a value that {target} cannot hold")
    return fitted
