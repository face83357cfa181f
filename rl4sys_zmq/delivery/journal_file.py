"""The SQLite file of a journal: lock it, detect damaged or lost data, repair or replace it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rl4sys_zmq.delivery.journal import new_journal_id
from rl4sys_zmq.delivery.journal_marks import (
    ClientAndStreamRows,
    JournalLoss,
    JournalMarksFileWriter,
    JournalStateInCheckpoint,
    find_loss,
    identity_of,
    marks_path,
    merge,
    read_marks,
)
from rl4sys_zmq.delivery.journal_rows import SCHEMA_VERSION, JournalFile, JournalTables
from rl4sys_zmq.errors import JournalError, JournalLost
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import create_private, make_private, sync_folder
from rl4sys_zmq.resource import Resource, call_in_child

log = get_logger(__name__)


class JournalLock(Resource):
    """The lock that excludes other processes from a journal: an ``flock`` on the file with the suffix ``.lock``.

    The lock file stays after `close`. If it were removed, two processes could each hold a lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._acquire()
        call_in_child(self, JournalLock.abandon)

    def renew(self) -> None:
        """Take the lock again, on a new lock file, if the old file was removed or replaced."""
        if identity_of(f"{self._path}.lock") != identity_of(self._file):
            file = self._acquire()
            self.close()
            self._file = file

    def abandon(self) -> None:
        """Close the lock file in a forked child. The parent process keeps the lock, and only its end releases the lock."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def close(self) -> None:
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # needed because a child of a fork in C can still have the descriptor
        self.abandon()

    def _acquire(self) -> int:
        lock = f"{self._path}.lock"
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(
                str(self._path), f"{lock} cannot be created ({error.strerror})", "create its folder, and make it writable"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise JournalError(
                str(self._path), f"is in use by another learner (it holds {lock})", "stop that learner, or use another path"
            ) from error
        return fd


Fsync = Literal["normal", "always"]
Connect = Callable[[Path], sqlite3.Connection]

# Messages are long, so larger pages reduce SQLite's overhead.
PAGE_BYTES = 16_384
# The size of the write-ahead log at which SQLite moves its content to the main file. A lost log file loses as much.
CHECKPOINT_BYTES = 4 << 20


def connect(path: Path) -> sqlite3.Connection:
    """Open an SQLite connection without automatic transactions."""
    return sqlite3.connect(path, timeout=0.0, isolation_level=None)


@dataclass(frozen=True, slots=True)
class JournalLossRules:
    """The rules for opening a journal: how a loss of data is found, and whether it is accepted."""

    # True to continue without the missing data, which is then counted as lost. False to raise `JournalLost`.
    accept_loss: bool = False
    # information about the journal in the newest checkpoints. A comparison with it detects missing data.
    witnesses: Sequence[JournalStateInCheckpoint] = ()
    # advice to the user in the error message
    remedy: str = "restore the files, or move all of them away, including journal.marks, to start a new journal"


NO_RECOVERY = JournalLossRules()


@dataclass(frozen=True, slots=True)
class JournalOpenOptions:
    """The parameters for opening a journal's file: those of `DiskJournal`."""

    path: Path
    fsync: Fsync = "normal"
    connect: Connect = connect
    recovery: JournalLossRules = NO_RECOVERY


def open_journal_file(opening: JournalOpenOptions) -> tuple[JournalFile, JournalInspection]:
    """Open a journal for writing. The caller holds its lock."""
    path = opening.path
    try:
        inspection = _examine(opening)
        if inspection.broken:
            rebuild(path, inspection)
        elif inspection.loss and inspection.is_new:
            put_aside(path, "damaged")
        return _open(opening, inspection), inspection
    except (sqlite3.OperationalError, OSError) as error:
        problem = f"cannot be opened and written ({error})"
        raise JournalError(str(path), problem, "check its permissions, free disk space, and other programs using it") from error
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: object) -> JournalError:
    """Return the error for a journal's file that is damaged and that ``journal.marks`` cannot repair."""
    remedy = "move it and its -wal file away to start a new journal, or restore a copy"
    return JournalError(str(path), f"is not a journal, or is damaged ({error})", remedy)


