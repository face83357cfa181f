"""A network's parameters, of whatever framework, as a tree of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl4sys_zmq.calls.server import MAX_FRAME_BYTES
from rl4sys_zmq.errors import PayloadError
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.wire.trees import Tree
from rl4sys_zmq.wire.values import MAX_DEPTH

__all__ = ["copy_arrays", "params_as_arrays"]

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
    return _convert(params, "params", 0)


def copy_arrays(tree: Tree) -> Tree:
    """The same tree with arrays that may be written to."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, dict):
        return {key: copy_arrays(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(copy_arrays(value) for value in tree)
    return tree


def _convert(value: Any, path: str, depth: int) -> Tree:
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    if isinstance(value, (Mapping, list, tuple)):
        if depth >= MAX_DEPTH:
            raise PayloadError(path, f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            wrong = next((key for key in value if not isinstance(key, str)), None)
            if wrong is not None:
                raise PayloadError(path, f"the key {wrong!r:.60} is no string")
            return {str(key): _convert(held, f"{path}[{key!r}]", depth + 1) for key, held in value.items()}
        held = [_convert(held, f"{path}[{index}]", depth + 1) for index, held in enumerate(value)]
        return tuple(held) if isinstance(value, tuple) else held
    return _array(value, path)


def _array(value: Any, path: str) -> np.ndarray[Any, Any]:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu().numpy()
        elif not hasattr(value, "__array__"):
            raise PayloadError(path, f"a value of type {kind} cannot travel")
        array = np.array(value)  # a copy: the trainer goes on with its own
    except (TypeError, ValueError, RuntimeError) as exc:
        if isinstance(exc, PayloadError):
            raise
        raise PayloadError(path, f"a {kind} that numpy makes no array of ({exc}); cast it, to float32 for instance") from exc
    if array.dtype.newbyteorder("<").str not in DTYPES:
        raise PayloadError(path, f"an array of dtype {array.dtype} cannot travel; cast it, to float32 for instance")
    if array.nbytes > MAX_FRAME_BYTES:
        raise PayloadError(path, f"an array of {array.nbytes} bytes; the limit is {MAX_FRAME_BYTES}")
    return array
