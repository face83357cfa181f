"""The loggers of the package, which do not pass on the errors of the program's log handlers."""

from __future__ import annotations

import contextlib
import logging

__all__ = ["get_logger"]


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name. Its methods raise no exception of a handler or filter, and drop that record.

    Handlers belong to the program, and any of them can raise. If a program has closed `sys.stderr`, as daemons do, the handler
    that `logging` uses by default raises `ValueError`. That must end neither a call of the program nor a thread of the package.
    """
    logger = logging.getLogger(name)
    handle = logger.handle

    def handle_safely(record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            handle(record)

    logger.handle = handle_safely  # type: ignore[method-assign]
    return logger
