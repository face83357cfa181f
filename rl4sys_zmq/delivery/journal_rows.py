"""The tables of a journal: what each operation does to them. No threads, no files, no retries."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from rl4sys_zmq.delivery.ledger import ClientRow, Entry, Page, Restored, StreamRow, new_ledger_id
from rl4sys_zmq.wire.messages import Frame

__all__ = [
    "SCHEMA_VERSION",
    "DropClient",
    "DropEntries",
    "DropStream",
    "Gap",
    "Read",
    "RetireActor",
    "Tables",
    "Trim",
    "Write",
    "stored_bytes",
]

SCHEMA_VERSION = 2
TRIM_ROWS = 2_000
"""How many entries one operation deletes at once; what is left of it goes on in the next transaction."""
INSERT_ROWS = 64
"""How many entries one statement inserts. The GIL is given up per statement, and taking it back can cost 5 ms."""

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE clients (client_id TEXT PRIMARY KEY, generation INTEGER NOT NULL, settings TEXT NOT NULL,"
    " accepted INTEGER NOT NULL, refused INTEGER NOT NULL, gap INTEGER NOT NULL, expired INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE streams (client_id TEXT, actor_id TEXT, origin INTEGER, incarnation INTEGER NOT NULL,"
    " first_seq INTEGER NOT NULL, received INTEGER NOT NULL, accepted_steps INTEGER NOT NULL, refused INTEGER NOT NULL,"
    " submits INTEGER NOT NULL, spooled INTEGER NOT NULL, owner TEXT NOT NULL,"
    " PRIMARY KEY (client_id, actor_id, origin)) WITHOUT ROWID",
    "CREATE TABLE entries (row INTEGER PRIMARY KEY, client_id TEXT NOT NULL, actor_id TEXT NOT NULL, origin INTEGER NOT NULL,"
    " first_seq INTEGER NOT NULL, end_seq INTEGER NOT NULL, steps INTEGER NOT NULL, skip INTEGER NOT NULL,"
    " refused INTEGER NOT NULL, nbytes INTEGER NOT NULL, checksum INTEGER NOT NULL, frames BLOB NOT NULL)",
    "CREATE INDEX entries_by_mark ON entries (client_id, actor_id, origin, end_seq, nbytes)",
    "CREATE INDEX entries_by_client ON entries (client_id)",
)
_STREAM = (
    "client_id",
    "actor_id",
    "origin",
    "incarnation",
    "first_seq",
    "received",
    "accepted_steps",
    "refused",
    "submits",
    "spooled",
    "owner",
)
_CLIENT_UPSERT = "INSERT INTO clients VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (client_id) DO UPDATE SET "
_STREAM_UPSERT = (
    f"INSERT INTO streams ({', '.join(_STREAM)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (client_id, actor_id, origin) DO UPDATE SET "
)
_PUT_CLIENT = _CLIENT_UPSERT + "generation = max(generation, excluded.generation), settings = excluded.settings"
_PUT_STREAM = _STREAM_UPSERT + (
    "incarnation = max(incarnation, excluded.incarnation), first_seq = max(first_seq, excluded.first_seq),"
    " received = max(received, excluded.received), submits = excluded.submits, spooled = excluded.spooled,"
    " owner = excluded.owner"
)
_SUM = "{0} = min({0} + excluded.{0}, 9223372036854775807)"  # beyond it SQLite would go on with a float
_ADD_TO_CLIENT = _CLIENT_UPSERT + ", ".join(map(_SUM.format, ("accepted", "refused", "gap")))
_ADD_TO_STREAM = _STREAM_UPSERT + ", ".join(
    ("received = max(received, excluded.received)", *map(_SUM.format, ("accepted_steps", "refused")))
)
_RETIRE = "UPDATE streams SET incarnation = 0, spooled = 0, owner = '' WHERE client_id = ? AND actor_id = ?"
_OF_STREAM = "client_id = ? AND actor_id = ? AND origin = ?"


@dataclass(frozen=True, slots=True)
class DropStream:
    """Forget a stream and its entries; its origin stays in its client's `expired`, if it `expires`."""

    client_id: str
    actor_id: str
    origin: int
    expires: bool = True


@dataclass(frozen=True, slots=True)
class DropClient:
    """Forget a client, its streams and its entries."""

    client_id: str


@dataclass(frozen=True, slots=True)
class DropEntries:
    """Give up all entries of a client. Its streams and totals stay."""

    client_id: str


@dataclass(frozen=True, slots=True)
class RetireActor:
    """Let the streams of an actor speak for it no more: they fence nothing, keep no owner and outlive no lease."""

    client_id: str
    actor_id: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Count segments that are gone, and move their stream's mark over them: both or neither."""

    client_id: str
    count: int
    stream: StreamRow | None = None


