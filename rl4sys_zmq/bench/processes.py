"""A fresh process for a measurement, with a pipe to it."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

__all__ = ["PATIENCE_S", "child"]

PATIENCE_S = 60.0
"""Longest time to wait for a process, in seconds."""


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Start a fresh process with one end of a pipe, yield the other end, and end the process afterwards."""
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
