"""Standard output and error whose loss does not end the work of a process.

A stream is lost if its reader has gone, its disk is full, or it was closed before the program started.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from rl4sys_zmq.logs import get_logger

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = get_logger(__name__)


class _Output(io.RawIOBase):
    """The descriptor of a standard stream. After the first error, which is raised or logged, everything written is dropped."""

    stdout_required = False

    def __init__(self, fd: int, *, is_open: bool) -> None:
        self._fd, self._is_open, self._is_lost = fd, is_open, False

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return self._is_open and os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        if not self._is_lost:
            try:
                if not self._is_open:
                    raise OSError(errno.EBADF, "it is closed")
                return os.write(self._fd, data)
            except OSError as exc:
                self._is_lost = True
                if self._fd == 1 and _Output.stdout_required:
                    raise OSError(exc.errno, exc.strerror, "stdout") from exc
                log.warning("%s is lost (%s); the process goes on without it", ("stdout", "stderr")[self._fd - 1], exc.strerror)
        return memoryview(data).nbytes


def replace_streams(*, stdout_required: bool = False) -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams that can be lost. The program that owns the process calls this first."""
    for _ in filter(lambda stream: stream is None, (sys.stdin, sys.stdout, sys.stderr)):
        fd = os.open(os.devnull, os.O_RDWR)  # no socket and no file gets the number of a closed stream
        if fd > 2:
            os.close(fd)
        else:
            os.set_inheritable(fd, True)
    _Output.stdout_required = stdout_required
    sys.stdout, sys.stderr = _stream(sys.stdout, 1), _stream(sys.stderr, 2)


def _stream(old: TextIO | None, fd: int) -> TextIO:
    raw = _Output(fd, is_open=old is not None)
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", "backslashreplace")
    at_once = fd == 2 or raw.isatty() or getattr(old, "write_through", False)  # python -u
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=at_once)


def outlive_output() -> None:
    """Go on if stdout is lost. Commands call this whose work is not their output."""
    _Output.stdout_required = False
