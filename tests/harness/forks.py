"""A forked child that lives as long as a test wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def forked_child(work: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Fork a child that calls `work`, and lives until the end of the ``with`` block, which begins after `work`."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            code = 0
        finally:
            os._exit(code)
    os.close(ready[1])
    try:
        assert os.read(ready[0], 1) == b"x", "the child has failed"
        yield
    finally:
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        for end in (ready[0], *go):
            os.close(end)