@dataclass(frozen=True, slots=True)
class Trim:
    """Give up the entries below the marks: ((actor_id, origin), mark)."""

    client_id: str
    marks: tuple[tuple[tuple[str, int], int], ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for a page."""

    client_id: str
    token: int
    after_row: int
    max_bytes: int


Write = Entry | ClientRow | StreamRow | DropStream | DropClient | DropEntries | RetireActor | Gap | Trim


def stored_bytes(entry: Entry) -> int:
    """How long the blob of an entry is."""
    return entry.nbytes + 4 + 8 * len(entry.frames)


def _pack(frames: Sequence[Frame]) -> bytes:
    lengths = [f.nbytes if isinstance(f, memoryview) else len(f) for f in frames]
    return b"".join((struct.pack(f"<I{len(frames)}Q", len(frames), *lengths), *frames))


def _unpack(blob: bytes) -> tuple[bytes, ...]:
    # Each frame is a copy: a slice of the blob would begin at any address, and columns want theirs aligned.
    (count,) = struct.unpack_from("<I", blob)
    lengths = struct.unpack_from(f"<{count}Q", blob, 4)
    frames, start = [], 4 + 8 * count
    for length in lengths:
        frames.append(blob[start : start + length])
        start += length
    return tuple(frames)


def _checksum(metadata: tuple[object, ...], blob: bytes) -> int:
    hasher = xxhash.xxh3_64("\0".join(map(str, metadata)).encode())
    hasher.update(blob)
    return int.from_bytes(hasher.digest(), "little", signed=True)


class Tables:
    """The tables behind one connection, whose owner begins and ends the transactions.

    Attributes:
        damaged: the rows whose bytes are not those that were written, as far as they have been met.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._next_row = 1
        self.damaged: set[int] = set()

    def create(self) -> None:
        """Makes the tables of an empty file."""
        for statement in _SCHEMA:
            self._db.execute(statement)
        self._db.execute("INSERT INTO meta VALUES ('ledger_id', ?), ('opened', 0)", (new_ledger_id(),))
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def restore(self) -> tuple[Restored, int]:
        """What the tables know, and how many bytes the entries take. Counts that they were opened."""
        self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'opened'")
        (ledger_id,) = self._db.execute("SELECT value FROM meta WHERE key = 'ledger_id'").fetchone()
        clients = [
            ClientRow(client_id, generation, json.loads(settings), *totals)
            for client_id, generation, settings, *totals in self._db.execute("SELECT * FROM clients")
        ]
        streams = [
            StreamRow(*(*numbers, bool(submits), bool(spooled), owner))
            for *numbers, submits, spooled, owner in self._db.execute(f"SELECT {', '.join(_STREAM)} FROM streams")
        ]
        (used,) = self._db.execute("SELECT coalesce(sum(nbytes), 0) FROM entries INDEXED BY entries_by_mark").fetchone()
        (last,) = self._db.execute("SELECT coalesce(max(row), 0) FROM entries").fetchone()
        self._next_row = last + 1
        return Restored(ledger_id, tuple(clients), tuple(streams)), used

    def apply(self, operations: Sequence[Write]) -> tuple[int, list[Trim]]:
        """Does operations in order; returns by how much the entries grew, and what is left to trim."""
        grown, left, run = 0, [], []
        for operation in operations:
            if isinstance(operation, Entry):
                run.append(operation)
                continue
            grown += self._insert(run)
            run = []
            match operation:
                case ClientRow():
                    self._put_client(_PUT_CLIENT, operation)
                case StreamRow():
                    self._put_stream(_PUT_STREAM, operation)
                case Gap():
                    self._put_client(_ADD_TO_CLIENT, ClientRow(operation.client_id, 0, {}, operation.count, 0, operation.count))
                    if operation.stream is not None:
                        self._put_stream(_PUT_STREAM, operation.stream)
                case DropStream():
                    grown -= self._drop(operation)
                case DropClient():
                    grown -= self._drop_entries(operation.client_id)
                    self._db.execute("DELETE FROM streams WHERE client_id = ?", (operation.client_id,))
                    self._db.execute("DELETE FROM clients WHERE client_id = ?", (operation.client_id,))
                case DropEntries():
                    grown -= self._drop_entries(operation.client_id)
                case RetireActor():
                    self._db.execute(_RETIRE, (operation.client_id, operation.actor_id))
                case Trim():
                    freed, rest = self._trim(operation)
                    grown -= freed
                    left.extend(rest)
        return grown + self._insert(run), left

    def _insert(self, entries: Sequence[Entry]) -> int:
        """Stores entries and moves their streams and clients, with few statements however many they are."""
        if not entries:
            return 0
        rows: list[Sequence[object]] = []
        streams: dict[tuple[str, str, int], list[int]] = {}
        clients: dict[str, list[int]] = {}
        grown = 0
        for e in entries:
            blob = _pack(e.frames)
            metadata = (e.client_id, e.actor_id, e.origin, e.first_seq, e.end_seq, e.steps, e.skip, e.refused)
            rows.append((self._next_row, *metadata, len(blob), _checksum(metadata, blob), blob))
            self._next_row += 1
            grown += len(blob)
            stream = streams.setdefault((e.client_id, e.actor_id, e.origin), [e.first_seq, 0, 0, 0])
            stream[1] = max(stream[1], e.end_seq)
            stream[2] += e.steps
            stream[3] += e.refused
            client = clients.setdefault(e.client_id, [0, 0])
            client[0] += e.accepted
            client[1] += e.refused
        for chunk in (rows[i : i + INSERT_ROWS] for i in range(0, len(rows), INSERT_ROWS)):
            places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(chunk))
            self._db.execute(f"INSERT INTO entries VALUES {places}", [value for row in chunk for value in row])
        for (client_id, actor_id, origin), (first, received, steps, refused) in streams.items():
            row = StreamRow(client_id, actor_id, origin, origin, first, received, steps, refused, submits=True, spooled=False)
            self._put_stream(_ADD_TO_STREAM, row)
        for client_id, (accepted, refused) in clients.items():
            self._put_client(_ADD_TO_CLIENT, ClientRow(client_id, 0, {}, accepted, refused, 0))
        return grown

    def _put_client(self, statement: str, row: ClientRow) -> None:
        settings = json.dumps(row.settings, sort_keys=True)
        self._db.execute(statement, (row.client_id, row.generation, settings, row.accepted, row.refused, row.gap, row.expired))

    def _put_stream(self, statement: str, row: StreamRow) -> None:
        self._db.execute(statement, [getattr(row, name) for name in _STREAM])

    def _drop(self, drop: DropStream) -> int:
        key = (drop.client_id, drop.actor_id, drop.origin)
        (freed,) = self._db.execute(f"SELECT coalesce(sum(nbytes), 0) FROM entries WHERE {_OF_STREAM}", key).fetchone()
        self._db.execute(f"DELETE FROM entries WHERE {_OF_STREAM}", key)
        self._db.execute(f"DELETE FROM streams WHERE {_OF_STREAM}", key)
        if drop.expires:
            self._db.execute("UPDATE clients SET expired = max(expired, ?) WHERE client_id = ?", (drop.origin, drop.client_id))
        return int(freed)

    def _drop_entries(self, client_id: str) -> int:
        (freed,) = self._db.execute(
            "SELECT coalesce(sum(nbytes), 0) FROM entries INDEXED BY entries_by_mark WHERE client_id = ?", (client_id,)
        ).fetchone()
        self._db.execute("DELETE FROM entries WHERE client_id = ?", (client_id,))
        return int(freed)

    def _trim(self, trim: Trim) -> tuple[int, list[Trim]]:
        """Deletes at most `TRIM_ROWS` entries; returns the bytes freed, and a trim for the rest if there is one."""
        freed, room = 0, TRIM_ROWS
        for place, ((actor_id, origin), mark) in enumerate(trim.marks):
            key = (trim.client_id, actor_id, origin)
            found = self._db.execute(
                f"SELECT end_seq, nbytes FROM entries WHERE {_OF_STREAM} AND end_seq <= ? ORDER BY end_seq LIMIT ?",
                (*key, mark, room + 1),
            ).fetchall()
            end = found[room][0] - 1 if len(found) > room else mark
            gone = [nbytes for end_seq, nbytes in found if end_seq <= end]
            if gone:
                self._db.execute(f"DELETE FROM entries WHERE {_OF_STREAM} AND end_seq <= ?", (*key, end))
                freed += sum(gone)
            if len(found) > room:
                return freed, [Trim(trim.client_id, trim.marks[place:])]
            room -= len(found)
        return freed, []

    def read(self, read: Read) -> Page:
        """A page of entries; damaged ones are left out of it."""
        entries: list[Entry] = []
        last, size, damaged, more = read.after_row, 0, 0, False
        # Only the index is scanned here, so that a damaged page of the table costs its own entries and no others.
        rows = self._db.execute(
            "SELECT row FROM entries INDEXED BY entries_by_client WHERE client_id = ? AND row > ? ORDER BY row",
            (read.client_id, read.after_row),
        )
        for (row,) in rows:
            entry = self._entry(row)
            if entry is None:
                damaged += 1
                self.damaged.add(row)
            elif entries and size + entry.nbytes > read.max_bytes:
                more = True
                break
            else:
                entries.append(entry)
                size += entry.nbytes
            last = row
        rows.close()
        return Page(read.client_id, read.token, tuple(entries), last, more, damaged)

    def _entry(self, row: int) -> Entry | None:
        """One entry, or None when its bytes are not those that were written."""
        try:
            found = self._db.execute(
                "SELECT client_id, actor_id, origin, first_seq, end_seq, steps, skip, refused, checksum, frames"
                " FROM entries WHERE row = ?",
                (row,),
            ).fetchone()
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # none: Python can't decode a text
            if code & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            return None
        if found is None:
            return None
        *metadata, checksum, blob = found
        if type(blob) is not bytes or _checksum(tuple(metadata), blob) != checksum:
            return None
        return Entry(*(*metadata, _unpack(blob)))
