"""Opening a journal's file: the lock, the settings, the tables, and what can be wrong with them."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rl4sys_zmq.delivery.journal import new_journal_id
from rl4sys_zmq.delivery.journal_cache import KnownRows
from rl4sys_zmq.delivery.journal_lock import JournalLock
from rl4sys_zmq.delivery.journal_loss import Loss, Witness, find_loss, merge
from rl4sys_zmq.delivery.journal_marks import MarksFile, Remembered, marks_path, read_marks
from rl4sys_zmq.delivery.journal_rows import SCHEMA_VERSION, Tables
from rl4sys_zmq.errors import JournalError, JournalLost
from rl4sys_zmq.private import create_private, make_private, sync_folder

__all__ = ["NO_RECOVERY", "Connect", "Fsync", "JournalFile", "Opening", "Recovery", "connect", "open_journal_file", "reopen"]

log = logging.getLogger(__name__)

Fsync = Literal["normal", "always"]
Connect = Callable[[Path], sqlite3.Connection]

PAGE_BYTES = 16_384
"""Of a new file. Messages are long: with larger pages SQLite has fewer of them to look after."""
CHECKPOINT_BYTES = 4 << 20
"""From how long a write-ahead log on its pages move to the file. What is in it is lost with it."""

SETTLED_NS = 2_000_000_000
"""For how long a folder must not have changed to be taken for unchanged by its time alone, in ns."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a journal's file; transactions are begun and ended by hand."""
    return sqlite3.connect(path, timeout=0.0, isolation_level=None)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What to do about a journal of which something is gone.

    Attributes:
        accept_loss: go on without it, and count it.
        witnesses: what checkpoints remember of the journal.
        remedy: what else a person can do, for the refusal.
    """

    accept_loss: bool = False
    witnesses: Sequence[Witness] = ()
    remedy: str = "bring the files back, or move them all away, with the file of marks, to begin anew"


NO_RECOVERY = Recovery()


@dataclass(frozen=True, slots=True)
class Opening:
    """How to open a journal.

    Attributes:
        path: the file.
        fsync: "normal" survives the process, "always" also the machine's loss of power.
        connect: makes the connection.
        recovery: what to do when something of it is gone.
    """

    path: Path
    fsync: Fsync = "normal"
    connect: Connect = connect
    recovery: Recovery = NO_RECOVERY


@dataclass(slots=True)
class JournalFile:
    """An open journal. `reopen` changes it.

    Attributes:
        opening: how it was opened.
        lock: keeps others out.
        db: the connection; `tables` are behind it.
        tables: what operations do.
        marks: its second place.
        used_bytes: what the entries took at the start.
        loss: what it lacks, and was opened all the same.
        repaired: how many rows were damaged, and are back from the file of marks.
    """

    opening: Opening
    lock: JournalLock
    db: sqlite3.Connection
    tables: Tables
    marks: MarksFile
    used_bytes: int
    loss: Loss | None = None
    repaired: int = 0
    _places: dict[str, tuple[int, int]] = field(default_factory=dict)
    _folder: tuple[int, int, int] = (0, 0, 0)

    def note_places(self) -> None:
        """Notes which files these are, to know them again."""
        path = self.opening.path
        self._places, self._folder = {}, (0, 0, 0)
        for name in (str(path), f"{path}-wal"):
            status = os.stat(name)
            self._places[name] = status.st_dev, status.st_ino

    def close(self) -> None:
        """Lets go of the files, but for the lock's."""
        self.marks.close()
        self.db.close()

    def missing(self, *, thorough: bool = True) -> str:
        """The file that is not in its place any more, if one is not: deleted, moved, or another one in its place.

        Args:
            thorough: looks at each file. Else a folder of which no name has changed since the last look will do: each look at
                a file gives the GIL up, and taking it back can cost 5 ms.
        """
        folder = self._folder_now()
        if not thorough and folder == self._folder:
            return ""
        for name, identity in self._places.items():
            try:
                status = os.stat(name)
            except OSError:
                return name
            if (status.st_dev, status.st_ino) != identity:
                return name
        # The clock of a file system ticks: what changes twice within a tick looks as if it had changed once.
        self._folder = folder if time.time_ns() - folder[2] > SETTLED_NS else (0, 0, 0)
        return ""

    def _folder_now(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self.opening.path.parent)
        except OSError:
            return 0, 0, 0
        return status.st_dev, status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def open_journal_file(opening: Opening) -> Iterator[JournalFile]:
    """A journal that is ours alone and can be written, until the end of the block.

    Raises:
        JournalLost: when something of it is gone; the files are as they were.
        JournalError: when it can't be opened.
    """
    path = opening.path
    with contextlib.closing(JournalLock(path)) as lock:
        with _told(path):
            found = _examine(opening)
            if found.broken:
                rebuild(path, found)
            elif found.loss and found.is_new:
                put_aside(path, "damaged")
            opened = _open(opening, lock, found)
        with contextlib.closing(opened):
            yield opened


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Makes errors of SQLite and of the disk ours."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        problem = f"can't be opened and written ({error})"
        raise JournalError(str(path), problem, "see to its rights, to room on the disk, and that nothing else uses it") from error
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: object) -> JournalError:
    """The error for a file that can't be read, of which nothing else tells."""
    remedy = "move it and its -wal file away to begin a new journal, or bring back a copy"
    return JournalError(str(path), f"is not a journal, or is damaged ({error})", remedy)


