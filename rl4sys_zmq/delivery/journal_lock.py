"""The lock of a journal: one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rl4sys_zmq.errors import JournalError
from rl4sys_zmq.resource import Resource

__all__ = ["JournalLock"]


class JournalLock(Resource):
    """Keeps other processes out of a journal. The lock file stays: to remove it would let two in."""

    def __init__(self, path: Path) -> None:
        """Takes the lock of the journal at `path`.

        Raises:
            JournalError: when another process is in, or the lock file can't be made.
        """
        self._path = path
        self._file = self._take()

    def renew(self) -> None:
        """Takes the lock again when its file is not the one in its place any more.

        Raises:
            JournalError: when another process is in, or the lock file can't be made.
        """
        mine = os.fstat(self._file)
        try:
            there = os.stat(f"{self._path}.lock")
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            file = self._take()
            self.close()
            self._file = file

    def close(self) -> None:
        """Lets others in."""
        file, self._file = self._file, -1
        if file >= 0:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may still have the descriptor
            os.close(file)

    def _take(self) -> int:
        lock = f"{self._path}.lock"
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(
                str(self._path), f"{lock} can't be made ({error.strerror})", "make its folder, and make it writable"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise JournalError(
                str(self._path), f"is in use by another learner (it holds {lock})", "stop that one, or use another path"
            ) from error
        return fd
