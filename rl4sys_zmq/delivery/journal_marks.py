"""The marks file of a journal, ``journal.marks``: a second record of the journal's clients and streams, to detect lost data.

A stream is the numbered segments of one actor for one client. The record of a stream contains the next sequence number, also
called the mark. If the journal later has a lower number, it has lost segments.

Each line of the file consists of a checksum and JSON. The first lines contain all clients and streams. Each later line contains
the changes of one transaction. A line with a wrong checksum is ignored, and the other lines stay valid. The file has a fixed
size. When it is full, the whole file is replaced by a new one. So a normal write has only the size of the changes, and needs no
further disk space.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from rl4sys_zmq.delivery.journal import ClientRow, StreamRow
from rl4sys_zmq.delivery.journal_cache import ClientAndStreamRows, RowChanges
from rl4sys_zmq.private import sync_folder

SPARE_BYTES = 256 << 10
"""The smallest number of bytes that a new file reserves for later changes, after the lines with all clients and streams."""

ROWS_PER_LINE = 64
_DIGITS = 16


@dataclass(slots=True)
class JournalMarksFileContent:
    """The content of ``journal.marks``, a second record of the clients and streams (numbered segments) of a journal.

    Attributes:
        rows: The clients and streams. Its `journal_id` is 0 if no line could be read.
        damaged: The number of lines with a wrong checksum.
    """

    rows: ClientAndStreamRows = field(default_factory=ClientAndStreamRows)
    damaged: int = 0


def marks_path(journal: Path) -> Path:
    """Return the path of the file that repeats the clients and sequence numbers of the journal at a path: ``journal.marks``."""
    return journal.with_suffix(".marks")


def read_marks(path: Path) -> JournalMarksFileContent | None:
    """Return the clients and streams that a file ``journal.marks`` records, or None if there is no such file.

    Raises:
        OSError: If the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = JournalMarksFileContent()
    for line in data.rstrip(b"\0").split(b"\n"):
        if line:
            found.damaged += not _read_line(line, found.rows)
    return found


def _read_line(line: bytes, rows: ClientAndStreamRows) -> bool:
    """Apply the changes in a line of ``journal.marks`` to the rows. Return False if the checksum of the line is wrong."""
    if xxhash.xxh3_64_hexdigest(line[_DIGITS:]).encode() != line[:_DIGITS]:
        return False
    said = json.loads(line[_DIGITS:])
    settings = {**{client_id: row.settings for client_id, row in rows.clients.items()}, **said["settings"]}
    changes = RowChanges(
        {c[0]: ClientRow(c[0], c[1], settings.get(c[0], {}), *c[2:]) for c in said["clients"]},
        {(s[0], s[1], s[2]): StreamRow(*s) for s in said["streams"]},
        {(client_id, actor_id, origin) for client_id, actor_id, origin in said["gone"]},
        set(said["gone_clients"]),
    )
    changes.apply_to(rows.clients, rows.streams)
    rows.journal_id = said["journal"]
    rows.lineages |= set(said["lineages"])
    return True


