"""The rows of a journal: in memory, and in the tables of its file, with the operations on them; without threads or retries."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from rl4sys_zmq.delivery.journal import (
    ClientRow,
    CountSegmentsLostByJournal,
    DeleteCoveredEntries,
    DropClient,
    DropStream,
    JournalEntry,
    JournalPage,
    PageRequest,
    RetireActorStreams,
    StreamRow,
    Write,
)
from rl4sys_zmq.delivery.journal_marks import (
    ClientAndStreamRows,
    JournalMarksFileWriter,
    JournalRowChanges,
    RowKey,
    identity_of,
    stream_fields,
)
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.messages import Frame

log = get_logger(__name__)

SCHEMA_VERSION = 3
# SQLite would convert a larger sum to a float.
MOST_SUM = (1 << 63) - 1
# Old entries that are deleted in one transaction, at most.
TRIM_ROWS = 2_000
# Rows that one SQL statement inserts, at most. Each statement releases the GIL, and to acquire it again can take 5 ms.
INSERT_ROWS = 64

# The age at which a folder's modification time is reliable. File system times are coarse: a younger time can hide a second
# change right after the first one.
SETTLED_NS = 2_000_000_000

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


class JournalCache:
    """A copy in memory of a journal's records of clients and streams.

    The methods collect the changes of one transaction, and `commit` applies them. Sequence numbers never decrease.
    """

    def __init__(self, rows: ClientAndStreamRows) -> None:
        self.rows = rows  # committed clients and streams
        self.changes = JournalRowChanges()  # changes of the present transaction
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def commit(self) -> JournalRowChanges:
        """Apply the changes of the transaction to `rows`, begin a new transaction, and return the changes."""
        done, self.changes = self.changes, JournalRowChanges()
        done.apply_to(self.rows)
        return done

    def revert(self) -> None:
        """Discard the changes of the present transaction."""
        self.changes = JournalRowChanges()

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
        """Record new segments in the row of a stream. If there is no row, add one with the first sequence number `first_seq`.

        Args:
            key: The stream.
            first_seq: The first sequence number of a new stream.
            received: The next sequence number that the learner expects.
            steps: Number of steps of those new segments that were accepted.
            refused: Number of new segments that were refused.
        """
        known = self._stream(key) or StreamRow(*key, key[2], first_seq, 0, 0, 0, submits=True, spooled=False)
        marks = max(known.received, received), _sum(known.accepted_steps, steps), _sum(known.refused, refused)
        rest = known.submits, known.spooled, known.owner
        self.changes.streams[key] = StreamRow(*key, known.incarnation, known.first_seq, *marks, *rest)

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
    return min(a + b, MOST_SUM)


class JournalTables:
    """The SQLite tables of one journal. The caller begins and ends the transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db  # can be replaced by a connection to an identical copy of the file
        self._next_row = 1
        # clients and streams in memory. `apply` changes them, and writes each changed row to the table.
        self.cache = JournalCache(ClientAndStreamRows())
        self.damaged: set[int] = set()  # row numbers of the damaged entries that were found so far

    def create(self, known: ClientAndStreamRows) -> None:
        """Create the tables in an empty file, and store the given clients and streams."""
        for statement in (*_SCHEMA, f"PRAGMA user_version = {SCHEMA_VERSION}"):
            self.db.execute(statement)
        self.replace(known)

    def check_schema(self) -> None:
        """Raise sqlite3.DatabaseError if a table or index is missing or differs, such as by a flipped bit in a name."""
        stored = {text for (text,) in self.db.execute("SELECT sql FROM sqlite_master")}
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
        (count,) = self.db.execute(counted).fetchone()
        return rows, count - len(rows.clients) - len(rows.streams)

    def size(self) -> tuple[int, int]:
        """Return the size of all entries in bytes, and the row number of the last entry; 0 if there is none.

        The call reads only the two indexes of the entries. It raises sqlite3.DatabaseError if the indexes differ.
        """
        by_mark = (
            "SELECT count(actor_id), coalesce(sum(row), 0), coalesce(sum(nbytes), 0) FROM entries INDEXED BY entries_by_mark"
        )
        by_client = "SELECT count(client_id), coalesce(sum(row), 0) FROM entries INDEXED BY entries_by_client"
        *ours, used = self.db.execute(by_mark).fetchone()
        if ours != list(self.db.execute(by_client).fetchone()):
            raise sqlite3.DatabaseError("the two indexes of the entries differ")
        (last,) = self.db.execute("SELECT coalesce(max(row), 0) FROM entries").fetchone()
        return int(used), int(last)

    def _sound(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query that are not damaged, without their last column, the checksum."""
        for *values, checksum in self.db.execute(query):
            if checksum == _checksum(tuple(values), b""):
                yield tuple(values)

    def replace(self, known: ClientAndStreamRows) -> None:
        for table in ("meta", "clients", "streams"):
            self.db.execute(f"DELETE FROM {table}")
        lineages = [(f"lineage {journal_id}", 1) for journal_id in sorted(known.lineages)]
        self._put("meta", [("journal_id", known.journal_id), *lineages])
        self.cache = JournalCache(known)
        self._put("clients", map(self.cache.client_values, known.clients.values()))
        self._put("streams", map(self.cache.stream_values, known.streams.values()))

    def restore(self, known: ClientAndStreamRows, last_row: int) -> None:
        """Begin to write to an existing file that has the clients and streams in `known`, and entries up to row `last_row`."""
        self.cache = JournalCache(known)
        self._next_row = last_row + 1
        self._put("meta", [("journal_id", known.journal_id)])  # fails at once if the file cannot be written

    def sound_entries(self) -> Iterator[JournalEntry]:
        """Yield all undamaged entries in order. If a part of the file cannot be read, end there and log a warning."""
        try:
            rows = self.db.execute("SELECT row FROM entries NOT INDEXED ORDER BY row")
            for (row,) in rows:
                entry = self._entry(row)
                if entry is not None:
                    yield entry
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter if SQLite's message quotes a damaged name
            log.warning("no further entries of the damaged journal can be read: %s", error)

    def take_over(self, entries: Iterable[JournalEntry]) -> None:
        """Store entries from another file. Add those to the totals of their stream that the totals do not include."""
        for entry in entries:
            stream = self.cache.rows.streams.get((entry.client_id, entry.actor_id, entry.origin))
            if stream is not None and entry.end_seq <= stream.received:
                self._store([entry])
            else:
                self.apply([entry])
                self.cache.commit()

    def _put(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Insert or replace rows of a table, with their checksums, in few SQL statements."""
        self._insert_rows(f"REPLACE INTO {table}", [(*row, _checksum(row, b"")) for row in rows])

    def _insert_rows(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        for chunk in (rows[i : i + INSERT_ROWS] for i in range(0, len(rows), INSERT_ROWS)):
            places = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
            self.db.execute(f"{statement} VALUES {places}", [value for row in chunk for value in row])

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
                    key = operation.client_id, operation.actor_id, operation.origin
                    grown -= self._delete_entries(_OF_STREAM, *key)
                    self.db.execute(f"DELETE FROM streams WHERE {_OF_STREAM}", key)
                    self.cache.drop_stream(key, expires=operation.expires)
                case DropClient():
                    grown -= self._delete_entries("client_id = ?", operation.client_id)
                    if not operation.entries_only:
                        for table in ("streams", "clients"):
                            self.db.execute(f"DELETE FROM {table} WHERE client_id = ?", (operation.client_id,))
                        self.cache.drop_client(operation.client_id)
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

    def _delete_entries(self, where: str, *key: object) -> int:
        """Delete the entries of a client or of a stream. Return their size in bytes."""
        query = f"SELECT coalesce(sum(nbytes), 0) FROM entries INDEXED BY entries_by_mark WHERE {where}"
        (freed,) = self.db.execute(query, key).fetchone()
        self.db.execute(f"DELETE FROM entries WHERE {where}", key)
        return int(freed)

    def _trim(self, trim: DeleteCoveredEntries) -> tuple[int, list[DeleteCoveredEntries]]:
        """Delete at most `TRIM_ROWS` old entries. Return the number of bytes freed, and an operation for the rest, if any."""
        freed, room = 0, TRIM_ROWS
        for place, ((actor_id, origin), mark) in enumerate(trim.marks):
            key = (trim.client_id, actor_id, origin)
            old = self.db.execute(
                f"SELECT end_seq, nbytes FROM entries WHERE {_OF_STREAM} AND end_seq <= ? ORDER BY end_seq LIMIT ?",
                (*key, mark, room + 1),
            ).fetchall()
            end = old[room][0] - 1 if len(old) > room else mark
            gone = [nbytes for end_seq, nbytes in old if end_seq <= end]
            if gone:
                self.db.execute(f"DELETE FROM entries WHERE {_OF_STREAM} AND end_seq <= ?", (*key, end))
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
        rows = self.db.execute(
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
            columns = self.db.execute(
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


class JournalFile:
    """The open files of a journal: the SQLite file with its tables, and ``journal.marks``."""

    def __init__(self, path: Path, tables: JournalTables, marks: JournalMarksFileWriter) -> None:
        self.tables, self.marks = tables, marks
        self._path = path
        self._unmarked: list[JournalRowChanges] = []
        self.record_identities()

    def record_identities(self) -> None:
        """Record the inodes of the open files, so that `missing` detects a replaced file."""
        self._folder = 0, 0, 0
        self._identities = {name: identity_of(name) for name in (str(self._path), f"{self._path}-wal")}

    def close(self) -> None:
        self.marks.close()
        self.tables.db.close()

    def missing(self, *, thorough: bool = True) -> str:
        """Return the path of a deleted, moved or replaced file, or "". ``journal.marks`` is not checked.

        Without `thorough`, the files are checked only if their folder has changed.
        """
        folder = self._folder_now()
        if not thorough and folder == self._folder:  # each check of a file releases the GIL: to acquire it again can take 5 ms
            return ""
        for name, identity in self._identities.items():
            if identity is None or identity_of(name) != identity:
                return name
        # File system times are coarse: two changes within one tick look like one.
        self._folder = folder if time.time_ns() - folder[2] > SETTLED_NS else (0, 0, 0)
        return ""

    def _folder_now(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self._path.parent)
        except OSError:
            return 0, 0, 0
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def write(self, operations: Sequence[Write]) -> tuple[int, list[DeleteCoveredEntries]]:
        """Carry out operations in one transaction, with the results of `JournalTables.apply`."""
        db, cache = self.tables.db, self.tables.cache
        db.execute("BEGIN IMMEDIATE")
        try:
            result = self.tables.apply(operations)
            self.marks.drop(cache.changes)
            db.execute("COMMIT")
        except BaseException:
            cache.revert()
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # report the first error, not this one
                    db.execute("ROLLBACK")
            raise
        self._unmarked.append(cache.commit())
        return result

    def mark_commits(self) -> None:
        """Write the last commits to ``journal.marks``. After an error, the next call continues."""
        while self._unmarked:
            self.marks.note(self._unmarked[0])
            del self._unmarked[0]
