"""The dead-letter folder of a run directory.

::

    RUN/dead/
      2026-11-21/luna,3f2a9c41,7,1042.msg     the segment's `Submit`: each frame after its length (u32, little-endian)
      2026-11-21/luna,3f2a9c41,7,1042.json    the stream of the segment, and why it was quarantined

A file name has the client, the actor, the origin and the sequence number, encoded by `rl4sys_zmq.names.file_name`. So no two
segments have the same file name, and no file name leads out of the folder.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.names import file_name
from rl4sys_zmq.private import make_private, open_private
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment

MAX_LETTERS = 1_000
MAX_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """One dead letter on disk. `path` is the ``.msg`` file with the segment, and `nbytes` its size."""

    path: Path
    client_id: str
    actor_id: str
    origin: int
    seq: int
    reason: str
    at_unix_s: float
    nbytes: int


class DeadLetterFolder:
    """The folder of dead letters. Use the object in one thread.

    Each write removes the oldest dead letters beyond `max_letters` segments or `max_bytes` bytes.
    """

    def __init__(self, folder: Path, *, max_letters: int = MAX_LETTERS, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._max_letters, self._max_bytes = folder, max_letters, max_bytes
        self._held: deque[tuple[Path, int]] | None = None
        self._bytes = 0

    def write(self, client_id: str, letter: QuarantinedSegment, at_unix_s: float) -> Path:
        """Write a quarantined segment, and return the path of its ``.msg`` file."""
        held = self._look()
        day = self._folder / time.strftime("%Y-%m-%d", time.gmtime(at_unix_s))
        make_private(day)
        path = day / (file_name(client_id, letter.actor_id, str(letter.origin), str(letter.seq)) + ".msg")
        content = b"".join(part for frame in letter.body for part in (_LENGTH.pack(len(frame)), bytes(frame)))
        about = {
            "client_id": client_id,
            "actor_id": letter.actor_id,
            "origin": letter.origin,
            "seq": letter.seq,
            "reason": letter.reason,
            "at_unix_s": at_unix_s,
        }
        _write(path.with_suffix(".json"), json.dumps(about).encode())
        _write(path, content)
        held.append((path, len(content)))
        self._bytes += len(content)
        while held and (len(held) > self._max_letters or self._bytes > self._max_bytes):
            oldest, nbytes = held.popleft()
            self._bytes -= nbytes
            oldest.unlink(missing_ok=True)
            oldest.with_suffix(".json").unlink(missing_ok=True)
        return path

    def _look(self) -> deque[tuple[Path, int]]:
        """Return the path and size of each dead letter on disk, also of earlier runs, oldest first."""
        if self._held is None:
            letters = sorted((p.stat().st_mtime, p, p.stat().st_size) for p in self._folder.glob("*/*.msg"))
            self._held = deque((path, size) for _, path, size in letters)
            self._bytes = sum(size for _, _, size in letters)
        return self._held


def list_letters(folder: Path) -> list[StoredDeadLetter]:
    """Return all dead letters in ``RUN/dead``, oldest first, without those whose ``.json`` file cannot be read."""
    letters = []
    for path in folder.glob("*/*.msg"):
        try:
            about = json.loads(path.with_suffix(".json").read_text())
            whose = str(about["client_id"]), str(about["actor_id"]), int(about["origin"]), int(about["seq"])
            letters.append(StoredDeadLetter(path, *whose, str(about["reason"]), float(about["at_unix_s"]), path.stat().st_size))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return sorted(letters, key=lambda letter: (letter.at_unix_s, letter.path))


def read_letter(path: Path) -> Sequence[Frame]:
    """Return the frames of the message in the ``.msg`` file of a dead letter."""
    content = memoryview(path.read_bytes())
    frames: list[Frame] = []
    start = 0
    while start < len(content):
        if len(frames) == MAX_MESSAGE_FRAMES:
            raise ValueError(f"{path} has more than {MAX_MESSAGE_FRAMES} frames; is it a dead letter?")
        if start + _LENGTH.size > len(content):
            raise ValueError(f"{path} is truncated")
        (size,) = _LENGTH.unpack_from(content, start)
        start += _LENGTH.size
        if start + size > len(content):
            raise ValueError(f"{path} is truncated")
        frames.append(content[start : start + size])
        start += size
    return frames


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(open_private(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "wb") as file:
        file.write(content)
