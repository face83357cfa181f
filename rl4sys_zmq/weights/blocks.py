"""Blocks of `BLOCK` weights. A diff leaves out the blocks in which nothing changes, such as those of a frozen layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.weights.bits import BitReader, pack_gaps, varint

BLOCK = 1024
SHARE = 0.75
"""The share of active blocks (blocks with a change) above which all blocks are treated as active."""


def active(different: NDArray[np.bool_], count: int) -> tuple[NDArray[np.intp] | None, bytes]:
    """Return the indices of all weights in active blocks, and the encoded list of these blocks. None stands for all weights.

    Args:
        different: True for each element that changes.
        count: Number of elements that change.
    """
    size = different.size
    blocks = -(-size // BLOCK)
    if blocks < 2 or not 0 < count <= SHARE * size:
        return None, varint(0)
    busy = np.logical_or.reduceat(different, np.arange(0, size, BLOCK))
    numbers = np.flatnonzero(busy)
    if numbers.size > SHARE * blocks:
        return None, varint(0)
    return np.flatnonzero(np.repeat(busy, BLOCK)[:size]), varint(numbers.size) + pack_gaps(numbers, blocks)


def read(reader: BitReader, size: int) -> NDArray[np.intp] | None:
    """Read a list of blocks that `active` encoded for `size` weights. Return the indices of their weights; None for all."""
    blocks = -(-size // BLOCK)
    count = reader.varint(blocks)
    if not count:
        return None
    busy = np.zeros(blocks, dtype=np.bool_)
    busy[reader.gaps(count, blocks)] = True
    return np.flatnonzero(np.repeat(busy, BLOCK)[:size])
