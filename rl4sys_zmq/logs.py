"""Loggers that do not pass on the errors of the program's log handlers, and standard streams that can be lost.

A stream is lost if its reader has gone, its disk is full, or it was closed before the program started. The process goes on.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def printable(text: str, keep: str = "") -> str:
    """Return a text whose unprintable characters are escaped, so that a peer's text cannot control a terminal.

    The characters in `keep` stay as they are.
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def _printable_argument(argument: object) -> object:
    text = str(argument) if isinstance(argument, (str, BaseException, PurePath)) else ""
    return argument if text.isprintable() else printable(text, keep="\n\t")


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name. If a log handler or filter raises an exception, the logger drops the record.

    Unprintable characters in the arguments of a record are escaped (`printable`). Line breaks stay, for tracebacks. Each record
    has the attribute `context`, a JSON text, because the log formats of programs for RL4Sys contain that attribute.

    Log handlers belong to the program, and any of them can raise. If a program has closed `sys.stderr`, as daemons do, the
    default handler of `logging` raises `ValueError`. Such an error must end neither a call of the program nor a thread of the
    package.
    """
    logger = logging.getLogger(name)
    if "handle" in vars(logger):  # it is such a logger already
        return logger
    handle = logger.handle

    def handle_safely(record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            if isinstance(record.args, tuple):
                record.args = tuple(_printable_argument(argument) for argument in record.args)
            record.__dict__.setdefault("context", "{}")
            handle(record)

    logger.handle = handle_safely  # type: ignore[method-assign]
    return logger


MAX_NAME_CHARS = 200


class ForwardingHandler(logging.Handler):
    """A log handler of a worker process that passes the name, the level and the text of each record to a function.

    Args:
        send: The function, which sends the three values to the learner, or drops them while it cannot send.
        max_chars: Limit on the text, in characters.
    """

    def __init__(self, send: Callable[[str, int, str], object], max_chars: int) -> None:
        super().__init__()
        self._send, self._max_chars = send, max_chars

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            name, text = (
                part.encode(errors="backslashreplace").decode()  # handlers of the learner must be able to encode it
                for part in (record.name[:MAX_NAME_CHARS], self.format(record)[: self._max_chars])
            )
            self._send(name, record.levelno, text)
        except Exception:  # noqa: BLE001 - as in logging's own handlers: a wrong call of a logger must not raise in its caller
            self.handleError(record)


log = get_logger(__name__)


class _Output(io.RawIOBase):
    """A standard stream that can be lost. Its first error is raised or logged; after that, all output is dropped."""

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
    """Replace `sys.stdout` and `sys.stderr` by streams whose loss does not end the program.

    The program that owns the process calls this first. With `stdout_required`, a write to a lost `sys.stdout` raises an error.
    """
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
    """Let the program continue if its standard output is lost. For commands whose purpose is not their output."""
    _Output.stdout_required = False