# ---- looking, without changing anything


@dataclass(slots=True)
class Found:
    """What was found where a journal should be, and what is remembered of it.

    Attributes:
        known: what the journal is to know when it is open.
        is_new: there is nothing.
        used_bytes, last_row: of its entries.
        broken: why what is there can't be read; empty when it can.
        rewrite: the rows in the file are not those of `known`.
        repaired: how many damaged rows the file of marks has made good.
        loss: what is gone all the same.
    """

    known: KnownRows = field(default_factory=KnownRows)
    is_new: bool = False
    used_bytes: int = 0
    last_row: int = 0
    broken: str = ""
    rewrite: bool = False
    repaired: int = 0
    loss: Loss | None = None


def _examine(opening: Opening) -> Found:
    """Reads what is there, and compares it with what is remembered.

    Raises:
        JournalLost: when something is gone and nobody has accepted that.
        JournalError: when the file can't be read and nothing tells what was in it, or it is another version's.
        OSError, sqlite3.Error: when it can't be opened.
    """
    path, recovery = opening.path, opening.recovery
    remembered = read_marks(marks_path(path)) or Remembered()
    if remembered.damaged:
        log.warning("%s: %d lines are damaged and are left out", marks_path(path), remembered.damaged)
    found = look_into(path)
    if found.repaired:
        _repair(path, found, remembered.rows)
    usable = None if found.is_new or found.broken else found.known
    loss = find_loss(usable, remembered.rows, recovery.witnesses)
    if found.broken and not loss and not recovery.accept_loss:
        raise damaged(path, found.broken)
    if loss or found.broken:
        _say_lost(opening, found, loss)
        found.loss, found.rewrite = loss, True
        found.known = merge(usable or KnownRows(remembered.rows.journal_id), remembered.rows, recovery.witnesses)
    found.known.journal_id = found.known.journal_id or new_journal_id()
    return found


def _say_lost(opening: Opening, found: Found, loss: Loss) -> None:
    path = opening.path
    if found.broken:
        what = f"is damaged ({found.broken})"
    elif found.is_new:
        what = "is gone or empty" if loss.whole else "is not there, but checkpoints are"
    elif loss.strangers:
        what = "is another one than that of the checkpoints or of journal.marks beside it"
    else:
        what = "knows less than was acknowledged"
    problem = f"{what}: {loss.words()}"
    if not opening.recovery.accept_loss:
        raise JournalLost(str(path), problem, opening.recovery.remedy, loss.segments)
    log.error("%s %s; accepted (resume: accept-loss)", path, problem)


def look_into(path: Path) -> Found:
    """What is in a file, which stays as it is, with its write-ahead log.

    Raises:
        JournalError: when it is another version's.
        OSError, sqlite3.Error: when it can't be opened.
    """
    if not path.exists() or not path.stat().st_size:
        return Found(is_new=True)
    try:
        with read_only(path) as db:
            return _look(path, db)
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        # A table that is not there is an operational error to SQLite, like a disk that fails; here it is damage.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
            raise
        return Found(broken=str(error))


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that changes neither the file nor its write-ahead log, not even when it is closed."""
    index, shared = Path(f"{path}-shm"), os.path.exists(f"{path}-shm")
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0.0, isolation_level=None, uri=True)
    try:
        db.text_factory = lambda text: text.decode(errors="replace")
        yield db
    finally:
        db.close()
        if not shared:
            index.unlink(missing_ok=True)


def _look(path: Path, db: sqlite3.Connection) -> Found:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return Found(is_new=True)
    if version != SCHEMA_VERSION:
        problem = f"is a database with the schema version {version}; a journal of this library has {SCHEMA_VERSION}"
        raise JournalError(str(path), problem, "open it with the version that wrote it, or move it away to begin a new one")
    tables = Tables(db)
    known, bad = tables.known()
    used_bytes, last_row = tables.size()
    return Found(known, used_bytes=used_bytes, last_row=last_row, repaired=bad + (not known.journal_id))


def _repair(path: Path, found: Found, remembered: KnownRows) -> None:
    """Puts rows of the file of marks in the place of damaged ones; what it can't is `broken`."""
    known = found.known
    if remembered.journal_id and known.journal_id in (0, remembered.journal_id):
        filled = int(not known.journal_id)
        known.journal_id = remembered.journal_id
        for client_id, row in remembered.clients.items():
            filled += known.clients.setdefault(client_id, row) is row
        for key, stream in remembered.streams.items():
            filled += known.streams.setdefault(key, stream) is stream
        if filled >= found.repaired:
            found.rewrite = True
            log.error("%s: %d damaged rows are taken from %s", path, found.repaired, marks_path(path))
            return
    found.broken, found.repaired = f"{found.repaired} rows of clients and streams are not what was written", 0


