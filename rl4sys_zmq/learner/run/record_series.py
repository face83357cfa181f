"""A series of files of limited total size, which keeps all of the newest records and fewer and fewer of the older ones.

A full file is a *part*. When there are too many, the two neighbours are merged that cover the shortest range in relation to
their age; the merged part keeps about every second record. A name has ``STAMP.FIRST-LAST``: the Unix time of the first record,
and the parts that it replaces. A crash can leave parts whose range lies within that of another. Readers skip them, and the next
start removes them.
"""

from __future__ import annotations

import itertools
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rl4sys_zmq.private import make_private, open_private, sync_folder
from rl4sys_zmq.resource import Resource

PART_BYTES = 4 << 20
LEAST_PARTS, MOST_PARTS = 16, 256
BUFFER_BYTES = 1 << 16
_TEMPORARY = ".tmp-"
_BODY = re.compile(r"([0-9]{10,})\.([0-9]{8,})-([0-9]{8,})")


@dataclass(frozen=True, slots=True)
class FileSeriesRecord:
    """One record of a file series, such as a line of the log.

    If space is short, records with `lasting` are kept as long as they take at most half of the space.
    """

    kind: str
    content: bytes
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class SeriesPart:
    """A file of a series that gets no new records. `stamp` never decreases from one part to the next."""

    path: Path
    stamp: int
    first: int
    last: int
    nbytes: int


class FileSeriesFormat(ABC):
    """The base class of formats of files: the names of the files, the bytes before the first record, and the records."""

    prefix = ""
    suffix = ""
    head = b""

    @abstractmethod
    def read(self, file: BinaryIO) -> Iterator[FileSeriesRecord]:
        """Yield the complete records of a file. `head`, the bytes before the first record, is skipped."""


