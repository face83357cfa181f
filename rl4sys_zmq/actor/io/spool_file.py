"""The database file of a spool: a row for each segment and a *document* with the counts, all with checksums; and a lock."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import os
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from rl4sys_zmq.actor.segments import QueuedSegmentInfo
from rl4sys_zmq.errors import ProtocolError, SpoolError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import make_private
from rl4sys_zmq.resource import call_in_child
from rl4sys_zmq.wire import PackedSegment
from rl4sys_zmq.wire.frames import pack_header, unpack_header
from rl4sys_zmq.wire.segments import head_struct

log = get_logger(__name__)

SCHEMA = 2
FLUSH_BYTES = 8 << 20
"""The size after which a transaction stops inserting segments, so that many in memory cause no long pause."""
KEEP_DAMAGED = 3
_APPLICATION_ID = 0x52345350  # R4SP
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PREFIX = struct.Struct("<QI")
_U64 = 1 << 64
_NO_FLAGS = 0x81
"""The flags in the header of a placeholder segment. A real segment never has them."""
_TABLES = """
CREATE TABLE rows (id INTEGER PRIMARY KEY, steps INTEGER NOT NULL, generation INTEGER NOT NULL, oldest_version INTEGER NOT NULL,
                   nbytes INTEGER NOT NULL, put_at REAL NOT NULL, record BLOB NOT NULL);
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), document BLOB NOT NULL, checksum BLOB NOT NULL);
"""


class SpoolDamagedError(Exception):
    """The error for a spool file with inconsistent contents."""


@dataclass(frozen=True)
class SpoolMeta:
    """The document of a spool, the only row of the table ``meta``: the names and counts that belong to its segments.

    Attributes:
        sure_from: The lowest id of the rows that were added after the start, which the learner cannot have received. None: the
            learner can have received any row.
    """

    client_id: str
    actor_id: str
    origin: int  # incarnation at which the sequence numbers began
    incarnation: int
    journal_id: int = 0  # identifier of the journal of the learner that the actor last joined, 0 before the first
    base_seq: int = 0  # sequence number of the oldest segment, or of the next segment if the spool is empty
    rows: int = 0  # number of rows. It reveals a lost row, which would change the sequence numbers of the rows after it
    next_id: int = 1  # id of the next row. Ids increase, and an id is not reused while its row exists
    sure_from: int | None = None
    evicted: tuple[tuple[str, int], ...] = ()  # (reason, count) of dropped rows that the learner can have received, oldest first
    submitted: int = 0  # number of segments added since the spool was created
    dropped: dict[str, int] = field(default_factory=dict)  # number of segments dropped since then, by reason


@dataclass(slots=True, eq=False)
class SpoolEntry:
    """The record of one segment in a spool, whose contents are in the file or so far only in memory."""

    id: int  # id of the segment's row
    head: QueuedSegmentInfo
    put_at: float  # Unix time at which the segment was added, in seconds
    packed: PackedSegment | None  # encoded segment while it is only in memory. None once it is in the file


class SpoolFile:
    """The database file ``DIR/spool.db``, guarded by ``DIR/lock``. One thread uses it at a time."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder, which is created if it does not exist. The database is not opened."""
        self.path = folder / "spool.db"
        self._connection: sqlite3.Connection | None = None
        self._lock = _lock(folder)
        call_in_child(self, SpoolFile.abandon)

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> SpoolMeta | None:
        """Open the database, and return the names and counts that it stores (`SpoolMeta`). If it is new, return None."""
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            pragmas = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL", f"journal_size_limit={FLUSH_BYTES}")
            for pragma in (*pragmas, "temp_store=MEMORY"):  # a machine can have no folder for temporary files
                connection.execute(f"PRAGMA {pragma}").fetchall()
            meta = _read_meta(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return meta

    def entries(self, meta: SpoolMeta) -> list[SpoolEntry]:
        """Return an entry for each row of the file, oldest first. The segments themselves stay in the file."""
        query = "SELECT id, steps, generation, oldest_version, nbytes, put_at FROM rows"
        entries = []
        # All at once: an open cursor would prevent the file from being closed.
        for row_id, steps, generation, oldest, nbytes, put_at in self._opened().execute(query).fetchall():
            numbers = (row_id, steps, nbytes, generation, oldest)
            if any(type(n) is not int for n in numbers) or min(numbers[:3]) < 0 or type(put_at) is not float:
                raise SpoolDamagedError(f"row {row_id!r} has invalid numbers")
            entries.append(SpoolEntry(row_id, QueuedSegmentInfo(generation % _U64, oldest % _U64, steps, nbytes), put_at, None))
        ids = [e.id for e in entries]
        if len(ids) != meta.rows or any(a >= b for a, b in itertools.pairwise(ids)) or (ids and not 0 < ids[-1] < meta.next_id):
            raise SpoolDamagedError(f"its {len(ids)} rows are not the {meta.rows} that were written")
        if meta.submitted != sum(meta.dropped.values()) + meta.base_seq + meta.rows:
            raise SpoolDamagedError("its counts do not add up")
        return entries

    def write(
        self,
        meta: SpoolMeta,
        first_id: int,
        deleted: Sequence[SpoolEntry] = (),
        inserted: Sequence[SpoolEntry] = (),
        shift: tuple[int, int] = (0, 0),
    ) -> None:
        """Change the file in one transaction. The file has one row for each segment.

        Args:
            meta: The names and counts to store.
            first_id: Rows with lower ids are deleted.
            deleted: Consecutive rows to delete.
            inserted: Rows to add or replace.
            shift: ``(id, count)``: the ids of all rows above `id` become larger by `count`.
        """
        connection = self._opened()
        document = json.dumps(vars(meta), separators=(",", ":")).encode()
        with connection:  # commits, or rolls back after an error
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM rows WHERE id < ?", (first_id,))
            if deleted:
                connection.execute("DELETE FROM rows WHERE id BETWEEN ? AND ?", (deleted[0].id, deleted[-1].id))
            if shift[1]:  # in two steps, because ids must be unique at every moment
                connection.execute("UPDATE rows SET id = -id - ? WHERE id > ?", (shift[1], shift[0]))
                connection.execute("UPDATE rows SET id = -id WHERE id < 0")
            if inserted:
                connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", map(_row, inserted))
            connection.execute("INSERT OR REPLACE INTO meta VALUES (1, ?, ?)", (document, _checksum(document)))

    def read_segments(self, entries: Sequence[SpoolEntry]) -> list[PackedSegment | None]:
        """Return the segments of consecutive entries, with None in place of each damaged segment."""
        stored = [e.id for e in entries if e.packed is None]
        records: dict[int, bytes] = {}
        if stored:
            span = (stored[0], stored[-1])
            try:
                records.update(self._opened().execute("SELECT id, record FROM rows WHERE id BETWEEN ? AND ?", span))
            except sqlite3.Error as exc:
                if not is_damage(exc):
                    raise
                records = self._read_singly(stored)
        return [e.packed if e.packed is not None else _unpack(records.get(e.id, b""), e.head) for e in entries]

    def move_aside(self, stamp: int) -> str:
        """Close the damaged file, rename it, and return its new name. Only the newest `KEEP_DAMAGED` damaged files are kept."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        aside = f"{self.path.name}.damaged-{stamp}"
        for suffix in ("", "-wal"):
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                source.rename(self.path.with_name(aside + suffix))
        old = sorted(p for p in self.path.parent.glob(f"{self.path.name}.damaged-*") if not p.name.endswith("-wal"))
        for path in old[:-KEEP_DAMAGED]:
            path.unlink(missing_ok=True)
            path.with_name(path.name + "-wal").unlink(missing_ok=True)
        return aside

    def abandon(self) -> None:
        """Stop using the parent's file and lock in a forked child, without changing them."""
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))  # never closed: that would write to the parent's file
            self._connection = None
        self.close()

    def close(self) -> None:
        """Close the database and release the lock. An error of the database is only logged."""
        connection, self._connection = self._connection, None
        lock, self._lock = self._lock, -1
        try:
            if connection is not None:
                connection.close()
        except sqlite3.Error as exc:
            log.warning("%s: %s", self.path, exc)
        finally:
            if lock >= 0:
                os.close(lock)

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _read_singly(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Read rows one by one, after sqlite has found damage. Return the readable records by row id."""
        records: dict[int, bytes] = {}
        for row_id in ids:
            try:
                records.update(self._opened().execute("SELECT id, record FROM rows WHERE id = ?", (row_id,)))
            except sqlite3.Error as exc:
                log.debug("row %d: %s", row_id, exc)
        return records


def _lock(folder: Path) -> int:
    path = folder / "lock"
    try:
        make_private(folder)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise SpoolError(f"the spool folder {folder} can't be used: {exc}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as exc:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise SpoolError(f"the spool {folder} is in use by process {holder or '?'} (see {path}); use another folder") from exc
    except OSError as exc:
        os.close(descriptor)
        raise SpoolError(f"{path} can't be locked: {exc}; use a folder on a local disk") from exc
    return descriptor


def _read_meta(connection: sqlite3.Connection, path: Path) -> SpoolMeta | None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if not tables:
        create = f"BEGIN; {_TABLES} PRAGMA application_id={_APPLICATION_ID}; PRAGMA user_version={SCHEMA}; COMMIT;"
        connection.executescript(create)
        return None
    if application != _APPLICATION_ID:
        raise SpoolError(f"{path} is another program's database; use another folder")
    if schema != SCHEMA:
        raise SpoolError(f"the spool {path} has format {schema}; this version reads {SCHEMA}; use the version that wrote it")
    if tables != {"rows", "meta"}:
        raise SpoolDamagedError(f"its tables are {sorted(tables)}, not meta and rows")
    stored = connection.execute("SELECT document, checksum FROM meta").fetchone()
    if stored is None:
        if connection.execute("SELECT 1 FROM rows").fetchone() is not None:
            raise SpoolDamagedError("it has rows but no document")
        return None  # the process that created it ended before it recorded its start
    document, checksum = stored
    if type(document) is not bytes or checksum != _checksum(document):
        raise SpoolDamagedError("the checksum of its document does not match")
    form = json.loads(document)
    return SpoolMeta(**{**form, "evicted": tuple((reason, count) for reason, count in form["evicted"])})


def _checksum(document: bytes) -> bytes:
    return xxhash.xxh3_64_digest(document)


def is_damage(exc: Exception) -> bool:
    """Return True if an error means that the file is damaged, False if it means that the disk fails."""
    return not isinstance(exc, sqlite3.Error) or getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _row(entry: SpoolEntry) -> tuple[int, int, int, int, int, float, bytes]:
    head, p = entry.head, entry.packed
    record = b"" if p is None else _pack(p)
    return entry.id, head.steps, _i64(head.generation), _i64(head.oldest_version), head.nbytes, entry.put_at, record


def _i64(number: int) -> int:
    """Return the signed integer with the same bits as an unsigned one, because SQLite has only signed integers."""
    return number - _U64 if number >= _U64 >> 1 else number


def _pack(p: PackedSegment) -> bytes:
    """Encode a segment as a record: a checksum of the rest, the header's length, the header, and the columns."""
    numbers = [p.steps, p.generation, p.oldest_version, p.nbytes]
    head = pack_header([p.layout, p.head, *numbers, [len(s) for s in p.small], [len(f) for f in p.large], list(p.digests)])
    body = b"".join((_PREFIX.pack(0, len(head))[8:], head, *p.small, *p.large))
    return xxhash.xxh3_64_digest(body) + body


def _unpack(record: bytes, expected: QueuedSegmentInfo) -> PackedSegment | None:
    """Decode a record. Return None if its checksum is wrong or the segment does not have the properties `expected`."""
    view = memoryview(record)
    if len(view) < _PREFIX.size or xxhash.xxh3_64_digest(view[8:]) != record[:8]:
        return None
    try:
        start = _PREFIX.size + _PREFIX.unpack_from(view)[1]
        layout, segment, steps, generation, oldest, nbytes, small, large, digests = unpack_header(view[_PREFIX.size : start])
        ends = list(itertools.accumulate([*small, *large], initial=start))
    except (ProtocolError, TypeError, ValueError):
        return None
    if ends[-1] != len(view) or QueuedSegmentInfo(generation, oldest, steps, nbytes) != expected:
        return None
    parts = [view[a:b] for a, b in itertools.pairwise(ends)]
    copied = tuple(map(bytes, parts[: len(small)]))
    frames, known = tuple(parts[len(small) :]), tuple(digests)
    return PackedSegment(layout, segment, copied, frames, known, steps, generation, oldest, nbytes)


def placeholder() -> PackedSegment:
    """Return an empty segment that takes the sequence number of a lost one. Its flags make the learner refuse it."""
    head = head_struct.pack(0, 0, 0, 0, 0.0, 0, 0, 0, _NO_FLAGS, 0, 0)
    return PackedSegment("o<f4 a<f4 r<f4 l<f4 v<u8", head, (b"",) * 5, (), (), 0, 0, 0, 0)
