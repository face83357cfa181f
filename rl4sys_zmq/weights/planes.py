"""Integers as planes of bytes: the high planes are almost all zero, the lowest is noise and stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.weights.bits import Reader
from rl4sys_zmq.weights.symbols import pack_symbols, unpack_symbols

__all__ = ["pack", "unpack"]

Words = NDArray[np.signedinteger[Any]]


def pack(words: Words) -> bytes:
    """The planes of the zigzag form (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), from the lowest byte to the highest."""
    zigzag = words << 1
    zigzag ^= words >> (8 * words.itemsize - 1)
    parts = zigzag.astype(zigzag.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(-1, words.itemsize)
    return b"".join(pack_symbols(np.ascontiguousarray(parts[:, plane])) for plane in range(words.itemsize))


def unpack(reader: Reader, size: int, word: type[np.int16] | type[np.int32]) -> NDArray[np.int32]:
    """What `pack` wrote of `size` integers of the type `word`.

    Raises:
        WeightsError: when it is something else (``reason="payload"``).
    """
    zigzag = np.zeros(size, dtype=np.uint32)
    for plane in range(np.dtype(word).itemsize):
        zigzag |= unpack_symbols(reader, size).astype(np.uint32) << np.uint32(8 * plane)
    out: NDArray[np.int32] = (zigzag >> np.uint32(1)).view(np.int32)
    out ^= -(zigzag & np.uint32(1)).view(np.int32)
    return out
