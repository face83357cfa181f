"""A network's parameters, of whatever framework, as a tree of numpy arrays."""

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
    """Parameters as a tree of arrays of its own: the trainer may go on writing into its own.

    Tensors of PyTorch, arrays of JAX, numpy's, and anything else that numpy makes an array of numbers of, by duck typing: no
    framework is imported. Mappings become dicts, named tuples tuples.

    Args:
        params: nested mappings (with string keys), lists and tuples of these; or one array.

    Raises:
        PayloadError: for what cannot travel, with its path.
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
            raise _error(path, f"a value of type {kind} cannot travel")
        array = np.array(value)  # a copy: the trainer goes on with its own
    except (TypeError, ValueError, RuntimeError) as exc:
        if isinstance(exc, PayloadError):
            raise
        raise _error(path, f"a {kind} that numpy makes no array of ({exc}); cast it, to float32 for instance") from exc
    if array.dtype.newbyteorder("<").str not in DTYPES:
        raise _error(path, f"an array of dtype {array.dtype} cannot travel; cast it, to float32 for instance")
    if array.nbytes > MAX_FRAME_BYTES:
        raise _error(path, f"an array of {array.nbytes} bytes; the limit is {MAX_FRAME_BYTES}")
    return array
