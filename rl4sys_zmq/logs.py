"""The loggers of the package, which do not pass on the errors of the program's log handlers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import PurePath


def printable(text: str, keep: str = "") -> str:
    """Return a text with unprintable characters except `keep` escaped, so that a peer's text cannot control a terminal."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def _printable_argument(argument: object) -> object:
    text = str(argument) if isinstance(argument, (str, BaseException, PurePath)) else ""
    return argument if text.isprintable() else printable(text, keep="\n\t")


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name. Its methods raise no exception of a handler or filter, and drop that record.

    Texts in the arguments of a record are escaped (`printable`). Line breaks stay, for tracebacks. Each record has the attribute
    `context`, as JSON, because the log formats of programs for RL4Sys contain it.

    Handlers belong to the program, and any of them can raise. If a program has closed `sys.stderr`, as daemons do, the handler
    that `logging` uses by default raises `ValueError`. That must end neither a call of the program nor a thread of the package.
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
    """A log handler of a worker process: it gives the name, the level and the text of each record to `send`.

    Args:
        send: Sends them to the learner. It drops them while that is impossible.
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
