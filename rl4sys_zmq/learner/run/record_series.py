"""A series of files of limited total size, which keeps all of the newest records and fewer and fewer of the older ones.

Each file is called a *part* and has a limited size. If there are too many parts, two neighbouring parts are merged into one,
which keeps as many of their records as fit, about every second one. The two parts are chosen that cover the shortest range in
relation to their age. So the density of records depends on their age only, and the file series covers the whole history, however
long it grows. Age is counted in parts written later; no clock is used.

The name of a part contains ``STAMP.FIRST-LAST``: the Unix time of its first record, and the range of part numbers that it
replaces. If a crash happens after a merged part was written and before its sources were removed, the sources have ranges within
the range of the merged part. Readers ignore these sources, and the next start removes them.
"""

from __future__ import annotations

import itertools
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rl4sys_zmq.private import make_private, open_private, sync_folder
from rl4sys_zmq.resource import Resource

_TARGETS = (1.0, 0.98, 0.95, 0.9, 0.8, *(0.5**n for n in range(1, 32)))


@dataclass(frozen=True, slots=True)
class FileSeriesRecord:
    """One record, such as a line of a log, in a series of files of limited size.

    Attributes:
        kind: The name of the record's group. When records are dropped, the space is divided equally among the groups.
        content: The bytes of the record in the file.
        lasting: True if the record is kept in preference to others. Lasting records get up to half of the space.
    """

    kind: str
    content: bytes
    lasting: bool = False


def thin(records: Sequence[FileSeriesRecord], limit: int) -> tuple[list[FileSeriesRecord], Counter[str]]:
    """Choose records that fit into a number of bytes together, evenly spread over the sequence.

    Lasting records can use half of the bytes, and more if the other records leave space. Within the lasting records, and within
    the others, each kind gets the same space, so many records of one kind do not displace other kinds. The first record of each
    kind is kept if possible.

    Args:
        records: The records, oldest first.
        limit: Largest total size of the chosen records, in bytes.

    Returns:
        The chosen records in the same order, and the number of dropped records by kind.
    """
    if sum(len(record.content) for record in records) <= limit:
        return list(records), Counter()
    kept: list[FileSeriesRecord] = []
    dropped: Counter[str] = Counter()
    for target in _TARGETS:  # records differ in length, so an even choice can be a little too long
        kept, dropped = _evenly(records, _shares(records, int(limit * target)))
        if sum(len(record.content) for record in kept) <= limit:
            return kept, dropped
    return _newest(kept, limit, dropped)  # one record of each kind is too much


def _evenly(records: Iterable[FileSeriesRecord], shares: Mapping[str, float]) -> tuple[list[FileSeriesRecord], Counter[str]]:
    """Keep a fraction of the records of each kind, evenly spread.

    Args:
        records: The records.
        shares: The fraction to keep of each kind, from 0 to 1.

    Returns:
        The kept records, and the number of dropped records by kind.
    """
    places: Counter[str] = Counter()
    kept, dropped = [], Counter[str]()
    for record in records:
        place, share = places[record.kind], shares[record.kind]
        places[record.kind] += 1
        if place == 0 or int(place * share) > int((place - 1) * share):
            kept.append(record)
        else:
            dropped[record.kind] += 1
    return kept, dropped


def _newest(records: list[FileSeriesRecord], limit: int, dropped: Counter[str]) -> tuple[list[FileSeriesRecord], Counter[str]]:
    total, start = 0, len(records)
    while start and total + len(records[start - 1].content) <= limit:
        start -= 1
        total += len(records[start].content)
    dropped.update(record.kind for record in records[:start])
    return records[start:], dropped


