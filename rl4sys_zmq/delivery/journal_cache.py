"""The memory of a journal's thread: the rows of clients and streams with their changes, and the operations that wait."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from operator import attrgetter
from typing import Any

from rl4sys_zmq.delivery.journal import ClientRow, JournalContent, JournalEntry, StreamRow

# SQLite would convert a larger sum to a float.
MOST = (1 << 63) - 1

RowKey = tuple[str, str, int]
"""The key of a stream: the client's id, the actor's id, and the origin."""


# The order of a stream's columns in SQLite and in ``journal.marks``.
stream_fields = attrgetter(*(f.name for f in fields(StreamRow)))


@dataclass(slots=True)
class ClientAndStreamRows:
    """The rows of a journal, or of ``journal.marks``, about its clients and streams."""

    journal_id: int = 0  # 0 if unknown
    # ids of the journals whose data an operator has given up with ``--resume accept-loss``
    lineages: set[int] = field(default_factory=set)
    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)

    def restored(self) -> JournalContent:
        return JournalContent(self.journal_id, tuple(self.clients.values()), tuple(self.streams.values()))


@dataclass(slots=True)
class JournalRowChanges:
    """The changes of one transaction to the rows of a journal."""

    # new content of each added or changed client row, by client id
    clients: dict[str, ClientRow] = field(default_factory=dict)
    # new content of each added or changed stream row, by key
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)
    # streams that were removed on purpose, so that their absence does not count as a loss
    dropped_streams: set[RowKey] = field(default_factory=set)
    dropped_clients: set[str] = field(default_factory=set)  # clients that were removed on purpose, with all their streams

    def __bool__(self) -> bool:
        return bool(self.clients or self.streams or self.dropped_streams or self.dropped_clients)

    def apply_to(self, clients: dict[str, ClientRow], streams: dict[RowKey, StreamRow]) -> None:
        """Apply the changes to dicts of client rows and of stream rows, in place."""
        for client_id in self.dropped_clients:
            clients.pop(client_id, None)
        gone = self.dropped_clients
        for key in [key for key in streams if key[0] in gone] if gone else ():
            del streams[key]
        for key in self.dropped_streams:
            streams.pop(key, None)
        clients.update(self.clients)
        streams.update(self.streams)


class JournalCache:
    """The rows of one journal in memory. The methods change only `changes`, until `commit`. Sequence numbers never decrease."""

    def __init__(self, rows: ClientAndStreamRows) -> None:
        self.rows = rows  # committed clients and streams
        self.changes = JournalRowChanges()  # changes of the present transaction
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def commit(self) -> JournalRowChanges:
        """Apply the changes of the transaction to `rows`, begin a new transaction, and return the changes."""
        done, self.changes = self.changes, JournalRowChanges()
        done.apply_to(self.rows.clients, self.rows.streams)
        return done

    def revert(self) -> None:
        """Discard the changes of the present transaction."""
        self.changes = JournalRowChanges()

    # ---- operations

    def put_client(self, row: ClientRow) -> None:
        """Add a client's row. If the client has a row already, change its settings and its generation."""
        known = self._client(row.client_id)
        if known is not None:
            row = replace(known, generation=max(known.generation, row.generation), settings=row.settings)
        self.changes.clients[row.client_id] = row

    def add_to_client(self, client_id: str, accepted: int, refused: int, gap: int) -> None:
        """Add numbers of accepted segments, refused segments and segments in gaps to the totals of a client."""
        known = self._client(client_id) or ClientRow(client_id, 0, {}, 0, 0, 0)
        sums = _sum(known.accepted, accepted), _sum(known.refused, refused), _sum(known.gap, gap)
        self.changes.clients[client_id] = ClientRow(client_id, known.generation, known.settings, *sums, known.expired)

    def put_stream(self, row: StreamRow) -> None:
        """Add the row of a stream, or update it after the actor opened a session."""
        key = row.client_id, row.actor_id, row.origin
        known = self._stream(key)
        if known is not None:
            row = replace(
                known,
                incarnation=max(known.incarnation, row.incarnation),
                first_seq=max(known.first_seq, row.first_seq),
                received=max(known.received, row.received),
                submits=row.submits,
                spooled=row.spooled,
                owner=row.owner,
            )
        self.changes.streams[key] = row

    def add_to_stream(self, key: RowKey, first_seq: int, received: int, steps: int, refused: int) -> None:
        """Add new segments to the totals of a stream. A stream that does not exist is created, beginning at `first_seq`."""
        known = self._stream(key)
        if known is None:
            row = StreamRow(*key, key[2], first_seq, received, steps, refused, submits=True, spooled=False)
        else:
            marks = max(known.received, received), _sum(known.accepted_steps, steps), _sum(known.refused, refused)
            rest = known.submits, known.spooled, known.owner
            row = StreamRow(*key, known.incarnation, known.first_seq, *marks, *rest)
        self.changes.streams[key] = row

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Set the incarnation of an actor's rows to 0, and clear `owner` and `spooled`."""
        for key in {*self.rows.streams, *self.changes.streams}:
            row = self._stream(key) if key[:2] == (client_id, actor_id) else None
            if row is not None:
                self.changes.streams[key] = replace(row, incarnation=0, spooled=False, owner="")

    def drop_stream(self, key: RowKey, *, expires: bool = True) -> None:
        """Remove the row of a stream. With `expires`, raise `ClientRow.expired` of the client to the origin of this stream."""
        self.changes.streams.pop(key, None)
        self.changes.dropped_streams.add(key)
        client = self._client(key[0])
        if client is not None and expires:
            self.changes.clients[key[0]] = replace(client, expired=max(client.expired, key[2]))

    def drop_client(self, client_id: str) -> None:
        """Remove the rows of a client and of its streams."""
        changes = self.changes
        self._texts.pop(client_id, None)
        changes.clients.pop(client_id, None)
        changes.streams = {key: row for key, row in changes.streams.items() if key[0] != client_id}
        changes.dropped_clients.add(client_id)

    def _client(self, client_id: str) -> ClientRow | None:
        changed = self.changes.clients.get(client_id)
        if changed is not None or client_id in self.changes.dropped_clients:
            return changed
        return self.rows.clients.get(client_id)

    def _stream(self, key: RowKey) -> StreamRow | None:
        changed = self.changes.streams.get(key)
        if changed is not None or key in self.changes.dropped_streams or key[0] in self.changes.dropped_clients:
            return changed
        return self.rows.streams.get(key)

    # ---- rows as columns

    def client_values(self, row: ClientRow) -> tuple[object, ...]:
        """Return the columns of a client's row, without the checksum."""
        known = self._texts.get(row.client_id)
        if known is None or known[0] is not row.settings:
            known = self._texts[row.client_id] = row.settings, json.dumps(row.settings, sort_keys=True)
        return row.client_id, row.generation, known[1], row.accepted, row.refused, row.gap, row.expired

    @staticmethod
    def stream_values(row: StreamRow) -> tuple[object, ...]:
        """Return the columns of a stream's row, without the checksum."""
        values = stream_fields(row)
        return (*values[:-3], int(row.submits), int(row.spooled), row.owner)


