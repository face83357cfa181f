"""The in-memory copy of a journal's rows about clients and streams, with the changes of the present transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from rl4sys_zmq.delivery.journal import ClientRow, JournalContent, StreamRow

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
        """Return the rows as a `JournalContent`."""
        return JournalContent(self.journal_id, tuple(self.clients.values()), tuple(self.streams.values()))


@dataclass(slots=True)
class RowChanges:
    """The changes of one transaction to the rows."""

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
        self.changes = RowChanges()  # changes of the present transaction
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def commit(self) -> RowChanges:
        """Apply the changes of the transaction to `rows`, begin a new transaction, and return the changes."""
        done, self.changes = self.changes, RowChanges()
        done.apply_to(self.rows.clients, self.rows.streams)
        return done

    def revert(self) -> None:
        """Discard the changes of the present transaction."""
        self.changes = RowChanges()

    # ---- operations

    def put_client(self, row: ClientRow) -> None:
        """Add a client's row, or change the settings and the generation of an existing one."""
        known = self._client(row.client_id)
        if known is not None:
            row = replace(known, generation=max(known.generation, row.generation), settings=row.settings)
        self.changes.clients[row.client_id] = row

    def add_to_client(self, client_id: str, accepted: int, refused: int, gap: int) -> None:
        """Add numbers of segments to the totals of a client."""
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
        """Remove the row of a stream. With `expires`, raise the client's `expired` to its origin."""
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
