"""The transfer of a data store's items to a `TrainerServer`, and the result of an update."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rl4sys_zmq.errors import RL4SysError, StoreFileError
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_items import payload_bytes

MESSAGE_BYTES = 4 << 20
"""Approximate largest size of a message. More items are sent in several messages."""
MESSAGE_ITEMS = 4096
FIRST_ITEMS = 64
"""Largest number of items in the first message from a data store."""


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update. As a condition it is true if the update succeeded.

    Attributes:
        items: Number of new items that the server accepted.
        acked: Dict from the name of each data store to the number of the last item that the server has, or -1. After a failed
            update it lacks the stores that were not updated completely.
        dropped_at_source: Number of items that the full data stores dropped before they were sent.
        error: Exception that ended the update, or the first that concerned single items. None if the update succeeded.
    """

    items: int = 0
    acked: dict[str, int] = field(default_factory=dict)
    dropped_at_source: int = 0
    error: RL4SysError | None = None

    def __bool__(self) -> bool:
        return self.error is None


class StoreUploadState:
    """The transfer of one data store's items to a `TrainerServer`.

    Attributes:
        lock: Held while items are sent.
        known: Largest item number that the server has acknowledged, or -1.
        items: Number of items to read for the next message. 0 before the first.
    """

    def __init__(self, store: DataStoreBase) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.known = -1
        self.items = 0

    def latest(self) -> int:
        """Return the number of the store's newest item."""
        with _as_store_error(self.store):
            return self.store.latest_data_id()

    def read_after(self, from_id: int) -> tuple[int, list[Any]]:
        """Read the items for one message."""
        with _as_store_error(self.store):
            if not self.items:
                _, one = self.store.read_after(from_id, 1)
                self.items = max(1, min(FIRST_ITEMS, MESSAGE_BYTES // (1 + payload_bytes(one))))
            return self.store.read_after(from_id, self.items)

    def cut(self, batch: list[Any]) -> list[Any]:
        """Return the first items of the batch that fit in one message, and set `items`."""
        size = 0
        for count, item in enumerate(batch):
            size += payload_bytes(item)
            if count and size > MESSAGE_BYTES:
                self.items = count
                return batch[:count]
        self.items = min(MESSAGE_ITEMS, 2 * self.items)
        return batch


@contextlib.contextmanager
def _as_store_error(store: DataStoreBase) -> Iterator[None]:
    """Convert exceptions of a data store, other than this library's, to `StoreFileError`."""
    try:
        yield
    except RL4SysError:
        raise
    except Exception as exc:
        raise StoreFileError(type(store).__qualname__, f"reading it failed: {type(exc).__name__}: {exc}") from exc