def _sum(a: int, b: int) -> int:
    return min(a + b, MOST)


GROUP_ITEMS = 512
# Bytes in one transaction. This limits the delay of an ack and the size of the write-ahead log.
GROUP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class DropStream:
    """An operation that removes a stream and its entries (`Journal.drop_stream`)."""

    client_id: str
    actor_id: str
    origin: int
    expires: bool = True


@dataclass(frozen=True, slots=True)
class DropClient:
    """An operation that removes a client, its streams and its entries."""

    client_id: str


@dataclass(frozen=True, slots=True)
class DropClientEntries:
    """An operation that removes all entries of a client, but keeps its totals and the sequence numbers of its actors."""

    client_id: str


@dataclass(frozen=True, slots=True)
class RetireActorStreams:
    """An operation that releases the streams of an actor that an operator dropped (`Journal.retire_actor`)."""

    client_id: str
    actor_id: str


@dataclass(frozen=True, slots=True)
class CountSegmentsLostByJournal:
    """An operation that counts segments as accepted although this journal does not have them (`Journal.add_gap`)."""

    client_id: str
    count: int
    stream: StreamRow | None = None


@dataclass(frozen=True, slots=True)
class DeleteCoveredEntries:
    """An operation that removes the entries that a checkpoint covers.

    `marks` has pairs ((actor_id, origin), mark). An entry of the stream is covered if all its segments are below the mark.
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
    | DropClientEntries
    | RetireActorStreams
    | CountSegmentsLostByJournal
    | DeleteCoveredEntries
)


def stored_bytes(entry: JournalEntry) -> int:
    """Return the size of an entry in its table, in bytes."""
    return entry.nbytes + 4 + 8 * len(entry.frames)


Operation = Write | PageRequest


class JournalQueue:
    """The queued operations of a journal, in the order of the calls. An operation stays in the queue until it is done."""

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def extend(self, operations: Iterable[Operation]) -> None:
        self._operations.extend(operations)

    def next_group(self, used_bytes: int, max_bytes: int) -> list[Operation]:
        """Return the next transaction: the writes at the front of the queue that fit into `max_bytes`, or one read; [] if the
        first write does not fit.
        """
        group: list[Operation] = []
        size = 0
        for operation in islice(self._operations, GROUP_ITEMS):
            if isinstance(operation, PageRequest):
                return group or [operation]
            if isinstance(operation, JournalEntry):
                nbytes = stored_bytes(operation)
                taken = used_bytes + size
                if (group and size + nbytes > GROUP_BYTES) or (taken and taken + nbytes > max_bytes):
                    break
                size += nbytes
            group.append(operation)
        return group

    def relief(self) -> list[Operation]:
        """Return operations that can be done although entries before them do not fit: one read, or operations that free room.

        - The removal of all entries of a client comes first, together with the client's operations queued before it. Together
          they need no additional room.
        - A trim is always possible, because its entries are committed already.
        - The removal of a stream must wait for operations on the same stream before it. The retirement of an actor must wait
          for operations on any of its streams before it.
        - A client's reads must wait behind a removal that waits, and behind the retirement of an actor.
        """
        if given_up := self._given_up():
            return given_up
        changed: set[tuple[str, str, int]] = set()
        named: set[tuple[str, str]] = set()
        held: set[str] = set()
        frees: list[Operation] = []
        for operation in self._operations:
            if isinstance(operation, PageRequest) and operation.client_id not in held:
                return [operation]
            if isinstance(operation, DeleteCoveredEntries):
                frees.append(operation)
            elif isinstance(operation, RetireActorStreams):
                held.add(operation.client_id)  # a read behind it confirms that it is done
                if (operation.client_id, operation.actor_id) not in named:
                    frees.append(operation)
            elif isinstance(operation, (JournalEntry, StreamRow)):
                changed.add((operation.client_id, operation.actor_id, operation.origin))
                named.add((operation.client_id, operation.actor_id))
            elif isinstance(operation, DropStream):
                if (operation.client_id, operation.actor_id, operation.origin) in changed:
                    held.add(operation.client_id)
                else:
                    frees.append(operation)
        return frees[:GROUP_ITEMS]

    def _given_up(self) -> list[Operation]:
        """Return the first operation that deletes all entries of a client, after the earlier writes of that client; or []."""
        for place, drop in enumerate(self._operations):
            if isinstance(drop, DropClient | DropClientEntries):
                before = islice(self._operations, place)
                own = (o for o in before if o.client_id == drop.client_id and not isinstance(o, PageRequest))
                return [*own, drop]
        return []

    def done(self, group: Sequence[Operation]) -> None:
        """Remove operations that are done from the queue. `group` must be in the order of the queue."""
        operations = self._operations
        if operations[0] is group[0] and operations[len(group) - 1] is group[-1]:
            for _ in group:
                operations.popleft()
            return
        gone = {id(operation) for operation in group}
        self._operations = deque(operation for operation in operations if id(operation) not in gone)