def _shares(records: Iterable[FileSeriesRecord], limit: int) -> dict[str, float]:
    """Return the fraction of the records to keep of each kind, so that all fit into `limit` bytes: above 0 and at most 1."""
    sizes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for record in records:
        sizes[record.lasting][record.kind] += len(record.content)
    room = {True: max(limit // 2, limit - sizes[False].total())}
    room[False] = limit - min(room[True], sizes[True].total())
    shares = {}
    for lasting, by_kind in sizes.items():
        level = _level(sorted(by_kind.values()), room[lasting])
        shares.update({kind: min(1.0, level / size) for kind, size in by_kind.items()})
    return shares


def _level(sizes: Sequence[int], room: int) -> int:
    """Divide a space fairly among items: return the largest size that an item can get, at least 1.

    An item below this size gets all that it needs, and leaves the rest to larger items.

    Args:
        sizes: The sizes of the items in bytes, in ascending order.
        room: The space to divide, in bytes.
    """
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return max(1, share)
        room -= size
    return max(1, *sizes) if sizes else 1


PART_BYTES = 4 << 20
LEAST_PARTS, MOST_PARTS = 16, 256
BUFFER_BYTES = 1 << 16
_OVERSIZE = 4
"""Limit for reading parts as a whole, in multiples of the size limit of one part.

If the parts to merge are larger in total, only a sample of their records is read, to save memory.
"""
_TEMPORARY = ".tmp-"
_BODY = re.compile(r"([0-9]{10,})\.([0-9]{8,})-([0-9]{8,})")


@dataclass(frozen=True, slots=True)
class SeriesPart:
    """A complete file (part) of a `RecordSeries`, which gets no new records.

    Attributes:
        path: Path of the file.
        stamp: Unix time of its first record, in whole seconds. It never decreases from one part to the next.
        first, last: First and last number of the parts that were merged into this one. Both are equal for a part that was
            never merged.
        nbytes: Size of the file, in bytes.
    """

    path: Path
    stamp: int
    first: int
    last: int
    nbytes: int


class RecordFormat(ABC):
    """The format of the files that a `RecordSeries` writes. Subclasses define it, for example for a log.

    Attributes:
        prefix, suffix: The beginning and the end of each file name.
        head: The bytes at the beginning of each file, before the first record.
        notice_bytes: Largest length of a record that `dropped_record` returns, in bytes.
    """

    prefix = ""
    suffix = ""
    head = b""
    notice_bytes = 0

    @abstractmethod
    def read(self, file: BinaryIO) -> Iterator[FileSeriesRecord]:
        """Yield the complete records of a file, without the bytes of `head`."""

    @abstractmethod
    def dropped_record(self, dropped: Mapping[str, int]) -> bytes:
        """Return a record that notes how many records were dropped. Return empty bytes if the format has no such record.

        Args:
            dropped: The number of dropped records by kind.
        """

    def earlier(self, record: FileSeriesRecord) -> Mapping[str, int] | None:
        """Read back a record made by `dropped_record`: return its counts by kind. Return None for any other record."""
        return None


def list_parts(folder: Path, form: RecordFormat) -> tuple[list[SeriesPart], list[SeriesPart]]:
    """Find the files (parts) of a `RecordSeries` in a folder.

    Returns:
        The valid parts, oldest first; and the leftovers of a crash, whose range lies within that of a valid part.

    Raises:
        FileNotFoundError: If the writer has merged a part meanwhile; the part that replaces it may be missing in the list.
        OSError: If the folder cannot be read.
    """
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return [], []
    for name in names:
        body = name.removeprefix(form.prefix).removesuffix(form.suffix)
        match = _BODY.fullmatch(body)
        if match is not None and name == f"{form.prefix}{body}{form.suffix}":
            path = folder / name
            found.append(SeriesPart(path, int(match[1]), int(match[2]), int(match[3]), path.stat().st_size))
    found.sort(key=lambda part: (part.first, -part.last))
    parts: list[SeriesPart] = []
    within: list[SeriesPart] = []
    for part in found:
        (within if parts and part.last <= parts[-1].last else parts).append(part)
    return parts, within


class RecordSeries(Resource):
    """A writer of records, such as lines of a log, to files (*parts*) of limited total size. Only one thread uses it.

    When there are too many parts, the writer merges two of them and drops some of their records, so that all of the newest
    records and fewer and fewer of the older ones are kept.

    Attributes:
        dropped: Number of records that this object has dropped.
    """

    def __init__(self, folder: Path, form: RecordFormat, max_bytes: int, *, active: Path | None = None) -> None:
        """Create the writer without reading or writing any file.

        Args:
            folder: Folder of the parts. It is created when the first part is written.
            form: Format of the files.
            max_bytes: Largest size of all files together, in bytes.
            active: Path of the file to append to. When this file is full, it is moved into the folder as a part. None to write
                parts in the folder directly.
        """
        self.dropped = 0
        self._folder, self._form, self._active = folder, form, active
        self._most_parts = min(max(max_bytes // PART_BYTES, LEAST_PARTS), MOST_PARTS)
        self._part_bytes = max_bytes // (self._most_parts + 2)  # one more is being written, and another exists during a merge
        self._room_bytes = self._part_bytes - len(form.head) - form.notice_bytes
        self._parts: list[SeriesPart] = []
        self._file: BinaryIO | None = None
        self._path = folder
        self._number = self._stamp = self._size = 0
        self._is_known = False

    def write(self, record: bytes, at_unix_s: float) -> bool:
        """Add a record. Return False if the record is too long to be stored.

        Args:
            record: The bytes of the record.
            at_unix_s: Unix time of the record, in seconds. It can become part of the name of a file.

        Raises:
            OSError: If this record, or an earlier one that was still in the buffer, cannot be written.
        """
        if len(record) > self._room_bytes:
            return False
        if not self._is_known:
            self._look()
        if self._file is not None and self._size + len(record) > self._part_bytes:
            self._end_part()
        if self._file is None:
            self._begin_part(at_unix_s)
        assert self._file is not None
        self._file.write(record)
        self._size += len(record)
        return True

    def open(self) -> None:
        """Create the file for new records now. Without this call, the first `write` creates it.

        If `active` is None, the call has no effect: the name of the file contains the time of its first record.

        Raises:
            OSError: If the file cannot be created.
        """
        if not self._is_known:
            self._look()
        if self._active is not None and self._file is None:
            self._begin_part(0.0)

    def flush(self) -> None:
        """Pass buffered records to the operating system.

        Raises:
            OSError: If the records cannot be written.
        """
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write buffered records and close the file. A second call does nothing.

        Raises:
            OSError: If the records cannot be written.
        """
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # ---- parts

    def _look(self) -> None:
        """Find the existing files before the first write, remove leftovers of a crash, and open the active file, if any."""
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
            self._path = self._active
            self._file = self._open()
            self._size = _whole_lines(self._file)
            self._number += 1
            self._stamp = max(self._stamp, int(self._active.stat().st_mtime))
        self._shrink()

    def _open(self) -> BinaryIO:
        return os.fdopen(open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b", BUFFER_BYTES)

    def _begin_part(self, at_unix_s: float) -> None:
        self._number += 1
        self._stamp = max(self._stamp, int(at_unix_s))
        self._path = self._active or self._path_of(self._stamp, self._number, self._number)
        if self._active is None:
            make_private(self._folder)
        self._file = self._open()
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
        """Merge and rewrite parts until neither the size of a part nor the number of parts exceeds its limit."""
        for place, part in enumerate(self._parts):
            if part.nbytes > self._part_bytes:  # the limit was higher before
                self._parts[place] = self._merge(part)
        while len(self._parts) > self._most_parts:
            place = self._place_to_merge()
            self._parts[place : place + 2] = [self._merge(*self._parts[place : place + 2])]

    def _place_to_merge(self) -> int:
        """Return the index of the first of the two neighbouring parts to merge next.

        The choice is the oldest pair that fits into one part without dropping records. If there is none, it is the pair that
        covers the smallest range of part numbers in relation to its age.
        """
        newest = self._parts[-1].last + 1
        best, place = float("inf"), 0
        for here, (one, other) in enumerate(itertools.pairwise(self._parts)):
            if one.nbytes + other.nbytes <= self._part_bytes - self._form.notice_bytes:
                return here
            cost = (other.last - one.first + 1) / (newest - one.first)
            if cost < best:
                best, place = cost, here
        return place

    def _merge(self, *parts: SeriesPart) -> SeriesPart:
        """Merge parts into one part of limited size, write this part, remove the old ones, and return the new part."""
        records, dropped = self._read(parts)
        kept, new = thin(records, self._room_bytes)
        self.dropped += new.total()
        dropped += new
        first, last = parts[0].first, parts[-1].last
        path, temporary = self._path_of(parts[0].stamp, first, last), self._folder / f"{_TEMPORARY}{first:08d}-{last:08d}"
        try:
            with os.fdopen(open_private(temporary), "wb", BUFFER_BYTES) as out:
                out.write(self._form.head)
                out.write(self._form.dropped_record(dropped) if dropped else b"")
                for record in kept:
                    out.write(record.content)
                out.flush()
                os.fsync(out.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self._folder)
        for part in parts:
            if part.path != path:
                part.path.unlink()
        return SeriesPart(path, parts[0].stamp, first, last, path.stat().st_size)

    def _read(self, parts: Sequence[SeriesPart]) -> tuple[list[FileSeriesRecord], Counter[str]]:
        """Return the records of some parts, and the number of records by kind that were dropped from these parts.

        Earlier versions of this library left files of any length. If such parts would take too much memory, only a sample of
        the records of each large kind is returned, and the rest counts as dropped.
        """
        records: list[FileSeriesRecord] = []
        dropped: Counter[str] = Counter()
        places: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        if sum(part.nbytes for part in parts) > _OVERSIZE * self._part_bytes:
            for record in self._records(parts):
                sizes[record.kind] += len(record.content)
        for record in self._records(parts):
            earlier = self._form.earlier(record)
            if earlier is not None:
                dropped.update(earlier)
                continue
            if places[record.kind] % max(1, sizes[record.kind] // (2 * self._part_bytes)) == 0:
                records.append(record)
            else:
                dropped[record.kind] += 1
                self.dropped += 1
            places[record.kind] += 1
        return records, dropped

    def _records(self, parts: Sequence[SeriesPart]) -> Iterator[FileSeriesRecord]:
        for part in parts:
            with part.path.open("rb") as file:
                yield from self._form.read(file)


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
