"""Functions for the memory of a learner's or relay's process, and a thread that enforces a limit on it.

A limit is needed because libzmq buffers incomplete messages without a bound.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from rl4sys_zmq.errors import Closed, MemoryExceeded
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Worker

KEPT_BYTES = 256 << 20
"""Largest amount of freed memory that malloc keeps at the end of the heap, in bytes.

The value equals the amount of data that actors can send ahead to one learner thread.
"""

_HEAP_BYTES = 32 << 20  # the highest value that glibc accepts; larger blocks are mapped and unmapped one by one
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
STATM = "/proc/self/statm"


def keep_freed_memory() -> bool:
    """Make malloc keep up to 256 MiB of freed memory for reuse, which makes large messages cheaper. Return False if it cannot.

    By default, glibc returns the memory of a large message to the kernel as soon as it is freed. The next message then gets new
    pages, and each page of 4 KiB costs a page fault and must be cleared. The command line calls this function in a learner's
    process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(*option) == 1 for option in ((_M_MMAP_THRESHOLD, _HEAP_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES)))


def give_back_memory() -> None:
    """Return freed memory from malloc to the kernel, as far as possible. With a C library other than glibc, do nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes(statm: BinaryIO | None = None) -> int:
    """Return the resident memory of this process in bytes; 0 on a system without ``/proc``.

    `statm` can be the open file ``/proc/self/statm``. The call then needs no free descriptor.
    """
    with suppress(FileNotFoundError):
        text = Path(STATM).read_bytes() if statm is None else os.pread(statm.fileno(), 256, 0)
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def available_bytes() -> int:
    """Return the memory limit of this process in bytes: the lower of the machine's memory and the control group's limit."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # the file is missing, not readable, or contains "max"
            found.append(int(Path(file).read_text()))
    return min(found)


MEMORY_SHARE = 0.8
"""The default limit on the memory of a process, as a part of the available memory."""


def memory_limit(given: int | None) -> int | None:
    """Return the memory limit of a process that the command line starts, in bytes; None means no limit.

    `given` is the value of the command-line option: 0 for no limit, None for 80 % of the available memory.
    """
    return (round(MEMORY_SHARE * available_bytes()) if given is None else given) or None


log = get_logger(__name__)

LOOK_S = 0.2
CUT_ALL_S = 2.0
"""Time for which the memory must be over the limit before all connections are closed, in seconds."""

END_S = 6.0
"""Time for which the memory must be over the limit before the process ends, in seconds."""


class MemoryLimitThread(Worker):
    """A thread that checks the resident memory of the process five times a second and reacts if it exceeds a limit.

    While the memory is over the limit, each check closes the connections that have completed no message for a while: libzmq
    keeps the received part of an incomplete message until the connection ends. After 2 s over the limit, all connections are
    closed once. Actors reconnect and lose nothing. After 6 s over the limit, the thread ends with `MemoryExceeded`, and the
    learner or relay ends too.
    """

    def __init__(self, limit_bytes: int, cut: Callable[[bool], int], on_end: Callable[[], None]) -> None:
        """Create the thread. `cut` closes connections (True: all) and returns how many; `on_end` runs after an error."""
        super().__init__("rl4sys-memory")
        self._limit_bytes, self._cut, self._on_end = limit_bytes, cut, on_end
        self._over_since: float | None = None
        self._cut_all = False

    def run(self) -> None:
        """Check the memory five times a second, until `stop` is called. This is the body of the thread."""
        with ExitStack() as stack:
            statm = stack.enter_context(open(STATM, "rb")) if os.path.exists(STATM) else None
            while not self._stop_asked.wait(LOOK_S):
                self.look(resident_bytes(statm), time.monotonic())

    def look(self, used_bytes: int, now: float) -> None:
        """Compare the used memory with the limit. Over the limit, close connections, or raise `MemoryExceeded` in the end."""
        if used_bytes <= self._limit_bytes:
            self._over_since, self._cut_all = None, False
            return
        if self._over_since is None:
            self._over_since = now
            log.warning("%d MiB are used, the limit is %d MiB; closing connections", used_bytes >> 20, self._limit_bytes >> 20)
        over_s = now - self._over_since
        if over_s >= END_S:
            raise MemoryExceeded(used_bytes, self._limit_bytes)
        all_connections = over_s >= CUT_ALL_S and not self._cut_all
        self._cut_all |= all_connections
        with suppress(Closed):
            count = self._cut(all_connections)
            if count:
                log.warning(
                    "%d connections closed%s", count, "" if all_connections else " that had completed no message for a while"
                )
        give_back_memory()

    def raise_if_dead(self) -> None:
        """Raise the exception that ended the thread. Do nothing if it runs, or has ended without one."""
        if isinstance(self.error, MemoryExceeded):
            raise self.error
        super().raise_if_dead()

    def on_death(self, error: BaseException) -> None:
        """Stop the learner or relay, because an exception has ended this thread."""
        self._on_end()
