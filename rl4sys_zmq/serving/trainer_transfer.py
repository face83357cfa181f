"""The transfers between a `TrainerServer` and its clients: items of data stores, networks, and the results of updates.

``N`` items are sent as ``{"count": N, "columns": columns}``. Arrays of the same shape and dtype, or numpy scalars of the same
dtype, become one array ``[N, *shape]``. Dicts with the same keys become a dict of columns. Other values become a list of the
``N`` values.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from rl4sys_zmq.config.options import Check, instance_of
from rl4sys_zmq.errors import CallRefusalReason, ConfigError, PayloadError, RL4SysError, StoreFileError
from rl4sys_zmq.names import MAX_NAME
from rl4sys_zmq.rpc import CallRefusedByCallback
from rl4sys_zmq.rpc.server import MAX_ANSWER_FRAME_BYTES
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.arrays import BFLOAT16_BITS, array_from, read_bfloat16
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import MAX_ITEMS, Path, Tree, flatten, keys_of, map_tree, unflatten_each

MESSAGE_BYTES = 4 << 20
"""Approximate largest size of a message. More items are sent in several messages."""
MESSAGE_ITEMS = 4096
FIRST_ITEMS = 64
"""Largest number of items in the first message from a data store."""
DATA_STORE: Check[DataStoreBase] = instance_of(DataStoreBase)  # type: ignore[type-abstract]
T = TypeVar("T")
_PLAIN = (type(None), bool, int, float, str, bytes)


def find_store(stores: Mapping[str, T], name: object) -> T:
    """Return the value for the data store with this name. Raise `ConfigError` if there is no such store."""
    if isinstance(name, str) and name in stores:
        return stores[name]
    known = ", ".join(sorted(stores)) or "none"
    raise ConfigError(f"there is no data store {name!r:.60}; registered: {known}", key=str(name)[:MAX_NAME])


def pack_items(items: Sequence[Any]) -> dict[str, Tree]:
    return {"count": len(items), "columns": _column(items)}


def unpack_items(payload: Tree) -> list[Any]:
    """Split a payload of `pack_items` into its items, with read-only arrays. The payload can come from an untrusted peer."""
    count, columns = (payload.get("count"), payload.get("columns")) if type(payload) is dict else (None, None)
    leaves, structure = flatten(columns, tuples=False)
    if type(count) is not int or not 0 <= count <= MAX_ITEMS or not all(_has_rows(leaf, count) for leaf in leaves):
        raise CallRefusedByCallback(CallRefusalReason.INVALID, "the columns do not have as many rows as there are items")
    return unflatten_each(structure, leaves, count)


def payload_bytes(value: object) -> int:
    """Return the approximate size of a payload: the bytes of arrays, strings and bytes, plus 16 for each value."""
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


def params_as_arrays(params: object) -> Tree:
    """Copy a network's parameters, of any framework, to numpy arrays. Mappings become dicts, named tuples become tuples."""
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


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update of data stores at the server. In a condition, the result is true if the update succeeded.

    Attributes:
        items: Number of new items that the server accepted.
        acked: Dict from the name of each data store to the number of the last item that the server has, or -1. After a failed
            update, the dict lacks the stores that were not updated completely.
        dropped_at_source: Number of items that the full data stores dropped before they were sent.
        error: Exception that ended the update, or the first exception about a single item. None if the update succeeded.
    """

    items: int = 0
    acked: dict[str, int] = field(default_factory=dict)
    dropped_at_source: int = 0
    error: RL4SysError | None = None

    def __bool__(self) -> bool:
        return self.error is None


class UnsentItemReader:
    """A reader of the items that one data store has to send to a `TrainerServer`, in parts that fit in a message."""

    def __init__(self, store: DataStoreBase) -> None:
        self.store = store
        self.lock = threading.Lock()  # held while items are sent
        self.known = -1  # largest item number that the server has acknowledged, or -1
        self.items = 0  # number of items to read for the next message. 0 before the first

    def latest(self) -> int:
        with _as_store_error(self.store):
            return self.store.latest_data_id()

    def next_message(self, from_id: int) -> tuple[int, list[Any]]:
        """Return the items after `from_id` that fit in one message, and the number of the first of them."""
        with _as_store_error(self.store):
            if not self.items:
                _, one = self.store.read_after(from_id, 1)
                self.items = max(1, min(FIRST_ITEMS, MESSAGE_BYTES // (1 + payload_bytes(one))))
            first, batch = self.store.read_after(from_id, self.items)
        size = 0
        for count, item in enumerate(batch):
            size += payload_bytes(item)
            if count and size > MESSAGE_BYTES:
                self.items = count
                return first, batch[:count]
        self.items = min(MESSAGE_ITEMS, 2 * self.items)
        return first, batch


@contextlib.contextmanager
def _as_store_error(store: DataStoreBase) -> Iterator[None]:
    """Convert a data store's exceptions in the ``with`` block to `StoreFileError`, except this library's own."""
    try:
        yield
    except RL4SysError:
        raise
    except Exception as exc:
        raise StoreFileError(type(store).__qualname__, f"reading it failed: {type(exc).__name__}: {exc}") from exc
