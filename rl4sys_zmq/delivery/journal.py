"""The journal: the learner's record of accepted segments that are still needed.

After a crash, or a return to an older checkpoint, the learner trains on them again. A journal is asynchronous: no call waits
for a disk. `DiskJournal`, in `delivery.disk_journal`, writes a file.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.wire import SegmentBatchReader
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
    # what the gateway has read of them; None if they are compressed, or come from the disk
    batch: SegmentBatchReader | None = None

    @property
    def accepted(self) -> int:
        """The number of new segments that were not refused."""
        return self.end_seq - self.first_seq - self.refused

    @property
    def nbytes(self) -> int:
        """The total length of all frames, in bytes."""
        return sum([f.nbytes if isinstance(f, memoryview) else len(f) for f in self.frames])

    @property
    def stored_bytes(self) -> int:
        """The size of the frames and their lengths in the journal's file, in bytes."""
        return self.nbytes + 4 + 8 * len(self.frames)


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
    """The clients and streams that a journal had when it was opened."""

    journal_id: int
    clients: tuple[ClientRow, ...]
    streams: tuple[StreamRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JournalPage:
    """Some consecutive journal entries of one client: the answer to one `Journal.read`."""

    client_id: str
    token: int  # token that was passed to `read`
    entries: tuple[JournalEntry, ...]  # entries, in the order in which they were committed
    last_row: int  # value to pass as `after_row` to read the next page
    more: bool  # True if the client has further entries after this page
    damaged: int  # number of entries that are missing in this page because their checksums are wrong


@dataclass(slots=True)
class JournalHealth:
    """The sizes, the present error and the counters of a journal at one moment."""

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


def new_journal_id() -> int:
    """Return a random id for a new journal, from 1 to 2^63 - 1."""
    return 1 + secrets.randbelow((1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class DropStream:
    """An operation that removes a stream and its entries (`Journal.drop_stream`)."""

    client_id: str
    actor_id: str
    origin: int
    expires: bool = True


@dataclass(frozen=True, slots=True)
class DropClient:
    """An operation that removes a client with its streams and entries; with `entries_only`, the entries alone."""

    client_id: str
    entries_only: bool = False  # True to keep the client, with its totals and the sequence numbers of its actors


@dataclass(frozen=True, slots=True)
class RetireActorStreams:
    """An operation that lets any later start of an actor use the actor's id (`Journal.retire_actor`)."""

    client_id: str
    actor_id: str


@dataclass(frozen=True, slots=True)
class CountSegmentsLostByJournal:
    """An operation that counts segments which an earlier journal acknowledged and this one lacks (`Journal.add_gap`)."""

    client_id: str
    count: int
    stream: StreamRow | None = None


@dataclass(frozen=True, slots=True)
class DeleteCoveredEntries:
    """An operation that removes the entries whose segments a checkpoint includes (`Journal.trim`).

    `marks` has a pair ((actor_id, origin), mark) for each stream. An entry is removed if all its segments are below the mark.
    """

    client_id: str
    marks: tuple[tuple[tuple[str, int], int], ...]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """An operation that reads a `JournalPage` (`Journal.read`)."""

    client_id: str
    token: int
    after_row: int
    max_bytes: int


Write = (
    JournalEntry
    | ClientRow
    | StreamRow
    | DropStream
    | DropClient
    | RetireActorStreams
    | CountSegmentsLostByJournal
    | DeleteCoveredEntries
)

Operation = Write | PageRequest


class JournalBase(ABC):
    """The base class of journals. Each call of `Journal` that changes or reads data becomes an object, an operation."""

    @abstractmethod
    def _enqueue(self, operation: Operation) -> None: ...

    def put_client(self, row: ClientRow) -> None:
        self._enqueue(row)

    def put_stream(self, row: StreamRow) -> None:
        self._enqueue(row)

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        self._enqueue(DropStream(client_id, actor_id, origin, expires))

    def drop_client(self, client_id: str) -> None:
        self._enqueue(DropClient(client_id))

    def drop_entries(self, client_id: str) -> None:
        self._enqueue(DropClient(client_id, entries_only=True))

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        self._enqueue(RetireActorStreams(client_id, actor_id))

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        self._enqueue(CountSegmentsLostByJournal(client_id, count, stream))

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        self._enqueue(DeleteCoveredEntries(client_id, tuple(marks.items())))

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        self._enqueue(PageRequest(client_id, token, after_row, max_bytes))


class MemoryJournal(JournalBase):
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

    def _enqueue(self, operation: Operation) -> None:
        if isinstance(operation, PageRequest):
            page = JournalPage(operation.client_id, operation.token, (), operation.after_row, more=False, damaged=0)
            self._fresh.append(page)

    def state(self) -> JournalHealth:
        return JournalHealth(durable=False, commits=self._commits)

    def queued(self, client_id: str) -> int:
        return 0

    def stop(self) -> None: ...

    def join(self, timeout_s: float | None = None) -> bool:
        return True
