"""The marks file of a journal, ``journal.marks``: a second record of its clients and streams, to detect lost data.

Each line consists of a checksum and JSON. The first lines contain all clients and streams, each later line the changes of one
transaction. A line with a wrong checksum is ignored. The file has a fixed size; when it is full, a new one replaces it. So a
normal write has only the size of the changes, and needs no further disk space.

If the journal says that it never received segments that the marks or a checkpoint record, it has lost data (`JournalLoss`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import xxhash

from rl4sys_zmq.delivery.journal import ClientRow, JournalContent, StreamRow
from rl4sys_zmq.private import sync_folder

# The smallest number of bytes that a new file reserves for later changes.
SPARE_BYTES = 256 << 10

ROWS_PER_LINE = 64
_DIGITS = 16

RowKey = tuple[str, str, int]
"""The key of a stream: the client's id, the actor's id, and the origin."""


# The order of a stream's columns in SQLite and in ``journal.marks``.
stream_fields = attrgetter(*(f.name for f in fields(StreamRow)))


@dataclass(slots=True)
class ClientAndStreamRows:
    """The records of a journal, or of ``journal.marks``, about the clients and the streams. They have no segments."""

    journal_id: int = 0  # 0 if unknown
    # ids of the journals whose data an operator has given up with ``--resume accept-loss``
    lineages: set[int] = field(default_factory=set)
    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)

    def restored(self) -> JournalContent:
        return JournalContent(self.journal_id, tuple(self.clients.values()), tuple(self.streams.values()))


@dataclass(slots=True)
class JournalRowChanges:
    """The changes that one transaction makes to the records of clients and streams."""

    # new content of each added or changed client row, by client id
    clients: dict[str, ClientRow] = field(default_factory=dict)
    # new content of each added or changed stream row, by key
    streams: dict[RowKey, StreamRow] = field(default_factory=dict)
    # streams that were removed on purpose, so that their absence does not count as a loss
    dropped_streams: set[RowKey] = field(default_factory=set)
    dropped_clients: set[str] = field(default_factory=set)  # clients that were removed on purpose, with all their streams

    def apply_to(self, rows: ClientAndStreamRows) -> None:
        """Apply the changes to rows, in place."""
        gone = self.dropped_clients
        for client_id in gone:
            rows.clients.pop(client_id, None)
        for key in [key for key in rows.streams if key[0] in gone] if gone else ():
            del rows.streams[key]
        for key in self.dropped_streams:
            rows.streams.pop(key, None)
        rows.clients.update(self.clients)
        rows.streams.update(self.streams)


def marks_path(journal: Path) -> Path:
    return journal.with_suffix(".marks")


def identity_of(file: Path | str | int) -> tuple[int, int] | None:
    """Return the device and the inode of a file, or None if it cannot be found."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def read_marks(path: Path) -> tuple[ClientAndStreamRows, int]:
    """Return the records in a file ``journal.marks``, and its number of damaged lines. If all are damaged, the id is 0."""
    rows = ClientAndStreamRows()
    try:
        lines = path.read_bytes().rstrip(b"\0").split(b"\n")
    except FileNotFoundError:
        return rows, 0
    return rows, sum(not _read_line(line, rows) for line in lines if line)


def _read_line(line: bytes, rows: ClientAndStreamRows) -> bool:
    """Apply the changes in a line to the rows. Return False if the checksum of the line is wrong."""
    if xxhash.xxh3_64_hexdigest(line[_DIGITS:]).encode() != line[:_DIGITS]:
        return False
    record = json.loads(line[_DIGITS:])
    settings = {**{client_id: row.settings for client_id, row in rows.clients.items()}, **record["settings"]}
    changes = JournalRowChanges(
        {c[0]: ClientRow(c[0], c[1], settings.get(c[0], {}), *c[2:]) for c in record["clients"]},
        {(s[0], s[1], s[2]): StreamRow(*s) for s in record["streams"]},
        {(client_id, actor_id, origin) for client_id, actor_id, origin in record["gone"]},
        set(record["gone_clients"]),
    )
    changes.apply_to(rows)
    rows.journal_id = record["journal"]
    rows.lineages |= set(record["lineages"])
    return True


