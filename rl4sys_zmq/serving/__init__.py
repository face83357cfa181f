"""Servers and clients for those who bring their own loop, and the data stores between them.

- `DataStoreBase`, the contract of a data store, and three that keep it: `QueuedDataStore`, `ReplayBuffer`, `TrajectoryBuffer`.
  What they need beside them is in `rl4sys_zmq.serving.data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.serving.data import DataStoreBase, QueuedDataStore, ReplayBuffer, TrajectoryBuffer

__all__ = ["DataStoreBase", "QueuedDataStore", "ReplayBuffer", "TrajectoryBuffer"]

__getattr__ = load_late(
    __name__,
    {"data": ("DataStoreBase", "QueuedDataStore", "ReplayBuffer", "TrajectoryBuffer")},
)
