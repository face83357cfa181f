"""A journal's second place: ``journal.marks``, a small file beside it that says what the journal must know.

Lines of a checksum and JSON. The first ones say every client and stream, each later one what a transaction has changed. A line
that is not what was written says nothing, and the others go on to hold. The file is made anew when it has grown to its size, so
that writing costs what has changed, and no disk has to find room for it meanwhile.
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
from rl4sys_zmq.delivery.journal_cache import Changes, KnownRows

__all__ = ["MarksFile", "Remembered", "marks_path", "read_marks"]

SPARE_BYTES = 256 << 10
"""How many bytes of changes fit a file beside its first lines, which may be as long as they need."""

ROWS_PER_LINE = 64
_DIGITS = 16


@dataclass(slots=True)
class Remembered:
    """What a file of marks says.

    Attributes:
        rows: the clients and streams; `journal_id` is 0 when no line could be read.
        damaged: how many lines are not what was written.
    """

    rows: KnownRows = field(default_factory=KnownRows)
    damaged: int = 0


def marks_path(journal: Path) -> Path:
    """Where the marks of a journal are."""
    return journal.with_suffix(".marks")


def read_marks(path: Path) -> Remembered | None:
    """What a file of marks says; None when there is none.

    Raises:
        OSError: when it can't be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = Remembered()
    for line in data.rstrip(b"\0").split(b"\n"):
        if line:
            found.damaged += not _read_line(line, found.rows)
    return found


def _read_line(line: bytes, rows: KnownRows) -> bool:
    """Does what a line says to the rows; False when it is not what was written."""
    if xxhash.xxh3_64_hexdigest(line[_DIGITS:]).encode() != line[:_DIGITS]:
        return False
    said = json.loads(line[_DIGITS:])
    settings = {**{client_id: row.settings for client_id, row in rows.clients.items()}, **said["settings"]}
    changes = Changes(
        {c[0]: ClientRow(c[0], c[1], settings.get(c[0], {}), *c[2:]) for c in said["clients"]},
        {(s[0], s[1], s[2]): StreamRow(*s) for s in said["streams"]},
        {(client_id, actor_id, origin) for client_id, actor_id, origin in said["gone"]},
        set(said["gone_clients"]),
    )
    changes.apply_to(rows.clients, rows.streams)
    rows.journal_id = said["journal"]
    rows.lineages |= set(said["lineages"])
    return True


class MarksFile:
    """Writes the marks of one journal. Used by the journal's thread.

    Each change leaves in one write, so that it survives the process; with `fsync` "always" it is on the disk when a call
    returns.
    """

    def __init__(self, path: Path, rows: KnownRows, *, flush: bool) -> None:
        """Makes the file anew.

        Args:
            path: the file.
            rows: what the journal knows. It is read again whenever the file is made anew: the owner keeps it right.
            flush: every change is to reach the disk at once.

        Raises:
            OSError: when it can't be written; the one that was there is there still.
        """
        self._path, self._rows, self._flush = path, rows, flush
        self._settings: dict[str, dict[str, Any]] = {}
        self._file = -1
        self.renew()

    def renew(self) -> None:
        """Puts a new file, which says what the rows are now, in the place of the old one.

        Raises:
            OSError: when it can't be written; the old one is there still.
        """
        lines = b"".join(self._lines_of_all())
        new = self._path.with_suffix(".marks.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = len(lines) + max(SPARE_BYTES, len(lines))
            _write(file, lines.ljust(size, b"\0"), 0)  # so that a flush of a later line need not flush the file's size
            os.fsync(file)
            os.rename(new, self._path)
        except BaseException:
            os.close(file)
            raise
        self.close()
        self._file, self._end, self._size = file, len(lines), size
        status = os.fstat(file)
        self._identity = status.st_dev, status.st_ino

    def drop(self, changes: Changes) -> None:
        """Says what will be forgotten on purpose: before the journal does it, so that it never looks like a loss.

        Raises:
            OSError: when that can't be written.
        """
        if changes.dropped_streams or changes.dropped_clients:
            gone = Changes({}, {}, changes.dropped_streams, changes.dropped_clients)
            self._append(self._line(gone, {}))

    def note(self, changes: Changes) -> None:
        """Says what the journal has committed; to be called after that, and before anybody is told.

        Raises:
            OSError: when that can't be written. To call `renew` later is enough: it says what all changes have led to.
        """
        if not changes.clients and not changes.streams:
            return
        fresh = {c.client_id: c.settings for c in changes.clients.values() if self._settings.get(c.client_id) is not c.settings}
        known = {**self._settings, **fresh}
        self._append(self._line(changes, {client_id: known[client_id] for client_id in changes.clients if client_id in fresh}))
        self._settings = known

    @property
    def present(self) -> bool:
        """Whether the file is still where it was made."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        """Lets go of the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _append(self, line: bytes) -> None:
        if self._end + len(line) > self._size:
            self.renew()
            if self._end + len(line) > self._size:
                return  # what it says was in the rows already, or will be with the next change
        _write(self._file, line, self._end)
        self._end += len(line)
        if self._flush:
            os.fdatasync(self._file)

    def _lines_of_all(self) -> Iterator[bytes]:
        rows = self._rows
        yield self._line(Changes(), {})
        self._settings = {c.client_id: c.settings for c in rows.clients.values()}
        for clients in _chunks(list(rows.clients.items())):
            yield self._line(Changes(clients=dict(clients)), {name: row.settings for name, row in clients})
        for streams in _chunks(list(rows.streams.items())):
            yield self._line(Changes(streams=dict(streams)), {})

    def _line(self, changes: Changes, settings: dict[str, dict[str, Any]]) -> bytes:
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
