"""The memory of the process: kept for the next large messages, where it is a learner and nothing else; how much there is."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["KEPT_BYTES", "available_bytes", "give_back_memory", "keep_freed_memory", "resident_bytes"]

KEPT_BYTES = 256 << 20
"""How much freed memory may stay at the end of the heap: as much as credit lets wait for one learner thread."""

_HEAP_BYTES = 32 << 20  # the most that malloc takes: larger blocks are mapped, and unmapped, one by one
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Has malloc keep what was freed, for the whole process.

    By itself glibc gives what a few large messages took back to the kernel as soon as they are freed, and the next messages get
    other pages: each of 4 KiB costs a fault and is cleared.

    Returns:
        Whether it took effect; False with another C library than glibc, where nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(*option) == 1 for option in ((_M_MMAP_THRESHOLD, _HEAP_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES)))


def give_back_memory() -> None:
    """Gives what malloc has kept back to the kernel, as far as it can; does nothing with another C library than glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """The memory of this process that is in RAM; 0 on a system without ``/proc``."""
    with suppress(FileNotFoundError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def available_bytes() -> int:
    """The memory that this process may have: the machine's, or less where its control group has a limit."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # not there, not readable, or the word "max"
            found.append(int(Path(file).read_text()))
    return min(found)
