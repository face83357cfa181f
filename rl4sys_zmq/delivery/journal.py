"""The journal: the record of accepted segments that are still needed.

The learner acknowledges a segment as durable after the journal has committed it. A journal is asynchronous: no call waits for a
disk, and `committed` returns later what is safe. `MemoryJournal` lives as long as the process. `DiskJournal`, in
`delivery.disk_journal`, is a file.
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
    "JournalHealth",
    "MemoryJournal",
    "JournalPage",
    "Restored",
    "StreamRow",
    "new_journal_id",
]


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """The new segments of one `Submit`.

    Attributes:
        client_id: The client.
        actor_id: The actor of the stream.
        origin: The incarnation (the number of a start of the actor) that started the stream's sequence numbers.
        first_seq: The first new sequence number.
        end_seq: One past the last.
        steps: The number of steps in the new segments, without refused ones.
        skip: How many segments at the start of the message are duplicates.
        refused: How many of the new segments were refused as items.
        frames: The message as received.
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
        """The number of new segments that were not refused."""
        return self.end_seq - self.first_seq - self.refused

    @property
    def nbytes(self) -> int:
        """The length of all frames in bytes."""
        return sum(f.nbytes if isinstance(f, memoryview) else len(f) for f in self.frames)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The journal's record of one stream.

    Attributes:
        client_id: The client.
        actor_id: The actor.
        origin: The incarnation that started the sequence numbers.
        incarnation: The latest incarnation that sent to it; 0 for a retired stream.
        first_seq: The segments below this number were never counted here.
        received: The next sequence number.
        accepted_steps: The steps of all its entries so far.
        refused: How many of its segments were refused as items.
        submits: True if its actor sends segments.
        spooled: True if the stream continues across starts of the actor.
        owner: The user that the stream belongs to; empty without keys.
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
    """The journal's record of one client.

    Attributes:
        client_id: The client.
        generation: The number of its latest learner thread.
        settings: The JSON values that the learner needs to create the client again.
        accepted: How many segments were accepted, in all streams that ever existed, with those of a GAP.
        refused: How many segments were refused as items.
        gap: How many of `accepted` were in a GAP.
        expired: The latest origin among the streams that were dropped. Streams with a later origin were not dropped.
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
    """The content of a journal when it was opened."""

    journal_id: int
    clients: tuple[ClientRow, ...]
    streams: tuple[StreamRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JournalPage:
    """The result of `Journal.read`.

    Attributes:
        client_id: The client.
        token: The token passed to `read`.
        entries: The entries, in the order in which they were committed.
        last_row: The `after_row` for the next page.
        more: True if the client has further entries.
        damaged: How many entries were left out of this page because their checksums do not match.
    """

    client_id: str
    token: int
    entries: tuple[JournalEntry, ...]
    last_row: int
    more: bool
    damaged: int


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """A report of the condition of a journal: its size, its queue, its commits and its errors.

    Attributes:
        durable: True if the journal survives the process.
        used_bytes: The size of the entries that are not trimmed.
        max_bytes: The limit on `used_bytes`; 0 for no limit.
        queued_bytes: The size of the entries that are appended and not committed.
        queued_items: The number of operations that are not done.
        error: Why the journal commits nothing at the moment, in one line; empty if there is no problem.
        commits: How many transactions were committed.
        failures: How many attempts failed, with those that found the journal full.
        commit_s: How long the last transaction took, in seconds.
        damaged: How many damaged entries were found, plus the damaged rows of clients and streams that were repaired.
        lost: How many acknowledged segments were missing when it was opened, a loss that the operator accepted.
        rescued: How often its file had been deleted or replaced and was written again from the open file.
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
    """The interface of a journal.

    One thread makes all calls but `stop` and `join`, and none of its calls waits for a disk. Operations take effect in the order
    of their calls.

    Attributes:
        journal_id: The id of this journal's lineage (its numbering of segments), in 1 .. 2^63 - 1. A new journal has another. A
            mark, which is a sequence number, has a meaning only with the journal_id that it was recorded with.
        durable: True if the journal survives a restart.
    """

    journal_id: int
    durable: bool

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Append entries. `committed` returns them when they are safe.

        Each entry advances `received`, `accepted_steps` and `refused` of its stream, and the totals of its client.
        """

    def committed(self) -> list[JournalEntry | JournalPage]:
        """Return the entries committed and the pages read since the last call, in order."""

    def put_client(self, row: ClientRow) -> None:
        """Add a client, or change the generation and settings of an existing one. Its totals stay the same."""

    def put_stream(self, row: StreamRow) -> None:
        """Add a stream, or change an existing one after a HELLO. Its incarnation and marks never decrease."""

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Remove a stream and its entries. The totals stay. With `expires`, `ClientRow.expired` records its origin."""

    def drop_client(self, client_id: str) -> None:
        """Remove a client: its row, its streams and its entries."""

    def drop_entries(self, client_id: str) -> None:
        """Remove all entries of a client that were appended before. Its streams and totals stay the same."""

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Retire the streams of an actor: set their incarnation to 0, and clear `owner` and `spooled`."""

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Count segments of a GAP as accepted, and add or update `stream` in the same transaction.

        An earlier journal of the learner acknowledged these segments, and this one has no record of them.
        """

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Remove the entries whose `end_seq` is at or below the mark of their (actor_id, origin)."""

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Request a `JournalPage` of a client's entries after `after_row`: at most `max_bytes`, but at least one entry."""

    def state(self) -> JournalHealth:
        """Return the state of the journal."""

    def queued(self, client_id: str) -> int:
        """Return how many operations of a client are not done. At 0, `committed` returns all of its entries."""

    def stop(self) -> None:
        """Make the journal commit what it can, in one attempt, and end."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the journal to end. Return False if it has not ended after `timeout_s` seconds."""


def new_journal_id() -> int:
    """Return a random id for a new journal, in 1 .. 2^63 - 1."""
    return 1 + secrets.randbelow((1 << 63) - 1)


class MemoryJournal:
    """A journal in memory. It commits every entry at once, keeps none, and ends with the process."""

    durable = False

    def __init__(self) -> None:
        self.journal_id = new_journal_id()
        self._fresh: list[JournalEntry | JournalPage] = []
        self._commits = 0

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Append entries."""
        self._fresh.extend(batch)
        self._commits += 1

    def committed(self) -> list[JournalEntry | JournalPage]:
        """Return the entries appended and the pages requested since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def put_client(self, row: ClientRow) -> None:
        """Do nothing: this journal does not survive a restart."""

    def put_stream(self, row: StreamRow) -> None:
        """Do nothing, as in `put_client`."""

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Do nothing: this journal keeps no entries."""

    def drop_client(self, client_id: str) -> None:
        """Do nothing, as in `put_client`."""

    def drop_entries(self, client_id: str) -> None:
        """Do nothing: this journal keeps no entries."""

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Do nothing, as in `put_client`."""

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Do nothing, as in `put_client`."""

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Do nothing: this journal keeps no entries."""

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Return an empty page from the next `committed`."""
        self._fresh.append(JournalPage(client_id, token, (), after_row, more=False, damaged=0))

    def state(self) -> JournalHealth:
        """Return the state of the journal, which never fails."""
        return JournalHealth(
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
        """Return 0: every operation is done at once."""
        return 0

    def stop(self) -> None:
        """Do nothing: this journal has no thread and no file."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Return True: there is no thread to wait for."""
        return True
