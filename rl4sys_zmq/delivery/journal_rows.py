"""The SQLite tables of a journal and the operations on them, without threads, files or retries."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import xxhash

from rl4sys_zmq.delivery.journal import ClientRow, JournalEntry, JournalPage, StreamRow
from rl4sys_zmq.delivery.journal_cache import (
    ClientAndStreamRows,
    CountSegmentsLostByJournal,
    DeleteCoveredEntries,
    DropClient,
    DropClientEntries,
    DropStream,
    JournalCache,
    PageRequest,
    RetireActorStreams,
    Write,
)
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.messages import Frame

log = get_logger(__name__)

SCHEMA_VERSION = 3
# Old entries that are deleted in one transaction, at most.
TRIM_ROWS = 2_000
# Rows that one SQL statement inserts, at most. Each statement releases the GIL, and to acquire it again can take 5 ms.
INSERT_ROWS = 64

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE clients (client_id TEXT PRIMARY KEY, generation INTEGER NOT NULL, settings TEXT NOT NULL,"
    " accepted INTEGER NOT NULL, refused INTEGER NOT NULL, gap INTEGER NOT NULL, expired INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE streams (client_id TEXT, actor_id TEXT, origin INTEGER, incarnation INTEGER NOT NULL,"
    " first_seq INTEGER NOT NULL, received INTEGER NOT NULL, accepted_steps INTEGER NOT NULL, refused INTEGER NOT NULL,"
    " submits INTEGER NOT NULL, spooled INTEGER NOT NULL, owner TEXT NOT NULL, checksum INTEGER NOT NULL,"
    " PRIMARY KEY (client_id, actor_id, origin)) WITHOUT ROWID",
    "CREATE TABLE entries (row INTEGER PRIMARY KEY, client_id TEXT NOT NULL, actor_id TEXT NOT NULL, origin INTEGER NOT NULL,"
    " first_seq INTEGER NOT NULL, end_seq INTEGER NOT NULL, steps INTEGER NOT NULL, skip INTEGER NOT NULL,"
    " refused INTEGER NOT NULL, nbytes INTEGER NOT NULL, checksum INTEGER NOT NULL, frames BLOB NOT NULL)",
    "CREATE INDEX entries_by_mark ON entries (client_id, actor_id, origin, end_seq, nbytes)",
    "CREATE INDEX entries_by_client ON entries (client_id)",
)
_OF_STREAM = "client_id = ? AND actor_id = ? AND origin = ?"


def _pack(frames: Sequence[Frame]) -> bytes:
    lengths = [f.nbytes if isinstance(f, memoryview) else len(f) for f in frames]
    return b"".join((struct.pack(f"<I{len(frames)}Q", len(frames), *lengths), *frames))


def _unpack(blob: bytes) -> tuple[bytes, ...]:
    # Each frame is a copy: columns need aligned addresses, and a slice of the blob can start at any address.
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


class JournalTables:
    """The SQLite tables of one journal. The caller begins and ends the transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._next_row = 1
        # clients and streams in memory. `apply` changes them, and writes each changed row to the table.
        self.cache = JournalCache(ClientAndStreamRows())
        self.damaged: set[int] = set()  # row numbers of the damaged entries that were found so far

    def create(self, known: ClientAndStreamRows) -> None:
        """Create the tables in an empty file, and store the given clients and streams."""
        for statement in _SCHEMA:
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self.replace(known)

    def check_schema(self) -> None:
        """Raise sqlite3.DatabaseError if a table or index is missing or differs, such as by a flipped bit in a name."""
        stored = {text for (text,) in self._db.execute("SELECT sql FROM sqlite_master")}
        for statement in _SCHEMA:
            if statement not in stored:
                raise sqlite3.DatabaseError(f"its definition of {' '.join(statement.split()[1:3])} is damaged")

    def known(self) -> tuple[ClientAndStreamRows, int]:
        """Read the clients and streams. Return them, and the number of damaged rows, which are left out. A damaged id is 0."""
        meta = dict(self._sound("SELECT * FROM meta"))
        lineages = {int(key.removeprefix("lineage ")) for key in meta if key.startswith("lineage ")}
        rows = ClientAndStreamRows(meta.get("journal_id", 0), lineages)
        for client_id, generation, settings, *totals in self._sound("SELECT * FROM clients"):
            rows.clients[client_id] = ClientRow(client_id, generation, dict(json.loads(settings)), *totals)
        for *numbers, submits, spooled, owner in self._sound("SELECT * FROM streams"):
            row = StreamRow(*(*numbers, bool(submits), bool(spooled), owner))
            rows.streams[row.client_id, row.actor_id, row.origin] = row
        counted = "SELECT (SELECT count(*) FROM clients) + (SELECT count(*) FROM streams)"
        (count,) = self._db.execute(counted).fetchone()
        return rows, count - len(rows.clients) - len(rows.streams)

    def size(self) -> tuple[int, int]:
        """Return the size of all entries in bytes, and the row number of the last entry; 0 if there is none.

        The call reads only the two indexes of the entries. It raises sqlite3.DatabaseError if the indexes differ.
        """
        by_mark = (
            "SELECT count(actor_id), coalesce(sum(row), 0), coalesce(sum(nbytes), 0) FROM entries INDEXED BY entries_by_mark"
        )
        by_client = "SELECT count(client_id), coalesce(sum(row), 0) FROM entries INDEXED BY entries_by_client"
        *ours, used = self._db.execute(by_mark).fetchone()
        if ours != list(self._db.execute(by_client).fetchone()):
            raise sqlite3.DatabaseError("the two indexes of the entries differ")
        (last,) = self._db.execute("SELECT coalesce(max(row), 0) FROM entries").fetchone()
        return int(used), int(last)

    def _sound(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query that are not damaged, without their last column, the checksum."""
        for *values, checksum in self._db.execute(query):
            if checksum == _checksum(tuple(values), b""):
                yield tuple(values)

    def replace(self, known: ClientAndStreamRows) -> None:
        for table in ("meta", "clients", "streams"):
            self._db.execute(f"DELETE FROM {table}")
        lineages = [(f"lineage {journal_id}", 1) for journal_id in sorted(known.lineages)]
        self._put("meta", [("journal_id", known.journal_id), *lineages])
        self.cache = JournalCache(known)
        self._put("clients", map(self.cache.client_values, known.clients.values()))
        self._put("streams", map(self.cache.stream_values, known.streams.values()))

    def restore(self, known: ClientAndStreamRows, last_row: int) -> None:
        """Prepare for writing to an existing file with these clients and streams, and entries up to `last_row`."""
        self.cache = JournalCache(known)
        self._next_row = last_row + 1
        self._put("meta", [("journal_id", known.journal_id)])  # fails at once if the file cannot be written

    def sound_entries(self) -> Iterator[JournalEntry]:
        """Yield all undamaged entries in order. If a part of the file cannot be read, end there and log a warning."""
        try:
            rows = self._db.execute("SELECT row FROM entries NOT INDEXED ORDER BY row")
            for (row,) in rows:
                entry = self._entry(row)
                if entry is not None:
                    yield entry
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter if SQLite's message quotes a damaged name
            log.warning("no further entries of the damaged journal can be read: %s", error)

    def take_over(self, entries: Iterable[JournalEntry]) -> None:
        """Store entries from another file. Add to the totals of a stream those entries that the totals do not include so far."""
        for entry in entries:
            stream = self.cache.rows.streams.get((entry.client_id, entry.actor_id, entry.origin))
            if stream is not None and entry.end_seq <= stream.received:
                self._store([entry])
            else:
                self.apply([entry])
                self.cache.commit()

    def use_connection(self, connection: sqlite3.Connection) -> None:
        """Use another connection from now on, to an identical copy of the file."""
        self._db = connection

    def _put(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Insert or replace rows of a table, with their checksums, in few SQL statements."""
        self._insert_rows(f"REPLACE INTO {table}", [(*row, _checksum(row, b"")) for row in rows])

    def _insert_rows(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        for chunk in (rows[i : i + INSERT_ROWS] for i in range(0, len(rows), INSERT_ROWS)):
            places = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
            self._db.execute(f"{statement} VALUES {places}", [value for row in chunk for value in row])

    def apply(self, operations: Sequence[Write]) -> tuple[int, list[DeleteCoveredEntries]]:
        """Carry out operations in order, within the present transaction. Then call ``cache.commit`` or ``cache.revert``.

        Return the growth of all entries in bytes, which can be negative, and operations for old entries that are left to
        delete.
        """
        grown, left, run = 0, [], []
        for operation in operations:
            if isinstance(operation, JournalEntry):
                run.append(operation)
                continue
            grown += self._insert(run)
            run = []
            match operation:
                case ClientRow():
                    self.cache.put_client(operation)
                case StreamRow():
                    self.cache.put_stream(operation)
                case CountSegmentsLostByJournal():
                    self.cache.add_to_client(operation.client_id, operation.count, 0, operation.count)
                    if operation.stream is not None:
                        self.cache.put_stream(operation.stream)
                case DropStream():
                    grown -= self._drop(operation)
                case DropClient():
                    grown -= self._drop_entries(operation.client_id)
                    self._db.execute("DELETE FROM streams WHERE client_id = ?", (operation.client_id,))
                    self._db.execute("DELETE FROM clients WHERE client_id = ?", (operation.client_id,))
                    self.cache.drop_client(operation.client_id)
                case DropClientEntries():
                    grown -= self._drop_entries(operation.client_id)
                case RetireActorStreams():
                    self.cache.retire_actor(operation.client_id, operation.actor_id)
                case DeleteCoveredEntries():
                    freed, rest = self._trim(operation)
                    grown -= freed
                    left.extend(rest)
        grown += self._insert(run)
        changes = self.cache.changes
        self._put("clients", map(self.cache.client_values, changes.clients.values()))
        self._put("streams", map(self.cache.stream_values, changes.streams.values()))
        return grown, left

    def _insert(self, entries: Sequence[JournalEntry]) -> int:
        """Store entries, and add them to the totals of their streams and clients. Return their size in bytes."""
        if not entries:
            return 0
        grown = self._store(entries)
        streams: dict[tuple[str, str, int], list[int]] = {}
        clients: dict[str, list[int]] = {}
        for e in entries:
            stream = streams.setdefault((e.client_id, e.actor_id, e.origin), [e.first_seq, 0, 0, 0])
            stream[1] = max(stream[1], e.end_seq)
            stream[2] += e.steps
            stream[3] += e.refused
            client = clients.setdefault(e.client_id, [0, 0])
            client[0] += e.accepted
            client[1] += e.refused
        for key, (first, received, steps, refused) in streams.items():
            self.cache.add_to_stream(key, first, received, steps, refused)
        for client_id, (accepted, refused) in clients.items():
            self.cache.add_to_client(client_id, accepted, refused, 0)
        return grown

    def _store(self, entries: Sequence[JournalEntry]) -> int:
        rows: list[Sequence[object]] = []
        grown = 0
        for e in entries:
            blob = _pack(e.frames)
            metadata = (e.client_id, e.actor_id, e.origin, e.first_seq, e.end_seq, e.steps, e.skip, e.refused)
            rows.append((self._next_row, *metadata, len(blob), _checksum(metadata, blob), blob))
            self._next_row += 1
            grown += len(blob)
        self._insert_rows("INSERT INTO entries", rows)
        return grown

    def _drop(self, drop: DropStream) -> int:
        key = (drop.client_id, drop.actor_id, drop.origin)
        (freed,) = self._db.execute(f"SELECT coalesce(sum(nbytes), 0) FROM entries WHERE {_OF_STREAM}", key).fetchone()
        self._db.execute(f"DELETE FROM entries WHERE {_OF_STREAM}", key)
        self._db.execute(f"DELETE FROM streams WHERE {_OF_STREAM}", key)
        self.cache.drop_stream(key, expires=drop.expires)
        return int(freed)

    def _drop_entries(self, client_id: str) -> int:
        (freed,) = self._db.execute(
            "SELECT coalesce(sum(nbytes), 0) FROM entries INDEXED BY entries_by_mark WHERE client_id = ?", (client_id,)
        ).fetchone()
        self._db.execute("DELETE FROM entries WHERE client_id = ?", (client_id,))
        return int(freed)

    def _trim(self, trim: DeleteCoveredEntries) -> tuple[int, list[DeleteCoveredEntries]]:
        """Delete at most `TRIM_ROWS` old entries. Return the number of bytes freed, and an operation for the rest, if any."""
        freed, room = 0, TRIM_ROWS
        for place, ((actor_id, origin), mark) in enumerate(trim.marks):
            key = (trim.client_id, actor_id, origin)
            old = self._db.execute(
                f"SELECT end_seq, nbytes FROM entries WHERE {_OF_STREAM} AND end_seq <= ? ORDER BY end_seq LIMIT ?",
                (*key, mark, room + 1),
            ).fetchall()
            end = old[room][0] - 1 if len(old) > room else mark
            gone = [nbytes for end_seq, nbytes in old if end_seq <= end]
            if gone:
                self._db.execute(f"DELETE FROM entries WHERE {_OF_STREAM} AND end_seq <= ?", (*key, end))
                freed += sum(gone)
            if len(old) > room:
                return freed, [DeleteCoveredEntries(trim.client_id, trim.marks[place:])]
            room -= len(old)
        return freed, []

    def page(self, request: PageRequest) -> JournalPage:
        """Read a page of a client's entries. The page does not contain damaged entries, but their number."""
        entries: list[JournalEntry] = []
        last, size, damaged, more = request.after_row, 0, 0, False
        # This query reads only the index, so that a damaged page of the table loses only its own entries.
        rows = self._db.execute(
            "SELECT row FROM entries INDEXED BY entries_by_client WHERE client_id = ? AND row > ? ORDER BY row",
            (request.client_id, request.after_row),
        )
        for (row,) in rows:
            entry = self._entry(row)
            if entry is None:
                damaged += 1
                self.damaged.add(row)
            elif entries and size + entry.nbytes > request.max_bytes:
                more = True
                break
            else:
                entries.append(entry)
                size += entry.nbytes
            last = row
        rows.close()
        return JournalPage(request.client_id, request.token, tuple(entries), last, more, damaged)

    def _entry(self, row: int) -> JournalEntry | None:
        """Read the entry with a row number. Return None if there is no such row, or if it is damaged."""
        try:
            columns = self._db.execute(
                "SELECT client_id, actor_id, origin, first_seq, end_seq, steps, skip, refused, checksum, frames"
                " FROM entries WHERE row = ?",
                (row,),
            ).fetchone()
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # without a code: Python cannot decode a text
            if code & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            return None
        if columns is None:
            return None
        *metadata, checksum, blob = columns
        if type(blob) is not bytes or _checksum(tuple(metadata), blob) != checksum:
            return None
        return JournalEntry(*(*metadata, _unpack(blob)))
