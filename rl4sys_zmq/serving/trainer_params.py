"""Conversion of a network's parameters, of any framework, to nested dicts, lists and tuples of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl4sys_zmq.errors import PayloadError
from rl4sys_zmq.rpc.server import MAX_ANSWER_FRAME_BYTES
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.arrays import BFLOAT16_BITS, array_from, read_bfloat16
from rl4sys_zmq.values.trees import Path, Tree, keys_of, map_tree

_PLAIN = (type(None), bool, int, float, str, bytes)


def params_as_arrays(params: object) -> Tree:
    """Copy parameters to numpy arrays, without an import of a framework. Mappings become dicts, named tuples become tuples."""
    return map_tree(_convert, params, _error)


def copy_params(params: Tree) -> Any:
    """Copy parameters as a trainer client receives them: bfloat16 as `ml_dtypes.bfloat16` if it is imported, else float32."""
    return map_tree(_copy, params, _error)


def _copy(value: Any, _path: Path) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return read_bfloat16(value.copy()) if value.dtype == BFLOAT16_BITS else value.copy()


def _error(path: Path, problem: str) -> PayloadError:
    return PayloadError("params" + "".join([f"[{key!r}]" for key in keys_of(path)]), problem)


def _convert(value: Any, path: Path) -> Tree:
    if type(value) in _PLAIN:
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        array = array_from(value)
    except (TypeError, ValueError, RuntimeError) as exc:
        raise _error(path, f"numpy cannot convert a {kind} to an array ({exc}); cast it, to float32 for instance") from exc
    if array is None:
        raise _error(path, f"a value of type {kind} cannot be sent")
    if array.dtype != BFLOAT16_BITS and array.dtype.newbyteorder("<").str not in DTYPES:
        raise _error(path, f"an array of dtype {array.dtype} cannot be sent; cast it, to float32 for instance")
    if array.nbytes > MAX_ANSWER_FRAME_BYTES:
        problem = f"an array of {array.nbytes} bytes; the limit is {MAX_ANSWER_FRAME_BYTES}. Publish it in parts"
        raise _error(path, problem)
    return value if isinstance(value, np.generic) and array.dtype != BFLOAT16_BITS else array.copy()
