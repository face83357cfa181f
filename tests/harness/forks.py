"""Forked children: one that lives as long as a test wants, and one that does some work and ends."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHILD_S = 20


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


def work_in_child(work: Callable[[], object]) -> int:
    """Fork a child that calls `work`, and return its pid. Its exit code is 0 unless `work` raises."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # pytest must not continue in the child
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def works_in_a_child(work: Callable[[], object]) -> bool:
    """Call `work` in a forked child. Return True if it returns, and False if it raises or hangs."""

    def limited() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)
        work()

    return exit_code_of(work_in_child(limited)) == 0
