"""What has been accepted and is not yet disposed of. An ack leaves after the ledger has it.

The interface is asynchronous from the first day, so that a durable ledger (its own thread, group commits) can stand where
the one in memory stands now: `append` never blocks, `committed` says later what is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rl4sys_zmq.wire.messages import Frame

__all__ = ["Entry", "Ledger", "MemoryLedger"]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The fresh segments of one `Submit`.

    Attributes:
        client_id: whose learner they feed.
        actor_id: whose stream they belong to.
        incarnation: which life of that actor.
        first_seq: the first fresh sequence number.
        end_seq: one past the last.
        steps: how many decisions they hold.
        skip: how many segments of the message came before (duplicates).
        frames: the message as it came.
    """

    client_id: str
    actor_id: str
    incarnation: int
    first_seq: int
    end_seq: int
    steps: int
    skip: int
    frames: tuple[Frame, ...]


class Ledger(Protocol):
    """Keeps accepted segments."""

    def append(self, batch: Sequence[Entry]) -> None:
        """Takes entries; never blocks."""

    def committed(self) -> list[Entry]:
        """The entries that have become safe since the last call, in the order of their append."""


class MemoryLedger:
    """Safe as long as the learner lives: everything is committed at once."""

    def __init__(self) -> None:
        self._fresh: list[Entry] = []

    def append(self, batch: Sequence[Entry]) -> None:
        """Takes entries."""
        self._fresh.extend(batch)

    def committed(self) -> list[Entry]:
        """All entries appended since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh
