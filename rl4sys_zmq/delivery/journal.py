"""What has been accepted and is still needed. An ack leaves after the journal has it.

A journal is asynchronous: no call waits for a disk, and `committed` says later what is safe. `MemoryJournal` lives as long as
the process, `DiskJournal` (its own module) is a file.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl4sys_zmq.wire.messages import Frame

__all__ = [
    "ClientRow",
    "JournalEntry",
    "Journal",
    "JournalState",
    "MemoryJournal",
    "JournalPage",
    "Restored",
    "StreamRow",
    "new_journal_id",
]


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """The fresh segments of one `Submit`.

    Attributes:
        client_id: whose learner they feed.
        actor_id: whose stream they belong to; and
        origin: the incarnation that began to number its segments.
        first_seq: the first fresh sequence number.
        end_seq: one past the last.
        steps: how many decisions they hold.
        skip: how many segments of the message came before (duplicates).
        refused: how many of the fresh segments were refused as items.
        frames: the message as it came.
    """

    client_id: str
    actor_id: str
    origin: int
    first_seq: int
    end_seq: int
    steps: int
    skip: int
    refused: int
    frames: tuple[Frame, ...]

    @property
    def accepted(self) -> int:
        """How many of the fresh segments were not refused."""
        return self.end_seq - self.first_seq - self.refused

    @property
    def nbytes(self) -> int:
        """The length of all frames."""
        return sum(f.nbytes if isinstance(f, memoryview) else len(f) for f in self.frames)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """What a journal remembers of a stream.

    Attributes:
        client_id: whose learner it feeds.
        actor_id: its actor; and
        origin: the incarnation that began to number its segments.
        incarnation: the latest incarnation that wrote to it.
        first_seq: the segments below it were never counted here.
        received: the next sequence number.
        accepted_steps: the steps of all its entries so far.
        refused: how many of its segments were refused as items.
        submits: whether its actor sends segments at all.
        spooled: whether it goes on across the actor's starts.
        owner: the user that it belongs to; empty without keys.
    """

    client_id: str
    actor_id: str
    origin: int
    incarnation: int
    first_seq: int
    received: int
    accepted_steps: int
    refused: int
    submits: bool
    spooled: bool
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """What a journal remembers of a client.

    Attributes:
        client_id: its name.
        generation: the latest life of its learner thread.
        settings: JSON values, whatever its owner needs to make it again.
        accepted: segments accepted in all streams that there ever were, those of a GAP included.
        refused: segments refused as items.
        gap: how many of `accepted` were in a GAP.
        expired: the latest origin of the streams that were dropped: an actor of a later one has not been forgotten.
    """

    client_id: str
    generation: int
    settings: dict[str, Any]
    accepted: int
    refused: int
    gap: int
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """What a journal knew when it was opened."""

    journal_id: int
    clients: tuple[ClientRow, ...]
    streams: tuple[StreamRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JournalPage:
    """The answer to `Journal.read`.

    Attributes:
        client_id: whose entries.
        token: what `read` was called with.
        entries: in the order in which they were committed.
        last_row: where the next page begins (`after_row`).
        more: whether the client has entries beyond.
        damaged: how many entries were left out of this page because their bytes are not those that were written.
    """

    client_id: str
    token: int
    entries: tuple[JournalEntry, ...]
    last_row: int
    more: bool
    damaged: int


@dataclass(frozen=True, slots=True)
class JournalState:
    """How a journal fares.

    Attributes:
        durable: whether it survives the process.
        used_bytes: what the entries take that are not trimmed.
        max_bytes: what they may take; 0 for no limit.
        queued_bytes: the entries that were appended and are not committed.
        queued_items: all operations that are not done.
        error: why nothing is committed at the moment, in one line; empty when all is well.
        commits: how many transactions were committed.
        failures: how many attempts failed, those included that found the journal full.
        commit_s: how long the last transaction took, in seconds.
        damaged: how many damaged entries have been met, and damaged rows of clients and streams were made good.
        lost: how many acknowledged segments it did not know when it was opened, which the operator has accepted.
        rescued: how often its file was gone or another one, and was made anew from the one that was open.
    """

    durable: bool
    used_bytes: int
    max_bytes: int
    queued_bytes: int
    queued_items: int
    error: str
    commits: int
    failures: int
    commit_s: float
    damaged: int
    lost: int = 0
    rescued: int = 0


class Journal(Protocol):
    """Keeps accepted segments. All calls but `stop` and `join` come from one thread, and none of them waits for a disk.

    Operations take effect in the order of their calls.

    Attributes:
        journal_id: the lineage: marks of another one mean nothing here. Not 0, below 2^63.
        durable: whether there is anything to read again after a restart.
    """

    journal_id: int
    durable: bool

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Takes entries; they come out of `committed` when they are safe.

        Each moves its stream's `received`, `accepted_steps` and `refused`, and its client's totals.
        """

    def committed(self) -> list[JournalEntry | JournalPage]:
        """What has become safe, or has been read, since the last call, in order."""

    def put_client(self, row: ClientRow) -> None:
        """A new client, or the generation and settings of a known one, whose totals stay as they are."""

    def put_stream(self, row: StreamRow) -> None:
        """A new stream, or what a HELLO changes in a known one: incarnation, `first_seq` and `received`, which only grow."""

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Forgets a stream and its entries, but, if it `expires`, for its origin in its client's `expired`. The totals stay."""

    def drop_client(self, client_id: str) -> None:
        """Forgets a client: its row, its streams and its entries."""

    def drop_entries(self, client_id: str) -> None:
        """Gives up all entries of a client that were appended before; its streams and totals stay."""

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Lets the streams of an actor speak for it no more: their incarnation is 0 then, and they have no owner and no spool."""

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Counts segments that were acknowledged by a lineage that is gone; `stream` is put with it, both or neither."""

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Gives up the entries whose `end_seq` is not above the mark of their (actor_id, origin)."""

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Ask for a `JournalPage` of a client's entries beyond `after_row`: at most `max_bytes`, but at least one entry."""

    def state(self) -> JournalState:
        """How it fares."""

    def queued(self, client_id: str) -> int:
        """Return how many operations of a client are not done. Once there are none, `committed` gives all of its entries."""

    def stop(self) -> None:
        """Makes the journal commit what it can, once, and end."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; False when it has not come after `timeout_s` seconds."""


def new_journal_id() -> int:
    """A random lineage, in 1 .. 2^63 - 1."""
    return 1 + secrets.randbelow((1 << 63) - 1)


class MemoryJournal:
    """Safe as long as the process lives: everything is committed at once, and nothing can be read again."""

    durable = False

    def __init__(self) -> None:
        self.journal_id = new_journal_id()
        self._fresh: list[JournalEntry | JournalPage] = []
        self._commits = 0

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Takes entries."""
        self._fresh.extend(batch)
        self._commits += 1

    def committed(self) -> list[JournalEntry | JournalPage]:
        """All entries appended, and the pages asked for, since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def put_client(self, row: ClientRow) -> None:
        """Nothing: there is no restart to remember it for."""

    def put_stream(self, row: StreamRow) -> None:
        """Nothing, as `put_client`."""

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Nothing: entries are not kept."""

    def drop_client(self, client_id: str) -> None:
        """Nothing, as `put_client`."""

    def drop_entries(self, client_id: str) -> None:
        """Nothing: entries are not kept."""

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Nothing, as `put_client`."""

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Nothing, as `put_client`."""

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Nothing: entries are not kept."""

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Answers with an empty page."""
        self._fresh.append(JournalPage(client_id, token, (), after_row, more=False, damaged=0))

    def state(self) -> JournalState:
        """Always well."""
        return JournalState(
            durable=False,
            used_bytes=0,
            max_bytes=0,
            queued_bytes=0,
            queued_items=0,
            error="",
            commits=self._commits,
            failures=0,
            commit_s=0.0,
            damaged=0,
        )

    def queued(self, client_id: str) -> int:
        """Return 0: everything is done at once."""
        return 0

    def stop(self) -> None:
        """Nothing."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Nothing to wait for."""
        return True
