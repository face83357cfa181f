"""Memory for large messages: kept for the next ones, where the process is a learner and nothing else."""

from __future__ import annotations

import ctypes

__all__ = ["KEPT_BYTES", "keep_freed_memory"]

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
