"""A process of a measurement, fresh and ended in the end, with a pipe to it."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["PATIENCE_S", "child"]

PATIENCE_S = 60.0
"""How long a process is waited for, in seconds."""


@contextlib.contextmanager
def child(target: Any, *arguments: Any) -> Iterator[Connection]:
    """A fresh process with one end of a pipe; ended in the end."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    try:
        yield here
        process.join(PATIENCE_S)
    finally:
        if process.is_alive():
            process.terminate()
            process.join()
        here.close()
