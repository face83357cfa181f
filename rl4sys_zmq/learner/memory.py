"""The memory of the process: its size, its limit, and a setting that keeps freed memory."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["KEPT_BYTES", "available_bytes", "give_back_memory", "keep_freed_memory", "resident_bytes"]

KEPT_BYTES = 256 << 20
"""Freed memory that can stay at the end of the heap, in bytes. It equals the credit in bytes of one learner thread."""

_HEAP_BYTES = 32 << 20  # the highest value that glibc accepts; larger blocks are mapped and unmapped one by one
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory, for the whole process.

    By default glibc returns the memory of large messages to the kernel as soon as they are freed. The next messages then get
    new pages, and each page of 4 KiB costs a page fault and is cleared. The command line calls this in a learner's process.

    Returns:
        True if the setting took effect; False with a C library other than glibc, where nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(*option) == 1 for option in ((_M_MMAP_THRESHOLD, _HEAP_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES)))


def give_back_memory() -> None:
    """Return the memory that malloc keeps to the kernel, as far as possible. Without glibc, do nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 on a system without ``/proc``."""
    with suppress(FileNotFoundError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def available_bytes() -> int:
    """Return the memory limit of this process in bytes: the lower of the machine's memory and the control group's limit."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # the file is missing, not readable, or contains "max"
            found.append(int(Path(file).read_text()))
    return min(found)
