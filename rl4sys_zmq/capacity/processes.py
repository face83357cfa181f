"""Child processes that send to, or listen to, what is measured."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

__all__ = ["PATIENCE_S", "START_S", "child", "senders"]

PATIENCE_S = 60.0
"""Longest time to wait for a child process, in seconds."""
START_S = 20.0
"""Longest time until the first steps of senders arrive, in seconds."""


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run a function, whose first argument is a pipe, in a new process. Yield the other side of the pipe."""
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


@contextlib.contextmanager
def senders(targets: Sequence[tuple[Callable[..., None], tuple[object, ...]]], seconds: float) -> Iterator[None]:
    """Run functions in processes during the ``with`` block. Their last argument is the latest Unix time of their end."""
    spawn = multiprocessing.get_context("spawn")
    until_s = time.time() + START_S + seconds
    running = [spawn.Process(target=target, args=(*args, until_s)) for target, args in targets]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.join()
