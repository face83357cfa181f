"""Conversion of ``N`` items of a data store to the payload of one message, and back.

The payload is ``{"count": N, "columns": columns}``. Arrays of the same shape and dtype, or numpy scalars of the same dtype,
become one array ``[N, *shape]``. Dicts with the same keys become a dict of columns. Anything else becomes a list of the ``N``
values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.errors import CallRefusalReason
from rl4sys_zmq.rpc import CallRefusedByCallback
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import MAX_ITEMS, Tree, flatten, unflatten_each


def pack_items(items: Sequence[Any]) -> dict[str, Tree]:
    return {"count": len(items), "columns": _column(items)}


def unpack_items(payload: Tree) -> list[Any]:
    """Split a payload of `pack_items`, also from an untrusted peer. The arrays of the items are read-only views."""
    count, columns = (payload.get("count"), payload.get("columns")) if type(payload) is dict else (None, None)
    leaves, structure = flatten(columns, tuples=False)
    if type(count) is not int or not 0 <= count <= MAX_ITEMS or not all(_has_rows(leaf, count) for leaf in leaves):
        raise CallRefusedByCallback(CallRefusalReason.INVALID, "the columns do not have as many rows as there are items")
    return unflatten_each(structure, leaves, count)


def payload_bytes(value: object) -> int:
    """Return the approximate size of a payload: that of arrays, strings and bytes, plus 16 for each value."""
    if isinstance(value, (np.ndarray, np.generic)):
        return 16 + value.nbytes
    if isinstance(value, (str, bytes)):
        return 16 + len(value)
    if isinstance(value, dict):
        return 16 + sum(payload_bytes(held) for held in value.values())
    if isinstance(value, (list, tuple)):
        return 16 + sum(payload_bytes(held) for held in value)
    return 16


def _column(values: Sequence[Any]) -> Tree:
    first: Any = values[0] if values else None
    kind = type(first)
    if isinstance(first, np.generic) and all(type(v) is kind for v in values):
        return np.array(values, first.dtype)
    if (
        kind is np.ndarray
        and 0 < first.ndim < MAX_DIMENSIONS  # the column has one dimension more
        and all(type(v) is kind and v.shape == first.shape and v.dtype == first.dtype for v in values)
    ):
        return np.stack(values)
    if kind is dict and all(type(v) is kind and v.keys() == first.keys() for v in values):
        return {key: _column([v[key] for v in values]) for key in first}
    return list(values)


def _has_rows(column: Tree, count: int) -> bool:
    if type(column) is list:
        return len(column) == count
    return isinstance(column, np.ndarray) and column.ndim > 0 and len(column) == count
