"""The in-memory copy of a journal's clients and streams, with the changes of the present transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rl4sys_zmq.delivery.journal import ClientRow, Restored, StreamRow

__all__ = ["Changes", "JournalCache", "KnownRows", "RowKey"]

MOST = (1 << 63) - 1
"""The largest integer in a column. Above it, SQLite would continue with a float."""

RowKey = tuple[str, str, int]
"""The key of a stream: the client's id, the actor's id, and the origin (the incarnation that began the numbering)."""


@dataclass(slots=True)
class KnownRows:
    """The clients and streams of a journal, read from the journal or from its marks file.

    Attributes:
        journal_id: The id of the journal, which identifies its numbering of segments (its lineage); 0 if unknown.
        lineages: The ids of the earlier journals that an operator has given up (`--resume accept-loss`).
        clients: The clients by id.
        streams: The streams by key.
    """

    journal_id: int = 0
    lineages: set[int] = field(default_factory=set)
    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)

    @staticmethod
    def read_settings(text: str) -> dict[str, Any]:
        """Parse the stored settings of a client.

        Raises:
            ValueError: If the text is not JSON.
        """
        return dict(json.loads(text))

    def restored(self) -> Restored:
        """Return the same rows as a `Restored`."""
        return Restored(self.journal_id, tuple(self.clients.values()), tuple(self.streams.values()))


@dataclass(slots=True)
class Changes:
    """The changes of one transaction to clients and streams.

    Attributes:
        clients: The new or changed clients by id.
        streams: The new or changed streams by key.
        dropped_streams: The streams that were removed on purpose, so that their absence is not a loss.
        dropped_clients: The clients that were removed on purpose, with all their streams.
    """

    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)
    dropped_streams: set[RowKey] = field(default_factory=set)
    dropped_clients: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.clients or self.streams or self.dropped_streams or self.dropped_clients)

    def apply_to(self, clients: dict[str, ClientRow], streams: dict[RowKey, StreamRow]) -> None:
        """Apply the changes to rows."""
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
    """The rows of one journal. Marks never decrease, and totals are sums.

    Attributes:
        rows: The committed rows.
        changes: The changes of the present transaction.
    """

    def __init__(self, rows: KnownRows) -> None:
        self.rows = rows
        self.changes = Changes()
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def commit(self) -> Changes:
        """Commit the changes of the transaction, and return them."""
        done, self.changes = self.changes, Changes()
        done.apply_to(self.rows.clients, self.rows.streams)
        return done

    def revert(self) -> None:
        """Discard the changes of the transaction."""
        self.changes = Changes()

    # ---- operations

    def put_client(self, row: ClientRow) -> None:
        """Add a client with its totals, or change the generation and settings of an existing one."""
        known = self._client(row.client_id)
        if known is not None:
            row = replace(known, generation=max(known.generation, row.generation), settings=row.settings)
        self.changes.clients[row.client_id] = row

    def add_to_client(self, client_id: str, accepted: int, refused: int, gap: int) -> None:
        """Add to the totals of a client."""
        known = self._client(client_id) or ClientRow(client_id, 0, {}, 0, 0, 0)
        sums = _sum(known.accepted, accepted), _sum(known.refused, refused), _sum(known.gap, gap)
        self.changes.clients[client_id] = ClientRow(client_id, known.generation, known.settings, *sums, known.expired)

    def put_stream(self, row: StreamRow) -> None:
        """Add a stream, or change the fields of an existing one that a HELLO can change."""
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
        """Raise a stream's mark to `received`, and add its steps and refusals. A new stream starts at `first_seq`."""
        known = self._stream(key)
        if known is None:
            row = StreamRow(*key, key[2], first_seq, received, steps, refused, submits=True, spooled=False)
        else:
            marks = max(known.received, received), _sum(known.accepted_steps, steps), _sum(known.refused, refused)
            rest = known.submits, known.spooled, known.owner
            row = StreamRow(*key, known.incarnation, known.first_seq, *marks, *rest)
        self.changes.streams[key] = row

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Retire the streams of an actor, so that they can be discarded and any later start can use the actor's id."""
        for key in {*self.rows.streams, *self.changes.streams}:
            row = self._stream(key) if key[:2] == (client_id, actor_id) else None
            if row is not None:
                self.changes.streams[key] = replace(row, incarnation=0, spooled=False, owner="")

    def drop_stream(self, key: RowKey, *, expires: bool = True) -> None:
        """Remove a stream.

        Args:
            key: The key of the stream.
            expires: True to record its origin in the client's `expired`.
        """
        self.changes.streams.pop(key, None)
        self.changes.dropped_streams.add(key)
        client = self._client(key[0])
        if client is not None and expires:
            self.changes.clients[key[0]] = replace(client, expired=max(client.expired, key[2]))

    def drop_client(self, client_id: str) -> None:
        """Remove a client and its streams."""
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
        """Return the columns of a client."""
        known = self._texts.get(row.client_id)
        if known is None or known[0] is not row.settings:
            known = self._texts[row.client_id] = row.settings, json.dumps(row.settings, sort_keys=True)
        return row.client_id, row.generation, known[1], row.accepted, row.refused, row.gap, row.expired

    @staticmethod
    def stream_values(row: StreamRow) -> tuple[object, ...]:
        """Return the columns of a stream."""
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
