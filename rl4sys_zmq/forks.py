"""Files that a forked child gives up: their locks belong to the parent, and end with it although the child still runs."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["LockHolder", "abandon_in_child"]


class LockHolder(Protocol):
    """An object that holds the lock of a file."""

    def abandon(self) -> None:
        """Close the lock's descriptor in a forked child. The parent keeps the lock."""


_holders: weakref.WeakSet[LockHolder] = weakref.WeakSet()


def abandon_in_child(holder: LockHolder) -> None:
    """Call `holder.abandon` in each child that this process forks from now on, as long as the object exists."""
    _holders.add(holder)


def _abandon_all() -> None:
    for holder in list(_holders):
        holder.abandon()


os.register_at_fork(after_in_child=_abandon_all)