class JournalMarksFileWriter:
    """The writer of ``journal.marks``, in the journal's thread. Each change is written at once, and with `flush` also flushed."""

    def __init__(self, path: Path, rows: ClientAndStreamRows, *, flush: bool) -> None:
        """Write a new file. `renew` reads `rows` later, so the caller keeps them up to date. `flush`: flush each write."""
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
        self._identity = identity_of(file)

    def drop(self, changes: JournalRowChanges) -> None:
        """Write the names of the clients and streams that a transaction removes. Call this before the commit."""
        # In this order, an intended removal never looks like a loss of data, even if the process ends in between.
        if changes.dropped_streams or changes.dropped_clients:
            gone = JournalRowChanges({}, {}, changes.dropped_streams, changes.dropped_clients)
            self._append(self._line(gone, {}))

    def note(self, changes: JournalRowChanges) -> None:
        """Write the changes of a transaction. Call this after the commit, and before it is reported."""
        # If it fails, a later `renew` replaces this call, because it writes all present rows.
        if not changes.clients and not changes.streams:
            return
        fresh = {c.client_id: c.settings for c in changes.clients.values() if self._settings.get(c.client_id) is not c.settings}
        self._append(self._line(changes, fresh))
        self._settings.update(fresh)

    @property
    def present(self) -> bool:
        return identity_of(self._path) == self._identity

    def close(self) -> None:
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
        yield self._line(JournalRowChanges(), {})
        for clients in _chunks(list(rows.clients.items())):
            yield self._line(JournalRowChanges(clients=dict(clients)), {name: row.settings for name, row in clients})
        for streams in _chunks(list(rows.streams.items())):
            yield self._line(JournalRowChanges(streams=dict(streams)), {})

    def _line(self, changes: JournalRowChanges, settings: dict[str, dict[str, Any]]) -> bytes:
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


@dataclass(frozen=True, slots=True)
class JournalStateInCheckpoint:
    """The part of a checkpoint by which the learner detects that its journal has lost data."""

    client_id: str
    journal_id: int  # journal that the learner used when it wrote the checkpoint
    judged: int  # number of accepted segments that the checkpoint covers
    # sequence number below which the checkpoint covers all segments, by (actor_id, origin) of the stream
    marks: Mapping[tuple[str, int], int]


@dataclass(slots=True)
class JournalLoss:
    """The data that a journal lacks. ``bool(loss)`` is False if no data is missing."""

    whole: bool = False  # True if there is no readable journal, although ``journal.marks`` has a record of one
    # number of accepted segments that the journal lacks, by client id
    segments: dict[str, int] = field(default_factory=dict)
    # number of missing segments that no checkpoint covers, and that are therefore lost, by client id. A client is absent if
    # number cannot be determined
    uncovered: dict[str, int] = field(default_factory=dict)
    streams: int = 0  # number of streams in which the journal lacks segments that were acknowledged to the actor
    # ids of other journals: ``journal.marks`` or a checkpoint was written for them, and this journal does not continue them
    unknown_lineages: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.whole or self.segments or self.streams or self.unknown_lineages)

    def words(self) -> str:
        """Return a description of the loss as one line, for error messages."""
        parts = [
            f"client {client_id!r}: {count} acknowledged segments, {self._gone(client_id)}"
            for client_id, count in sorted(self.segments.items())
        ]
        if self.streams:
            parts.append(f"{self.streams} streams are below the marks acknowledged to their actors")
        return "; ".join(parts) or "the amount is unknown"

    def figures(self) -> dict[str, Any]:
        """Return the numbers of missing segments and streams as JSON values, for the event log."""
        return {"segments": dict(self.segments), "uncovered": dict(self.uncovered), "streams": self.streams}

    def _gone(self, client_id: str) -> str:
        gone = self.uncovered.get(client_id)
        if gone is None:
            return "and those accepted after its newest checkpoint"
        return f"of which {gone} are in no checkpoint"


def find_loss(
    journal: ClientAndStreamRows | None, remembered: ClientAndStreamRows, witnesses: Sequence[JournalStateInCheckpoint]
) -> JournalLoss:
    """Return the data that a journal (None if unreadable) lacks, by comparison with `remembered` and `witnesses`.

    `remembered` is ``journal.marks`` (empty if missing), and `witnesses` are the newest checkpoints. Clients and streams that
    were removed on purpose are in neither file, because they are removed from ``journal.marks`` first.
    """
    has_rows = bool(remembered.clients or remembered.streams)
    loss = JournalLoss(whole=journal is None and has_rows)
    known = journal or remembered
    ours = {known.journal_id, *known.lineages}
    have = journal or ClientAndStreamRows()
    if remembered.journal_id and remembered.journal_id == known.journal_id:
        _compare(have, remembered, loss)
    elif remembered.journal_id and remembered.journal_id not in ours and has_rows:
        loss.unknown_lineages.add(remembered.journal_id)
        _compare(ClientAndStreamRows(), remembered, loss)
    for witness in witnesses:
        if witness.journal_id not in ours:
            loss.unknown_lineages.add(witness.journal_id)
            loss.segments.setdefault(witness.client_id, witness.judged)
        elif witness.journal_id == have.journal_id:
            _compare_checkpoint(have, witness, loss)
    _count_uncovered(loss, have, remembered, witnesses)
    return loss


