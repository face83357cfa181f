"""The lock of the journal. Only one process can hold it at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rl4sys_zmq.errors import JournalError
from rl4sys_zmq.forks import call_in_child
from rl4sys_zmq.resource import Resource


class JournalLock(Resource):
    """The lock that excludes other processes from a journal: an ``flock`` on the file with the suffix ``.lock``.

    The lock file stays after `close`. If it were removed, two processes could each hold a lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._acquire()
        call_in_child(self, JournalLock.abandon)

    def renew(self) -> None:
        """Acquire the lock again, on a new lock file, if the old file was removed or replaced."""
        mine = os.fstat(self._file)
        try:
            there = os.stat(f"{self._path}.lock")
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            file = self._acquire()
            self.close()
            self._file = file

    def abandon(self) -> None:
        """Close the descriptor in a forked child. The parent keeps the lock, and its end releases it although the child runs."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def close(self) -> None:
        """Release the lock."""
        file, self._file = self._file, -1
        if file >= 0:
            fcntl.flock(file, fcntl.LOCK_UN)  # needed because a child of a fork in C can still have the descriptor
            os.close(file)

    def _acquire(self) -> int:
        lock = f"{self._path}.lock"
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(
                str(self._path), f"{lock} cannot be created ({error.strerror})", "create its folder, and make it writable"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise JournalError(
                str(self._path), f"is in use by another learner (it holds {lock})", "stop that learner, or use another path"
            ) from error
        return fd