def thin(records: Sequence[FileSeriesRecord], limit: int) -> list[FileSeriesRecord]:
    """Drop every second record of the kind with the most bytes until the rest fits into `limit` bytes."""
    kept = list(records)
    while sum(len(record.content) for record in kept) > limit:
        lasting = sum(len(record.content) for record in kept if record.lasting)
        sizes: Counter[str] = Counter()
        for record in kept:
            sizes[record.kind] += len(record.content) if record.lasting == (lasting > limit // 2) else 0
        largest, places = sizes.most_common(1)[0][0], itertools.count()
        halved = [record for record in kept if record.kind != largest or next(places) % 2 == 0]
        kept = halved if len(halved) < len(kept) else kept[1:]
    return kept


def list_parts(folder: Path, form: FileSeriesFormat) -> tuple[list[SeriesPart], list[SeriesPart]]:
    """Return the parts in a folder, oldest first, and the superfluous parts that a crash has left."""
    present: list[SeriesPart] = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return [], []
    for name in names:
        body = name.removeprefix(form.prefix).removesuffix(form.suffix)
        match = _BODY.fullmatch(body)
        if match is not None and name == f"{form.prefix}{body}{form.suffix}":
            path = folder / name
            present.append(SeriesPart(path, int(match[1]), int(match[2]), int(match[3]), path.stat().st_size))
    parts: list[SeriesPart] = []
    within: list[SeriesPart] = []
    for part in sorted(present, key=lambda part: (part.first, -part.last)):
        (within if parts and part.last <= parts[-1].last else parts).append(part)
    return parts, within


class RotatingFileWriter(Resource):
    """A writer that appends records to a file, and begins another file when this one is full. Use it in one thread.

    To limit the total size, it merges old files, and leaves out some of their records. `dropped` counts these records.
    """

    def __init__(self, folder: Path, form: FileSeriesFormat, max_bytes: int, *, active: Path | None = None) -> None:
        """Create the writer, without I/O. With `active`, new records go to this file, which moves to `folder` when it is full."""
        self.dropped = 0
        self._folder, self._form, self._active = folder, form, active
        self._most_parts = min(max(max_bytes // PART_BYTES, LEAST_PARTS), MOST_PARTS)
        self._part_bytes = max_bytes // (self._most_parts + 2)  # one more is being written, and another exists during a merge
        self._parts: list[SeriesPart] = []
        self._file: BinaryIO | None = None
        self._path = folder
        self._number = self._stamp = self._size = 0
        self._is_known = False

    def write(self, record: bytes, at_unix_s: float) -> bool:
        """Add a record. Return False if it is longer than a part. Raise OSError if it or a buffered record cannot be written."""
        if len(record) > self._part_bytes - len(self._form.head):
            return False
        self._know()
        if self._file is not None and self._size + len(record) > self._part_bytes:
            self._end_part()
        if self._file is None:
            self._begin_part(at_unix_s)
        assert self._file is not None
        self._file.write(record)
        self._size += len(record)
        return True

    def open(self) -> None:
        """Open the file ``active`` now, not at the first record. Do nothing if the writer was created without ``active``."""
        self._know()
        if self._active is not None and self._file is None:
            self._begin_part(0.0)

    def flush(self) -> None:
        """Pass buffered records to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write buffered records and close the file. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _know(self) -> None:
        """Find the files, remove leftovers of a crash, and open the active file. Only the first write does this."""
        if self._is_known:
            return
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            if not path.is_dir():  # a folder is not ours
                path.unlink()
        self._parts, within = list_parts(self._folder, self._form)
        for part in within:
            part.path.unlink()
        if self._parts:
            self._number, self._stamp = self._parts[-1].last, self._parts[-1].stamp
        self._is_known = True
        if self._active is not None and self._active.exists():
            self._begin_part(self._active.stat().st_mtime)
        self._shrink()

    def _begin_part(self, at_unix_s: float) -> None:
        self._number += 1
        self._stamp = max(self._stamp, int(at_unix_s))
        self._path = self._active or self._path_of(self._stamp, self._number, self._number)
        if self._active is None:
            make_private(self._folder)
        self._file = os.fdopen(open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", BUFFER_BYTES)
        self._size = _whole_lines(self._file) if self._active is not None else 0
        if not self._size:
            self._file.write(self._form.head)
            self._size = len(self._form.head)

    def _end_part(self) -> None:
        try:
            self.close()
        finally:  # on a full disk the part is incomplete, but it is a part
            path = self._path_of(self._stamp, self._number, self._number)
            if self._path != path:
                make_private(self._folder)
                self._path.rename(path)
            self._parts.append(SeriesPart(path, self._stamp, self._number, self._number, path.stat().st_size))
        self._shrink()

    def _path_of(self, stamp: int, first: int, last: int) -> Path:
        return self._folder / f"{self._form.prefix}{stamp:010d}.{first:08d}-{last:08d}{self._form.suffix}"

    def _shrink(self) -> None:
        for place, part in enumerate(self._parts):
            if part.nbytes > self._part_bytes:  # the limit was higher before
                self._parts[place] = self._merge(part)
        while len(self._parts) > self._most_parts:
            newest, pairs = self._parts[-1].last + 1, [*itertools.pairwise(self._parts)]
            whole = [place for place, (one, other) in enumerate(pairs) if one.nbytes + other.nbytes <= self._part_bytes]
            costs = [(other.last - one.first + 1) / (newest - one.first) for one, other in pairs]
            place = whole[0] if whole else costs.index(min(costs))
            self._parts[place : place + 2] = [self._merge(*self._parts[place : place + 2])]

    def _merge(self, *parts: SeriesPart) -> SeriesPart:
        """Merge neighbouring parts into one part of limited size, which replaces them."""
        records: list[FileSeriesRecord] = []
        for part in parts:
            with part.path.open("rb") as file:
                records += self._form.read(file)
        kept = thin(records, self._part_bytes - len(self._form.head))
        first, last = parts[0].first, parts[-1].last
        path, temporary = self._path_of(parts[0].stamp, first, last), self._folder / f"{_TEMPORARY}{first:08d}-{last:08d}"
        try:
            with os.fdopen(open_private(temporary), "wb", BUFFER_BYTES) as out:
                out.write(self._form.head)
                out.writelines(record.content for record in kept)
                out.flush()
                os.fsync(out.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self._folder)
        self.dropped += len(records) - len(kept)
        for part in parts:
            if part.path != path:
                part.path.unlink()
        return SeriesPart(path, parts[0].stamp, first, last, path.stat().st_size)


def _whole_lines(file: BinaryIO) -> int:
    """Cut off an incomplete last line, which a crash can leave. Return the remaining length of the file, in bytes."""
    end = size = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BUFFER_BYTES)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        file.truncate(end)
        file.seek(0, os.SEEK_END)
    return end
