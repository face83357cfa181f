"""The clients and streams of a journal in memory: as they were committed, and what the present transaction changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rl4sys_zmq.delivery.journal import ClientRow, Restored, StreamRow

__all__ = ["Changes", "JournalCache", "KnownRows", "RowKey"]

MOST = (1 << 63) - 1
"""What a column can hold. SQLite would go on with a float."""

RowKey = tuple[str, str, int]
"""A stream: its client's id, its actor's id and its origin."""


@dataclass(slots=True)
class KnownRows:
    """The clients and streams of a journal, wherever that was written down.

    Attributes:
        journal_id: the lineage; 0 for one that is not known.
        lineages: the earlier ones that an operator has given up (`--resume accept-loss`).
        clients: by name.
        streams: by key.
    """

    journal_id: int = 0
    lineages: set[int] = field(default_factory=set)
    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)

    @staticmethod
    def read_settings(text: str) -> dict[str, Any]:
        """The settings of a client from what was written.

        Raises:
            ValueError: when that is no JSON.
        """
        return dict(json.loads(text))

    def restored(self) -> Restored:
        """The same as the journal's owner wants it."""
        return Restored(self.journal_id, tuple(self.clients.values()), tuple(self.streams.values()))


@dataclass(slots=True)
class Changes:
    """What a transaction does to clients and streams.

    Attributes:
        clients: new or changed, by name.
        streams: new or changed, by key.
        dropped_streams: forgotten on purpose: that they are missing is no loss.
        dropped_clients: likewise, with all their streams.
    """

    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)
    dropped_streams: set[RowKey] = field(default_factory=set)
    dropped_clients: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.clients or self.streams or self.dropped_streams or self.dropped_clients)

    def apply_to(self, clients: dict[str, ClientRow], streams: dict[RowKey, StreamRow]) -> None:
        """Does the same to rows."""
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
    """The rows of one journal. Marks only grow, totals are sums.

    Attributes:
        rows: as they were committed.
        changes: by the present transaction.
    """

    def __init__(self, rows: KnownRows) -> None:
        self.rows = rows
        self.changes = Changes()
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def commit(self) -> Changes:
        """The transaction is done; returns what it has changed."""
        done, self.changes = self.changes, Changes()
        done.apply_to(self.rows.clients, self.rows.streams)
        return done

    def revert(self) -> None:
        """The transaction has not happened."""
        self.changes = Changes()

    # ---- what operations do

    def put_client(self, row: ClientRow) -> None:
        """Makes a client, with its totals, or changes the generation and settings of a known one."""
        known = self._client(row.client_id)
        if known is not None:
            row = replace(known, generation=max(known.generation, row.generation), settings=row.settings)
        self.changes.clients[row.client_id] = row

    def add_to_client(self, client_id: str, accepted: int, refused: int, gap: int) -> None:
        """Counts segments in a client's totals."""
        known = self._client(client_id) or ClientRow(client_id, 0, {}, 0, 0, 0)
        sums = _sum(known.accepted, accepted), _sum(known.refused, refused), _sum(known.gap, gap)
        self.changes.clients[client_id] = ClientRow(client_id, known.generation, known.settings, *sums, known.expired)

    def put_stream(self, row: StreamRow) -> None:
        """Makes a stream, or changes what a HELLO may change in a known one."""
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
        """Moves a stream's mark up to `received`, and counts its steps and refusals; a new one begins at `first_seq`."""
        known = self._stream(key)
        if known is None:
            row = StreamRow(*key, key[2], first_seq, received, steps, refused, submits=True, spooled=False)
        else:
            marks = max(known.received, received), _sum(known.accepted_steps, steps), _sum(known.refused, refused)
            rest = known.submits, known.spooled, known.owner
            row = StreamRow(*key, known.incarnation, known.first_seq, *marks, *rest)
        self.changes.streams[key] = row

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Lets an actor's streams go once nothing of them is needed, and its name be taken by whatever start comes next."""
        for key in {*self.rows.streams, *self.changes.streams}:
            row = self._stream(key) if key[:2] == (client_id, actor_id) else None
            if row is not None:
                self.changes.streams[key] = replace(row, incarnation=0, spooled=False, owner="")

    def drop_stream(self, key: RowKey, *, expires: bool = True) -> None:
        """Forgets a stream.

        Args:
            key: of the stream.
            expires: its client's `expired` remembers its origin.
        """
        self.changes.streams.pop(key, None)
        self.changes.dropped_streams.add(key)
        client = self._client(key[0])
        if client is not None and expires:
            self.changes.clients[key[0]] = replace(client, expired=max(client.expired, key[2]))

    def drop_client(self, client_id: str) -> None:
        """Forgets a client and its streams."""
        changes = self.changes
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
        """The columns of a client."""
        known = self._texts.get(row.client_id)
        if known is None or known[0] is not row.settings:
            known = self._texts[row.client_id] = row.settings, json.dumps(row.settings, sort_keys=True)
        return row.client_id, row.generation, known[1], row.accepted, row.refused, row.gap, row.expired

    @staticmethod
    def stream_values(row: StreamRow) -> tuple[object, ...]:
        """The columns of a stream."""
        return (
            row.client_id,
            row.actor_id,
            row.origin,
            row.incarnation,
            row.first_seq,
            row.received,
            row.accepted_steps,
            row.refused,
            int(row.submits),
            int(row.spooled),
            row.owner,
        )


def _sum(a: int, b: int) -> int:
    return min(a + b, MOST)