@dataclass(slots=True)
class JournalInspection:
    """The findings about a journal's file before it is opened for writing."""

    # clients and streams that the journal will have after it is opened
    known: ClientAndStreamRows = field(default_factory=ClientAndStreamRows)
    is_new: bool = False  # True if there is no journal at the path
    used_bytes: int = 0  # size of all entries when the journal was opened, in bytes
    broken: str = ""  # reason why the file cannot be read; empty if it can be read
    rewrite: bool = False  # True if the clients and streams in the file differ from `known` and must be written again
    repaired: int = 0  # number of damaged rows that were restored from ``journal.marks``
    loss: JournalLoss | None = None  # missing data, if the operator accepts the loss


def _examine(opening: JournalOpenOptions) -> JournalInspection:
    """Read a journal's file, and compare it with ``journal.marks`` and the newest checkpoints. No file is changed."""
    path, recovery = opening.path, opening.recovery
    remembered, bad_lines = read_marks(marks_path(path))
    if bad_lines:
        log.warning("%s: %d lines are damaged and are ignored", marks_path(path), bad_lines)
    inspection = inspect(path)
    if inspection.repaired:
        _repair(path, inspection, remembered)
    usable = None if inspection.is_new or inspection.broken else inspection.known
    loss = find_loss(usable, remembered, recovery.witnesses)
    if inspection.broken and not loss and not recovery.accept_loss:
        raise damaged(path, inspection.broken)
    if loss or inspection.broken:
        _report_loss(opening, inspection, loss)
        inspection.loss, inspection.rewrite = loss, True
        inspection.known = merge(usable or ClientAndStreamRows(remembered.journal_id), remembered, recovery.witnesses)
    inspection.known.journal_id = inspection.known.journal_id or new_journal_id()
    return inspection


def _report_loss(opening: JournalOpenOptions, inspection: JournalInspection, loss: JournalLoss) -> None:
    path = opening.path
    if inspection.broken:
        what = f"is damaged ({inspection.broken})"
    elif inspection.is_new:
        what = "is missing or empty" if loss.whole else "is missing, but there are checkpoints"
    elif loss.unknown_lineages:
        what = "is not the one of the checkpoints, or of journal.marks in the same folder"
    else:
        what = "lacks segments that were acknowledged"
    problem = f"{what}: {loss.words()}"
    if not opening.recovery.accept_loss:
        raise JournalLost(str(path), problem, opening.recovery.remedy, loss.segments)
    log.warning("%s %s; the loss is accepted (resume: accept-loss)", path, problem)


