"""The digest of a state."""

from __future__ import annotations

import xxhash

from rl4sys_zmq.values import FlatWeights

__all__ = ["digest"]


def digest(flat: FlatWeights) -> int:
    """Return the xxh3-64 of the bytes of `flat` (contiguous, little-endian float32 ``[n]``), a u64.

    It detects accidents, not attacks. It takes 5 us for 70,000 elements.
    """
    return xxhash.xxh3_64_intdigest(flat.data)
