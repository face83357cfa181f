"""The journal: the learner's record of accepted segments that are still needed.

After a crash, or a return to an older checkpoint, the learner trains on them again. A journal is asynchronous: no call waits
for a disk. `DiskJournal`, in `delivery.disk_journal`, writes a file.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl4sys_zmq.wire.messages import Frame


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """The journal's record of the new segments in one `Submit` message."""

    client_id: str
    actor_id: str
    origin: int
    first_seq: int  # sequence number of the first new segment
    end_seq: int  # one past the sequence number of the last segment
    steps: int  # number of steps in the new segments, without refused segments
    skip: int  # number of segments at the start of the message that are duplicates
    refused: int  # number of new segments that were refused because they are malformed
    frames: tuple[Frame, ...]  # frames of the message, as received

    @property
    def accepted(self) -> int:
        """The number of new segments that were not refused."""
        return self.end_seq - self.first_seq - self.refused

    @property
    def nbytes(self) -> int:
        """The total length of all frames, in bytes."""
        return sum(f.nbytes if isinstance(f, memoryview) else len(f) for f in self.frames)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The journal's record of one stream."""

    client_id: str
    actor_id: str
    origin: int
    incarnation: int  # actor's latest start on record; 0 after an operator dropped the actor
    # sequence number at which this record began. `accepted_steps` and `refused` count only segments from here on.
    first_seq: int
    received: int  # next sequence number that the learner expects
    accepted_steps: int
    refused: int
    submits: bool  # True if the actor sends segments. An actor for evaluation sends none.
    spooled: bool  # True if the actor has a spool, so that the stream continues after the actor restarts
    owner: str = ""  # user that the stream belongs to; empty if the learner uses no keys


@dataclass(frozen=True, slots=True)
class ClientRow:
    """The journal's record of one client."""

    client_id: str
    generation: int
    settings: dict[str, Any]  # the JSON values that the learner needs to create the client again
    accepted: int  # number of accepted segments in all streams that ever existed, including `gap`
    refused: int
    gap: int  # number of segments that actors have discarded as acknowledged and that this journal has no record of
    expired: int = 0  # highest origin of all streams that were discarded


@dataclass(frozen=True, slots=True)
class JournalContent:
    """The content of a journal when it was opened, without its entries."""

    journal_id: int
    clients: tuple[ClientRow, ...]
    streams: tuple[StreamRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JournalPage:
    """A part of a client's journal entries: the result of one `Journal.read`."""

    client_id: str
    token: int  # token that was passed to `read`
    entries: tuple[JournalEntry, ...]  # entries, in the order in which they were committed
    last_row: int  # value to pass as `after_row` to read the next page
    more: bool  # True if the client has further entries after this page
    damaged: int  # number of entries that are missing in this page because their checksums are wrong


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """A report of the condition of a journal."""

    durable: bool
    used_bytes: int = 0  # size of all stored entries, in bytes
    max_bytes: int = 0  # limit on `used_bytes`; 0 for no limit
    queued_bytes: int = 0  # size of the entries that are not committed so far
    queued_items: int = 0  # number of operations that are not done so far
    error: str = ""  # reason why the journal cannot commit at present, in one line; empty if there is no problem
    commits: int = 0
    failures: int = 0  # number of failed attempts to commit, those because the journal was full included
    commit_s: float = 0.0  # duration of the last transaction, in seconds
    damaged: int = 0  # number of damaged entries, plus the number of damaged rows of clients and streams that were repaired
    # number of acknowledged segments that were missing when the journal was opened and that the operator gave up
    lost: int = 0
    # number of times that the journal's file was deleted or replaced, and was written again from the open file
    rescued: int = 0


class Journal(Protocol):
    """The seam of a journal.

    One thread makes all calls except `stop` and `join`, and none of these calls waits for a disk. Operations take effect in
    the order of their calls.

    Attributes:
        journal_id: A random number that identifies this journal, from 1 to 2^63 - 1. Sequence numbers can be compared only if
            they were recorded with the same `journal_id`.
        durable: True if the journal survives a restart of the learner.
    """

    journal_id: int
    durable: bool

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Append entries. Each also advances the sequence number and the totals of its stream and of its client."""

    def committed(self) -> list[JournalEntry | JournalPage]:
        """Return the entries that were committed, and so are durable, and the pages that were read, since the last call, in
        order.
        """

    def put_client(self, row: ClientRow) -> None:
        """Add the record of a client, or change the settings and the generation of a known one. Its totals stay the same."""

    def put_stream(self, row: StreamRow) -> None:
        """Add the record of a stream, or update it after the actor opened a session. Sequence numbers never decrease."""

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Remove a stream and its entries. The totals of the client stay the same.

        With `expires`, `ClientRow.expired` is raised to `origin`, so that the learner later knows that this stream was
        discarded.
        """

    def drop_client(self, client_id: str) -> None:
        """Remove all data of a client: its record, its streams and its entries."""

    def drop_entries(self, client_id: str) -> None:
        """Remove all entries of a client that were appended before this call. Its totals and sequence numbers stay the same."""

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Release the streams of an actor that an operator dropped: set `incarnation` to 0, and clear `owner` and `spooled`.

        After that, the streams can be discarded, and any later start can use the actor's id.
        """

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Count `count` segments as accepted that an earlier journal acknowledged and that this one lacks, and put the stream."""

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Remove entries that are no longer needed, for example because a checkpoint covers their segments.

        `marks` maps the (actor_id, origin) of a stream to a sequence number. An entry goes if all of its segments are below
        it.
        """

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Request a page of a client's entries, to train on their segments again. `committed` returns the `JournalPage` later.

        Args:
            client_id: The id of the client.
            token: A number to recognize the page by.
            after_row: The row number after which the page begins: 0, or `last_row` of the page before.
            max_bytes: The largest size of the page. A page has at least one entry, whatever its size.
        """

    def state(self) -> JournalHealth:
        """Return a report of the journal's condition."""

    def queued(self, client_id: str) -> int:
        """Return the number of a client's operations that are not done. At 0, all entries of the client are committed."""

    def stop(self) -> None:
        """Make the journal end after one attempt to commit all queued operations."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the journal to end. Return False if it has not ended after `timeout_s` seconds."""


def new_journal_id() -> int:
    """Return a random id for a new journal, from 1 to 2^63 - 1."""
    return 1 + secrets.randbelow((1 << 63) - 1)


class MemoryJournal:
    """A journal for a learner without a run directory. It reports every entry as committed at once, and stores nothing."""

    durable = False

    def __init__(self) -> None:
        self.journal_id = new_journal_id()
        self._fresh: list[JournalEntry | JournalPage] = []
        self._commits = 0

    def append(self, batch: Sequence[JournalEntry]) -> None:
        self._fresh.extend(batch)
        self._commits += 1

    def committed(self) -> list[JournalEntry | JournalPage]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def put_client(self, row: ClientRow) -> None: ...

    def put_stream(self, row: StreamRow) -> None: ...

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None: ...

    def drop_client(self, client_id: str) -> None: ...

    def drop_entries(self, client_id: str) -> None: ...

    def retire_actor(self, client_id: str, actor_id: str) -> None: ...

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None: ...

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None: ...

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        # no entries are stored, so the page is empty
        self._fresh.append(JournalPage(client_id, token, (), after_row, more=False, damaged=0))

    def state(self) -> JournalHealth:
        return JournalHealth(durable=False, commits=self._commits)

    def queued(self, client_id: str) -> int:
        return 0

    def stop(self) -> None: ...

    def join(self, timeout_s: float | None = None) -> bool:
        return True
