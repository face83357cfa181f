"""Standard output and error whose loss does not end the work of a process.

A stream is lost if its reader has gone, its disk is full, or it was closed before the program started.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from rl4sys_zmq.logs import get_logger

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["lost_output", "outlive_output", "replace_streams"]

log = get_logger(__name__)


class _Output(io.RawIOBase):
    """A descriptor to which a process writes text. After the first error it drops everything.

    Attributes:
        error: The error of the write that failed.
        required: True to raise the first error. It is logged otherwise.
    """

    def __init__(self, fd: int, *, is_open: bool, required: bool) -> None:
        self._fd, self._is_open = fd, is_open
        self.error: OSError | None = None
        self.required = required

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return self._is_open and os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        if self.error is None:
            try:
                return self._write(data)
            except OSError as exc:
                self.error = exc
                if self.required:
                    raise
                name = "stdout" if self._fd == 1 else "stderr"
                log.warning("%s is lost (%s); the process goes on without it", name, exc.strerror)
        return memoryview(data).nbytes

    def _write(self, data: ReadableBuffer) -> int:
        if not self._is_open:
            raise OSError(errno.EBADF, "it is closed")
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:  # another program has made the terminal or pipe non-blocking
                select.select([], [self._fd], [])


def replace_streams(*, stdout_required: bool = False) -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams that can be lost. The program that owns the process calls this first.

    The numbers of closed standard streams are taken, so that no socket and no file gets them.

    Args:
        stdout_required: True if a failed write to stdout raises `OSError`, until `outlive_output`.
    """
    for _ in filter(lambda stream: stream is None, (sys.stdin, sys.stdout, sys.stderr)):
        if (fd := os.open(os.devnull, os.O_RDWR)) > 2:  # an imported module has taken the number
            os.close(fd)
        else:
            os.set_inheritable(fd, True)
    sys.stdout = _stream(sys.stdout, 1, required=stdout_required)
    sys.stderr = _stream(sys.stderr, 2, required=False)


def _stream(old: TextIO | None, fd: int, *, required: bool) -> TextIO:
    raw = _Output(fd, is_open=old is not None, required=required)
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=fd == 2 or raw.isatty())


def outlive_output() -> None:
    """Go on without stdout if it is lost, because the work of this command is not its output."""
    if (raw := _raw(sys.stdout)) is not None:
        raw.required = False


def lost_output() -> OSError | None:
    """Return the error by which stdout was lost, or None."""
    raw = _raw(sys.stdout)
    return raw.error if raw is not None else None


def _raw(stream: TextIO) -> _Output | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Output) else None
