"""The marks file of a journal, ``journal.marks``: a second record of its clients and streams, to detect lost data.

Each line consists of a checksum and JSON. The first lines contain all clients and streams, each later line the changes of one
transaction. A line with a wrong checksum is ignored. The file has a fixed size; when it is full, a new one replaces it. So a
normal write has only the size of the changes, and needs no further disk space.
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
from rl4sys_zmq.delivery.journal_cache import ClientAndStreamRows, RowChanges, stream_fields
from rl4sys_zmq.private import sync_folder

# The smallest number of bytes that a new file reserves for later changes.
SPARE_BYTES = 256 << 10

ROWS_PER_LINE = 64
_DIGITS = 16


@dataclass(slots=True)
class JournalMarksFileContent:
    """The content of ``journal.marks``."""

    rows: ClientAndStreamRows = field(default_factory=ClientAndStreamRows)  # their `journal_id` is 0 if no line could be read
    damaged: int = 0  # number of lines with a wrong checksum


def marks_path(journal: Path) -> Path:
    """Return the path of the marks file of a journal."""
    return journal.with_suffix(".marks")


def read_marks(path: Path) -> JournalMarksFileContent | None:
    """Return the content of a marks file, or None if there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    content = JournalMarksFileContent()
    for line in data.rstrip(b"\0").split(b"\n"):
        if line:
            content.damaged += not _read_line(line, content.rows)
    return content


def _read_line(line: bytes, rows: ClientAndStreamRows) -> bool:
    """Apply the changes in a line to the rows. Return False if the checksum of the line is wrong."""
    if xxhash.xxh3_64_hexdigest(line[_DIGITS:]).encode() != line[:_DIGITS]:
        return False
    record = json.loads(line[_DIGITS:])
    settings = {**{client_id: row.settings for client_id, row in rows.clients.items()}, **record["settings"]}
    changes = RowChanges(
        {c[0]: ClientRow(c[0], c[1], settings.get(c[0], {}), *c[2:]) for c in record["clients"]},
        {(s[0], s[1], s[2]): StreamRow(*s) for s in record["streams"]},
        {(client_id, actor_id, origin) for client_id, actor_id, origin in record["gone"]},
        set(record["gone_clients"]),
    )
    changes.apply_to(rows.clients, rows.streams)
    rows.journal_id = record["journal"]
    rows.lineages |= set(record["lineages"])
    return True


class JournalMarksFileWriter:
    """The writer of ``journal.marks``, in the journal's thread. Each change is written at once. With `flush`, it is also on the
    disk.
    """

    def __init__(self, path: Path, rows: ClientAndStreamRows, *, flush: bool) -> None:
        """Write a new file. The caller keeps `rows` up to date, because `renew` reads it later."""
        self._path, self._rows, self._flush = path, rows, flush
        self._settings: dict[str, dict[str, Any]] = {}
        self._file = -1
        self.renew()

    def renew(self) -> None:
        """Replace the file by a new one with the present clients and streams. If that fails, the old file stays."""
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
        """Write which clients and streams a transaction removes. Call this before the commit."""
        # In this order, an intended removal never looks like a loss of data, even if the process ends in between.
        if changes.dropped_streams or changes.dropped_clients:
            gone = RowChanges({}, {}, changes.dropped_streams, changes.dropped_clients)
            self._append(self._line(gone, {}))

    def note(self, changes: RowChanges) -> None:
        """Write the changes of a transaction. Call this after the commit, and before it is reported."""
        # If it fails, a later `renew` replaces this call, because it writes all present rows.
        if not changes.clients and not changes.streams:
            return
        fresh = {c.client_id: c.settings for c in changes.clients.values() if self._settings.get(c.client_id) is not c.settings}
        known = {**self._settings, **fresh}
        self._append(self._line(changes, {client_id: known[client_id] for client_id in changes.clients if client_id in fresh}))
        self._settings = known

    @property
    def present(self) -> bool:
        """True if the file is still at its path."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        """Close the file."""
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
        record = {
            "journal": self._rows.journal_id,
            "lineages": sorted(self._rows.lineages),
            "clients": [[c.client_id, c.generation, c.accepted, c.refused, c.gap, c.expired] for c in changes.clients.values()],
            "settings": settings,
            "streams": [stream_fields(s) for s in changes.streams.values()],
            "gone": sorted(changes.dropped_streams),
            "gone_clients": sorted(changes.dropped_clients),
        }
        text = json.dumps(record, separators=(",", ":")).encode()
        return xxhash.xxh3_64_hexdigest(text).encode() + text + b"\n"


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), ROWS_PER_LINE):
        yield items[start : start + ROWS_PER_LINE]


def _write(file: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(file, rest, at)
        rest, at = rest[count:], at + count