class JournalMarksFileWriter:
    """The writer of ``journal.marks``, a second record of a journal's clients and streams, to detect lost data.

    Only the journal's thread uses this object. Each change is written at once, so that it survives the end of the process. With
    `flush`, a change is also on the disk (safe from a loss of power) when the call returns.
    """

    def __init__(self, path: Path, rows: ClientAndStreamRows, *, flush: bool) -> None:
        """Write a new file ``journal.marks`` with the given clients and streams.

        Args:
            path: The path of the file.
            rows: The clients and streams of the journal. The caller must keep this object up to date, because `renew` reads it
                later.
            flush: True to flush every change to the disk.

        Raises:
            OSError: If the file cannot be written. An old file at the path stays.
        """
        self._path, self._rows, self._flush = path, rows, flush
        self._settings: dict[str, dict[str, Any]] = {}
        self._file = -1
        self.renew()

    def renew(self) -> None:
        """Replace ``journal.marks`` by a new file with the present clients and streams of the journal.

        Raises:
            OSError: If the file cannot be written. The old file stays.
        """
        lines = b"".join(self._lines_of_all())
        new = self._path.with_suffix(".marks.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = len(lines) + max(SPARE_BYTES, len(lines))
            _write(file, lines.ljust(size, b"\0"), 0)  # full size, so that later flushes need not write the file's size
            os.fsync(file)
            os.rename(new, self._path)
            sync_folder(self._path.parent)
        except BaseException:
            os.close(file)
            raise
        self.close()
        self._file, self._end, self._size = file, len(lines), size
        self._settings = {c.client_id: c.settings for c in self._rows.clients.values()}
        status = os.fstat(file)
        self._identity = status.st_dev, status.st_ino

    def drop(self, changes: RowChanges) -> None:
        """Write to ``journal.marks`` which clients and streams a transaction removes. Call this before the commit.

        In this order, an intended removal never looks like a loss of data, even if the process ends in between.

        Raises:
            OSError: If the file cannot be written.
        """
        if changes.dropped_streams or changes.dropped_clients:
            gone = RowChanges({}, {}, changes.dropped_streams, changes.dropped_clients)
            self._append(self._line(gone, {}))

    def note(self, changes: RowChanges) -> None:
        """Write the changes of a transaction to ``journal.marks``. Call this after the commit, and before it is reported.

        Raises:
            OSError: If the file cannot be written. A later `renew` replaces this call, because it writes all present rows.
        """
        if not changes.clients and not changes.streams:
            return
        fresh = {c.client_id: c.settings for c in changes.clients.values() if self._settings.get(c.client_id) is not c.settings}
        known = {**self._settings, **fresh}
        self._append(self._line(changes, {client_id: known[client_id] for client_id in changes.clients if client_id in fresh}))
        self._settings = known

    @property
    def present(self) -> bool:
        """True if ``journal.marks`` is still at its path: it was not deleted, moved or replaced."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        """Close the file ``journal.marks``."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _append(self, line: bytes) -> None:
        if self._end + len(line) > self._size:
            self.renew()
            if self._end + len(line) > self._size:
                return  # the new file contains the change already, or will with the next change
        _write(self._file, line, self._end)
        self._end += len(line)
        if self._flush:
            os.fdatasync(self._file)

    def _lines_of_all(self) -> Iterator[bytes]:
        rows = self._rows
        yield self._line(RowChanges(), {})
        for clients in _chunks(list(rows.clients.items())):
            yield self._line(RowChanges(clients=dict(clients)), {name: row.settings for name, row in clients})
        for streams in _chunks(list(rows.streams.items())):
            yield self._line(RowChanges(streams=dict(streams)), {})

    def _line(self, changes: RowChanges, settings: dict[str, dict[str, Any]]) -> bytes:
        said = {
            "journal": self._rows.journal_id,
            "lineages": sorted(self._rows.lineages),
            "clients": [[c.client_id, c.generation, c.accepted, c.refused, c.gap, c.expired] for c in changes.clients.values()],
            "settings": settings,
            "streams": [_values(s) for s in changes.streams.values()],
            "gone": sorted(changes.dropped_streams),
            "gone_clients": sorted(changes.dropped_clients),
        }
        text = json.dumps(said, separators=(",", ":")).encode()
        return xxhash.xxh3_64_hexdigest(text).encode() + text + b"\n"


def _values(s: StreamRow) -> list[Any]:
    marks = [s.incarnation, s.first_seq, s.received, s.accepted_steps, s.refused]
    return [s.client_id, s.actor_id, s.origin, *marks, s.submits, s.spooled, s.owner]


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), ROWS_PER_LINE):
        yield items[start : start + ROWS_PER_LINE]


def _write(file: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(file, rest, at)
        rest, at = rest[count:], at + count
