"""The places where a worker keeps its client's checkpoints and the record of segments in training.

``training.mark`` begins with a head: whether the end of the process is *excused* (it was asked to end), and the number and the
size of the ranges that follow. ``suspects.json`` has the segments that could have crashed earlier processes
(`rl4sys_zmq.learner.training.suspects`).

`LocalStorage` uses the folder of the client in the run directory. A worker on another machine sends the files to the gateway
(`rl4sys_zmq.remote.worker_side_storage`).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest, CheckpointStore
from rl4sys_zmq.policies import StoredPolicy
from rl4sys_zmq.private import make_private
from rl4sys_zmq.wire.thread_messages import AssignClient

MARK, SUSPECTS_FILE = "training.mark", "suspects.json"
MARK_BYTES = 1 << 18
MAX_RANGES = 1024  # they fit into MARK_BYTES even with the longest names
_HEAD = struct.Struct("<4sIII")  # magic, excused, number of ranges, their bytes
_RANGE = struct.Struct("<HQQQ")  # bytes of the actor's name, origin, first, end
_MAGIC = b"R4TM"

SegmentRange = tuple[Key, int, int]
"""The segments ``[first, end)`` of one stream."""


def encode_range(key: Key, first: int, end: int) -> bytes:
    name = key[0].encode()
    return _RANGE.pack(len(name), key[1], first, end) + name


def encode_mark(count: int, ranges: bytes, *, excused: bool = False) -> bytes:
    """Return the content of ``training.mark``, the file that lists the segments in training.

    Args:
        count: The number of ranges of segments in the list.
        ranges: The ranges as bytes: the results of `encode_range`, joined.
        excused: True if the process was asked to end. Then the segments in the list do not become suspects.
    """
    return _HEAD.pack(_MAGIC, excused, count, len(ranges)) + ranges


def is_excused(mark: bytes) -> bool:
    """Return True if `mark`, the content of ``training.mark``, is invalid or empty, or says that the process was asked to end."""
    if len(mark) < _HEAD.size:
        return True
    magic, excused, _, _ = _HEAD.unpack_from(mark)
    return magic != _MAGIC or bool(excused)


def read_mark(mark: bytes) -> list[SegmentRange]:
    """Return the segments that were in training when the worker's process ended; [] if the process was asked to end."""
    if is_excused(mark):
        return []
    _, _, count, size = _HEAD.unpack_from(mark)
    data = mark[_HEAD.size : _HEAD.size + size]
    ranges: list[SegmentRange] = []
    at = 0
    while len(ranges) < min(count, MAX_RANGES + 1) and at + _RANGE.size <= len(data):
        length, origin, first, end = _RANGE.unpack_from(data, at)
        at += _RANGE.size
        ranges.append(((data[at : at + length].decode("utf-8", "replace"), origin), first, end))
        at += length
    return ranges if count <= MAX_RANGES else []


class SuspectStorage(Protocol):
    """The place of one worker's record of segments in training. The next worker of the client reads it.

    All methods except `excuse` raise OSError if the record cannot be read or written. Only the learner thread calls them.
    """

    @property
    def each_message(self) -> bool:
        """True to record segments before the algorithm observes them; False to record only those of each update."""

    def read(self) -> tuple[bytes, bytes]:
        """Return the suspected segments as JSON, and the previous worker's ``training.mark``. Either can be empty."""

    def begin(self) -> None:
        """Begin a new ``training.mark``, without segments."""

    def write(self, at: int, data: bytes, count: int) -> None:
        """Keep the first `at` bytes of the list in ``training.mark``, and replace the rest of the list by `data`.

        The list consists of ranges from `encode_range`. It then has `count` ranges in all.
        """

    def excuse(self) -> None:
        """Record that the process was asked to end. This method does not block, and any thread can call it."""

    def save(self, suspects: bytes) -> None:
        """Store the suspected segments, as JSON."""


class SuspectFiles:
    """The files ``training.mark`` and ``suspects.json`` in a folder. ``training.mark`` is mapped memory.

    The files are not flushed to the disk, so they survive the end of the process, but not a loss of power.
    """

    each_message = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._map: mmap.mmap | None = None

    def read(self) -> tuple[bytes, bytes]:
        make_private(self._folder)
        return _content(self._folder / SUSPECTS_FILE), _content(self._folder / MARK)[:MARK_BYTES]

    def begin(self) -> None:
        """Replace ``training.mark`` by a new file, and map it. An earlier worker that still runs writes to the old file."""
        path = self._folder / MARK
        fresh = path.with_name(f".{path.name}")
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, encode_mark(0, b"").ljust(MARK_BYTES, b"\0"), 0)  # reserves the space on disk
            self._map = mmap.mmap(file, MARK_BYTES)
        finally:
            os.close(file)
        fresh.replace(path)

    def write(self, at: int, data: bytes, count: int) -> None:
        assert self._map is not None
        start = _HEAD.size + at
        self._map[start : start + len(data)] = data
        struct.pack_into("<II", self._map, 8, count, at + len(data))

    def excuse(self) -> None:
        if self._map is not None:
            struct.pack_into("<I", self._map, 4, 1)

    def save(self, suspects: bytes) -> None:
        replace_file(self._folder / SUSPECTS_FILE, suspects)

    def store(self, mark: bytes) -> None:
        """Replace ``training.mark``, for a worker on another machine."""
        replace_file(self._folder / MARK, mark)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file with mode 0600 as a whole, without a flush to the disk."""
    fresh = path.with_name(f".{path.name}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


class CheckpointStorage(Protocol):
    """The interface of the checkpoints of one client, for its learner thread. `CheckpointStore` implements it."""

    @property
    def damaged(self) -> Sequence[str]:
        """One error message for each damaged checkpoint that was renamed since the start of the learner thread."""

    def load(self) -> tuple[CheckpointManifest, dict[str, Any]] | None:
        """Return the newest intact checkpoint, as `CheckpointStore.load` does."""

    def stored_pieces(self) -> Collection[str]:
        """Return the names of the pieces of the state that the next checkpoint need not contain (`StatePiece`)."""

    def write(
        self,
        manifest: CheckpointManifest,
        state: Mapping[str, Any],
        *,
        policy: StoredPolicy | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> CheckpointManifest:
        """Write one checkpoint, with the arguments of `CheckpointStore.write`. It then survives the loss of this machine."""


class WorkerStorage(Protocol):
    """The place where a worker keeps its files."""

    def checkpoints(self, assign: AssignClient) -> CheckpointStorage:
        """Return the checkpoints of a client. Afterwards, workers with lower generations cannot write there."""

    def folder(self, assign: AssignClient) -> Path | None:
        """Return the folder for data of the algorithm that are larger than memory should be; None: keep them in memory."""

    def suspects(self, assign: AssignClient) -> SuspectStorage:
        """Return the place of the record of segments in training (`CrashSuspectRecord`)."""


class LocalStorage:
    """The storage of a worker that has access to the learner's run directory."""

    def checkpoints(self, assign: AssignClient) -> CheckpointStore:
        store = CheckpointStore(Path(assign.checkpoints))
        store.claim(assign.generation)
        return store

    def folder(self, assign: AssignClient) -> Path | None:
        return Path(assign.checkpoints) if assign.checkpoints else None

    def suspects(self, assign: AssignClient) -> SuspectFiles:
        return SuspectFiles(Path(assign.checkpoints))
