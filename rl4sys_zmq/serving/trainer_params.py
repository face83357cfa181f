"""Conversion of a network's parameters, of any framework, to a tree of numpy arrays."""

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
    """Return parameters as a tree of new arrays, so that the trainer can continue to write to its own.

    It accepts PyTorch tensors, JAX arrays, numpy arrays, and anything else that numpy converts to an array of numbers. No
    framework is imported. Mappings become dicts, named tuples become tuples.

    Args:
        params: Nested mappings (with string keys), lists and tuples of these; or one array.

    Raises:
        PayloadError: If a part cannot be sent. It names the path.
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
