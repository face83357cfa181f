"""Integers as planes of bytes: the high planes are almost all zero, the lowest is noise and stays as it is.

All work but the compressing goes piece by piece, so that what lies between two steps stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.weights.bits import Reader
from rl4sys_zmq.weights.symbols import pack_symbols, unpack_symbols

__all__ = ["Words", "pack", "pieces", "unpack"]

Words = NDArray[np.signedinteger[Any]]
Word = type[np.int16] | type[np.int32]

PIECE = 1 << 15
"""Elements; a few arrays of so many words fit into a second-level cache."""


def pieces(size: int) -> Iterator[slice]:
    """The pieces of `size` elements, in order."""
    return (slice(begin, min(size, begin + PIECE)) for begin in range(0, size, PIECE))


def pack(parts: Iterable[Words], size: int, word: Word) -> bytes:
    """The planes of the zigzag form (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), from the lowest byte to the highest.

    Args:
        parts: the integers, piece by piece, of the type `word`.
        size: how many there are in all.
        word: their type.
    """
    itemsize = np.dtype(word).itemsize
    planes = np.empty((itemsize, size), dtype=np.uint8)
    at = 0
    for words in parts:
        here = slice(at, at + words.size)
        at += words.size
        zigzag = words << 1
        zigzag ^= words >> (8 * itemsize - 1)
        for lowest in range(0, itemsize, 2):  # halves first: to take bytes apart by strides costs three times as much
            half = (zigzag >> 16 if lowest else zigzag).astype(np.uint16)
            planes[lowest, here] = half
            planes[lowest + 1, here] = half >> np.uint16(8)
    return b"".join(pack_symbols(plane) for plane in planes)


def unpack(reader: Reader, size: int, word: Word) -> Iterator[tuple[slice, Words]]:
    """What `pack` wrote of `size` integers of the type `word`, piece by piece; all is read before the first of them.

    Raises:
        WeightsError: when it is something else (``reason="payload"``).
    """
    planes = [unpack_symbols(reader, size) for _ in range(np.dtype(word).itemsize)]
    return ((piece, _words([plane[piece] for plane in planes])) for piece in pieces(size))


def _words(planes: list[NDArray[np.uint8]]) -> Words:
    """The integers whose zigzag form has these two or four bytes each."""
    halves = []
    for low, high in zip(planes[::2], planes[1::2], strict=True):
        half = high.astype(np.uint16)
        half <<= np.uint16(8)
        half |= low
        halves.append(half)
    if len(halves) == 1:
        narrow: NDArray[np.int16] = (halves[0] >> np.uint16(1)).view(np.int16)
        narrow ^= np.negative((halves[0] & np.uint16(1)).view(np.int16))
        return narrow
    zigzag = halves[1].astype(np.uint32)
    zigzag <<= np.uint32(16)
    zigzag |= halves[0]
    wide: NDArray[np.int32] = (zigzag >> np.uint32(1)).view(np.int32)
    zigzag &= np.uint32(1)
    wide ^= np.negative(zigzag.view(np.int32))
    return wide
