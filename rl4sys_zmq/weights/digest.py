"""The digest of a policy version: a checksum over all of its weights."""

from __future__ import annotations

import xxhash

from rl4sys_zmq.values import FlatWeights

__all__ = ["digest"]


def digest(flat: FlatWeights, others: bytes = b"") -> int:
    """Return the 64-bit checksum xxh3-64 of the weights of a policy version. It takes 5 us for 70,000 elements.

    The checksum detects accidental changes, not attacks.

    Args:
        flat: The float32 weights, contiguous, little-endian, ``[n]``.
        others: The bytes of the tensors that are not float32 (`PolicySnapshot.others`).
    """
    if not others:
        return xxhash.xxh3_64_intdigest(flat.data)
    hasher = xxhash.xxh3_64(flat.data)
    hasher.update(others)
    return hasher.intdigest()