def inspect(path: Path) -> JournalInspection:
    """Examine a journal's file and its write-ahead log without changing them."""
    if not path.exists() or not path.stat().st_size:
        return JournalInspection(is_new=True)
    try:
        with read_only(path) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                return JournalInspection(is_new=True)
            if version != SCHEMA_VERSION:
                problem = f"is a database with the schema version {version}; this version of rl4sys_zmq expects {SCHEMA_VERSION}"
                remedy = "open it with the version that wrote it, or move it away to start a new one"
                raise JournalError(str(path), problem, remedy)
            tables = JournalTables(db)
            tables.check_schema()
            known, bad = tables.known()
            tables.size()  # detects damage
            return JournalInspection(known, repaired=bad + (not known.journal_id))
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        # SQLite reports a missing table and a failing disk both as an OperationalError. A missing table is damage.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
            raise
        return JournalInspection(broken=str(error))


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an SQLite connection that changes neither the file nor its write-ahead log, not even when it is closed."""
    index, shared = Path(f"{path}-shm"), os.path.exists(f"{path}-shm")
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0.0, isolation_level=None, uri=True)
    try:
        db.execute("PRAGMA temp_store = MEMORY")
        db.text_factory = lambda text: text.decode(errors="replace")
        yield db
    finally:
        db.close()
        if not shared:
            index.unlink(missing_ok=True)


def _repair(path: Path, inspection: JournalInspection, remembered: ClientAndStreamRows) -> None:
    """Replace damaged rows by their copies from ``journal.marks``. If a damaged row has no copy, set ``inspection.broken``."""
    known = inspection.known
    if remembered.journal_id and known.journal_id in (0, remembered.journal_id):
        filled = int(not known.journal_id)
        known.journal_id = remembered.journal_id
        for client_id, row in remembered.clients.items():
            filled += known.clients.setdefault(client_id, row) is row
        for key, stream in remembered.streams.items():
            filled += known.streams.setdefault(key, stream) is stream
        if filled >= inspection.repaired:
            inspection.rewrite = True
            log.error("%s: %d damaged rows are restored from %s", path, inspection.repaired, marks_path(path))
            return
    inspection.broken, inspection.repaired = f"{inspection.repaired} rows of clients and streams do not match their checksums", 0


def _open(opening: JournalOpenOptions, inspection: JournalInspection) -> JournalFile:
    path = marks_path(opening.path)
    create_private(opening.path)  # SQLite creates its other files with the same mode
    db = opening.connect(opening.path)
    try:
        configure(db, opening.fsync)
        tables = JournalTables(db)
        db.execute("BEGIN IMMEDIATE")
        if inspection.is_new:
            tables.create(inspection.known)
        elif inspection.rewrite and not inspection.broken:
            tables.replace(inspection.known)
        inspection.used_bytes, last_row = tables.size()
        tables.restore(inspection.known, last_row)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if inspection.is_new:
            sync_folder(opening.path.parent)
        if not path.exists() and inspection.known.clients and not inspection.loss:
            log.warning("%s is missing; it is written again from the journal", path)
        marks = JournalMarksFileWriter(path, tables.cache.rows, flush=opening.fsync == "always")
    except BaseException:
        db.close()
        raise
    return JournalFile(opening.path, tables, marks)


def configure(db: sqlite3.Connection, fsync: Fsync) -> None:
    """Set the page size, exclusive locking, write-ahead log and flush mode of a connection."""
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # without effect on an existing file
    # Exclusive: no other process can read the file, so no reader can keep the write-ahead log from being reset.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"the journal mode is {mode!r}, not 'wal'")
    db.execute(f"PRAGMA synchronous = {'FULL' if fsync == 'always' else 'NORMAL'}")
    db.execute(f"PRAGMA fullfsync = {int(fsync == 'always')}")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // PAGE_BYTES}")
    db.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES}")
    db.execute("PRAGMA temp_store = MEMORY")  # a machine can have no folder for temporary files


def rebuild(path: Path, inspection: JournalInspection) -> None:
    """Replace a damaged file by a new one with all readable entries. The damaged file is kept under another name."""
    new = _new_file(path)
    with contextlib.closing(connect(new)) as db:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        tables = JournalTables(db)
        db.execute("BEGIN IMMEDIATE")
        tables.create(inspection.known)
        with contextlib.suppress(sqlite3.DatabaseError, ValueError), read_only(path) as old:  # as far as it can be read
            tables.take_over(JournalTables(old).sound_entries())
        (count,) = db.execute("SELECT count(*) FROM entries").fetchone()
        db.execute("COMMIT")
    put_aside(path, "damaged")
    put_in_place(new, path)
    log.error("%s was written again with %d entries of the damaged file, which is kept in the same folder", path, count)


def reopen(opened: JournalFile, opening: JournalOpenOptions, lock: JournalLock) -> None:
    """Write the file of an open journal again after it was deleted, moved or replaced, and continue with the new file."""
    path = opening.path
    make_private(path.parent)
    lock.renew()
    new = _new_file(path)
    with contextlib.closing(connect(new)) as db:
        opened.tables.db.backup(db)  # the open connection can still read the old file
    put_aside(path, "replaced")  # if there is another file at the path now
    put_in_place(new, path)
    opened.tables.db.close()  # deletes the path of its write-ahead log, so do it before the new file has one
    opened.tables.db = opening.connect(path)
    configure(opened.tables.db, opening.fsync)
    opened.marks.renew()
    opened.record_identities()


def _new_file(path: Path) -> Path:
    new = Path(f"{path}.new")
    for name in (new, Path(f"{new}-wal"), Path(f"{new}-shm"), Path(f"{new}-journal")):
        name.unlink(missing_ok=True)
    create_private(new)
    return new


def put_aside(path: Path, why: str) -> None:
    """Rename a journal's file and its write-ahead log to unused names that end in the word `why` and a number."""
    for number in itertools.count(1):
        aside = f"{path}.{why}" if number == 1 else f"{path}.{why}-{number}"
        if not os.path.exists(aside) and not os.path.exists(f"{aside}-wal"):
            break
    for end in ("", "-wal"):
        if os.path.exists(f"{path}{end}"):
            os.rename(f"{path}{end}", f"{aside}{end}")


def put_in_place(new: Path, path: Path) -> None:
    """Flush a complete file to the disk and rename it to `path`. On return, the rename survives a loss of power."""
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    os.rename(new, path)
    sync_folder(path.parent)
