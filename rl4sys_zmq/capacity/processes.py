"""Child processes for benchmarks."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

__all__ = ["PATIENCE_S", "child"]

PATIENCE_S = 60.0
"""Longest time to wait for a child process, in seconds."""


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Start a new process with a pipe, yield this side of the pipe, and end the process after the ``with`` block.

    Args:
        target: Function to run in the process. Its first argument is the other side of the pipe.
        arguments: Further arguments of the function.
    """
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