def _compare(have: ClientAndStreamRows, remembered: ClientAndStreamRows, loss: JournalLoss) -> None:
    for client_id, row in remembered.clients.items():
        known = have.clients.get(client_id)
        missing = row.accepted - (known.accepted if known is not None else 0)
        if missing > 0 or known is None:
            loss.segments[client_id] = max(0, missing)
    for key, stream in remembered.streams.items():
        other = have.streams.get(key)
        loss.streams += other is None or other.received < stream.received


def _compare_checkpoint(have: ClientAndStreamRows, witness: JournalStateInCheckpoint, loss: JournalLoss) -> None:
    known = have.clients.get(witness.client_id)
    missing = witness.judged - (known.accepted if known is not None else 0)
    if missing > 0:
        loss.segments[witness.client_id] = max(missing, loss.segments.get(witness.client_id, 0))
    for (actor_id, origin), mark in witness.marks.items():
        stream = have.streams.get((witness.client_id, actor_id, origin))  # a dropped stream can still be in a checkpoint
        loss.streams += stream is not None and stream.received < mark


def _count_uncovered(
    loss: JournalLoss,
    have: ClientAndStreamRows,
    remembered: ClientAndStreamRows,
    witnesses: Sequence[JournalStateInCheckpoint],
) -> None:
    judged = {w.client_id: w.judged for w in witnesses if w.journal_id == remembered.journal_id}
    for client_id, missing in loss.segments.items():
        if client_id in remembered.clients:
            known = have.clients.get(client_id)
            beyond = judged.get(client_id, 0) - (known.accepted if known is not None else 0)
            loss.uncovered[client_id] = max(0, missing - max(0, beyond))


def merge(
    journal: ClientAndStreamRows, remembered: ClientAndStreamRows, witnesses: Sequence[JournalStateInCheckpoint]
) -> ClientAndStreamRows:
    """Return the clients and streams with which a journal continues after an accepted loss of data.

    They have the highest numbers in the journal, ``journal.marks`` (`remembered`) and the checkpoints (`witnesses`), so the
    segments that the journal lacks count as rolled back. A record of another journal is ignored, and the id of that journal is
    added to `lineages`.
    """
    rows = ClientAndStreamRows(journal.journal_id, set(journal.lineages), dict(journal.clients), dict(journal.streams))
    if remembered.journal_id == rows.journal_id:
        rows.lineages |= remembered.lineages
        for client_id, row in remembered.clients.items():
            rows.clients[client_id] = _higher_client(rows.clients.get(client_id), row)
        for key, stream in remembered.streams.items():
            known = rows.streams.get(key)
            if known is None or known.received < stream.received:
                rows.streams[key] = stream
    elif remembered.journal_id:
        rows.lineages.add(remembered.journal_id)
    for witness in witnesses:
        if witness.journal_id != rows.journal_id:
            rows.lineages.add(witness.journal_id)
        else:
            _raise_to(rows, witness)
    return rows


def _higher_client(known: ClientRow | None, row: ClientRow) -> ClientRow:
    if known is None:
        return row
    generation, expired = max(known.generation, row.generation), max(known.expired, row.expired)
    best = row if row.accepted > known.accepted else known
    settings = known.settings or row.settings
    return replace(best, generation=generation, expired=expired, settings=settings)


def _raise_to(rows: ClientAndStreamRows, witness: JournalStateInCheckpoint) -> None:
    client = rows.clients.get(witness.client_id)
    if client is not None and client.accepted < witness.judged:
        rows.clients[witness.client_id] = replace(client, accepted=witness.judged)
    for (actor_id, origin), mark in witness.marks.items():
        key: RowKey = (witness.client_id, actor_id, origin)
        stream = rows.streams.get(key)
        if stream is not None and stream.received < mark:
            rows.streams[key] = replace(stream, received=mark)