# ---- opening


def _open(opening: Opening, lock: JournalLock, found: Found) -> JournalFile:
    path = marks_path(opening.path)
    create_private(opening.path)  # what SQLite makes beside it has the same mode
    with contextlib.ExitStack() as stack:
        db = stack.enter_context(contextlib.closing(opening.connect(opening.path)))
        configure(db, opening.fsync)
        tables = Tables(db)
        db.execute("BEGIN IMMEDIATE")
        if found.is_new:
            tables.create(found.known)
        elif found.rewrite and not found.broken:
            tables.replace(found.known)
        used_bytes, last_row = tables.size()
        tables.restore(found.known, last_row)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if found.is_new:
            sync_folder(opening.path.parent)
        if not path.exists() and found.known.clients and not found.loss:
            log.warning("%s is missing, and is made anew from the journal", path)
        marks = MarksFile(path, tables.image.rows, flush=opening.fsync == "always")
        stack.callback(marks.close)
        opened = JournalFile(opening, lock, db, tables, marks, used_bytes, found.loss, found.repaired)
        opened.note_places()
        stack.pop_all()  # the owner closes them from here on
    return opened


def configure(db: sqlite3.Connection, fsync: Fsync) -> None:
    """Settings of the connection.

    Raises:
        sqlite3.OperationalError: when it can't have a write-ahead log.
    """
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # what an older file has, it keeps
    # Exclusive: nobody else reads or writes the file meanwhile, so that no reader can hold the write-ahead log back.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"the journal mode is {mode!r}, not 'wal'")
    db.execute(f"PRAGMA synchronous = {'FULL' if fsync == 'always' else 'NORMAL'}")
    db.execute(f"PRAGMA fullfsync = {int(fsync == 'always')}")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // PAGE_BYTES}")
    db.execute(f"PRAGMA journal_size_limit = {CHECKPOINT_BYTES}")


# ---- a new file in the place of one that is damaged, or gone


def rebuild(path: Path, found: Found) -> None:
    """Puts a new file with what is known, and the entries that can be read, in the place of a damaged one, which is kept."""
    new = _new_file(path)
    with contextlib.closing(connect(new)) as db:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        tables = Tables(db)
        db.execute("BEGIN IMMEDIATE")
        tables.create(found.known)
        with contextlib.suppress(sqlite3.DatabaseError, ValueError), read_only(path) as old:  # as far as it can be read
            tables.take_over(Tables(old).sound_entries())
        (count,) = db.execute("SELECT count(*) FROM entries").fetchone()
        db.execute("COMMIT")
    put_aside(path, "damaged")
    put_in_place(new, path)
    log.error("%s was made anew, with %d entries of the damaged one, which is kept beside it", path, count)


def reopen(opened: JournalFile) -> None:
    """Puts a new file with all that the connection can still read in the place of one that has gone, and goes on with that.

    What was deleted, or moved, lives as long as the connection does. A file that has taken the place is put aside.

    Raises:
        JournalError: when another learner has the place now.
        OSError, sqlite3.Error: when the new file can't be written. The old connection is as it was.
    """
    opening, path = opened.opening, opened.opening.path
    make_private(path.parent)
    opened.lock.renew()
    new = _new_file(path)
    with contextlib.closing(connect(new)) as db:
        opened.db.backup(db)
    put_aside(path, "replaced")
    put_in_place(new, path)
    opened.db.close()  # which removes the name of its write-ahead log: the new file has none yet
    db = opened.db = opening.connect(path)
    configure(db, opening.fsync)
    opened.tables.go_on_with(db)
    opened.marks.renew()
    opened.note_places()


def _new_file(path: Path) -> Path:
    new = Path(f"{path}.new")
    for name in (new, Path(f"{new}-wal"), Path(f"{new}-shm"), Path(f"{new}-journal")):
        name.unlink(missing_ok=True)
    create_private(new)
    return new


def put_aside(path: Path, why: str) -> None:
    """Renames a file and its write-ahead log, to names that nothing has."""
    number = 1
    while True:
        aside = Path(f"{path}.{why}" if number == 1 else f"{path}.{why}-{number}")
        if not aside.exists() and not Path(f"{aside}-wal").exists():
            break
        number += 1
    for end in ("", "-wal"):
        if os.path.exists(f"{path}{end}"):
            os.rename(f"{path}{end}", f"{aside}{end}")


def put_in_place(new: Path, path: Path) -> None:
    """Renames a whole file to its name; when this returns, both are on the disk."""
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    os.rename(new, path)
    sync_folder(path.parent)
