"""Conversion of a network's parameters, of any framework, to nested dicts, lists and tuples of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl4sys_zmq.errors import PayloadError
from rl4sys_zmq.rpc.server import MAX_FRAME_BYTES
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.trees import Path, Tree, keys_of, map_tree

__all__ = ["params_as_arrays"]

_PLAIN = (type(None), bool, int, float, str, bytes)


def params_as_arrays(params: object) -> Tree:
    """Copy a network's parameters to numpy arrays. The trainer can then change its own parameters.

    The structure stays the same, except that mappings become dicts and named tuples become tuples. No framework is imported.

    Args:
        params: PyTorch tensors, JAX arrays, numpy arrays, or other objects that numpy converts to arrays of numbers; alone, or
            nested in mappings with string keys, lists and tuples.

    Raises:
        PayloadError: If a part cannot be sent. The message has the path of the part.
    """
    return map_tree(_convert, params, _error)


def _error(path: Path, problem: str) -> PayloadError:
    return PayloadError("params" + "".join([f"[{key!r}]" for key in keys_of(path)]), problem)


def _convert(value: Any, path: Path) -> Tree:
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    return _array(value, path)


def _array(value: Any, path: Path) -> np.ndarray[Any, Any]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu().numpy()
        elif not hasattr(value, "__array__"):
            raise _error(path, f"a value of type {kind} cannot be sent")
        array = np.array(value)  # a copy: the trainer continues to write to its own
    except (TypeError, ValueError, RuntimeError) as exc:
        if isinstance(exc, PayloadError):
            raise
        raise _error(path, f"numpy cannot convert a {kind} to an array ({exc}); cast it, to float32 for instance") from exc
    if array.dtype.newbyteorder("<").str not in DTYPES:
        raise _error(path, f"an array of dtype {array.dtype} cannot be sent; cast it, to float32 for instance")
    if array.nbytes > MAX_FRAME_BYTES:
        raise _error(path, f"an array of {array.nbytes} bytes; the limit is {MAX_FRAME_BYTES}")
    return array
