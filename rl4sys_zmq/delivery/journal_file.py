"""Opening a journal's file: the lock, the settings, the tables, and what can be wrong with them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl4sys_zmq.delivery.journal_rows import SCHEMA_VERSION, Tables
from rl4sys_zmq.delivery.ledger import Restored
from rl4sys_zmq.errors import JournalError
from rl4sys_zmq.private import create_private

__all__ = ["Connect", "Fsync", "JournalFile", "connect", "open_journal_file"]

Fsync = Literal["normal", "always"]
Connect = Callable[[Path], sqlite3.Connection]

PAGE_BYTES = 16_384
"""Of a new file. Messages are long: with larger pages SQLite has fewer of them to look after."""
CHECKPOINT_BYTES = 16 << 20
WAL_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class JournalFile:
    """An open journal.

    Attributes:
        db: the connection; `tables` are behind it.
        tables: what operations do.
        restored: what they knew at the start.
        used_bytes: what the entries took at the start.
    """

    db: sqlite3.Connection
    tables: Tables
    restored: Restored
    used_bytes: int


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a journal's file; transactions are begun and ended by hand."""
    return sqlite3.connect(path, timeout=0.0, isolation_level=None)


@contextlib.contextmanager
def open_journal_file(path: Path, fsync: Fsync, connect: Connect) -> Iterator[JournalFile]:
    """A journal that is ours alone and can be written, until the end of the block.

    Raises:
        JournalError: when it is not.
    """
    with _locked(path), contextlib.ExitStack() as stack:
        try:
            is_new = not path.exists()
            create_private(path)  # what SQLite makes beside it has the same mode
            db = stack.enter_context(contextlib.closing(connect(path)))
            _configure(db, fsync)
            opened = _restore(path, db)
            if is_new:
                _sync_folder(path.parent)
        except (sqlite3.OperationalError, OSError) as error:
            problem = f"can't be opened and written ({error})"
            raise JournalError(
                str(path), problem, "see to its rights, to room on the disk, and that nothing else uses it"
            ) from error
        except (sqlite3.Error, ValueError, TypeError) as error:
            problem = f"is not a journal, or is damaged ({error})"
            mend = "move it and its -wal file away to begin a new journal, or bring back a copy"
            raise JournalError(str(path), problem, mend) from error
        yield opened


def _restore(path: Path, db: sqlite3.Connection) -> JournalFile:
    tables = Tables(db)
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        tables.create()
    elif version != SCHEMA_VERSION:
        problem = f"is a database with the schema version {version}; a journal of this library has {SCHEMA_VERSION}"
        raise JournalError(str(path), problem, "open it with the version that wrote it, or move it away to begin a new one")
    restored, used = tables.restore()
    db.execute("COMMIT")
    return JournalFile(db, tables, restored, used)


def _configure(db: sqlite3.Connection, fsync: Fsync) -> None:
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # what an older file has, it keeps
    # Exclusive: nobody else reads or writes the file meanwhile, so that no reader can hold the write-ahead log back.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"the journal mode is {mode!r}, not 'wal'")
    db.execute(f"PRAGMA synchronous = {'FULL' if fsync == 'always' else 'NORMAL'}")
    db.execute(f"PRAGMA fullfsync = {int(fsync == 'always')}")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // PAGE_BYTES}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes out. The lock file stays: to remove it would let two in.

    Raises:
        JournalError: when another process is in, or the lock file can't be made.
    """
    lock = f"{path}.lock"
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(
            str(path), f"{lock} can't be made ({error.strerror})", "make its folder, and make it writable"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise JournalError(
            str(path), f"is in use by another learner (it holds {lock})", "stop that one, or use another path"
        ) from error
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may still have the descriptor
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
