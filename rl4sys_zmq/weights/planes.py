"""Integers as planes of bytes: the high planes are almost all the same, the lowest is noise and stays as it is.

The bytes are digits to the base 256 of both signs, from -128 to 127, plus 128: so a small integer of either sign has nothing but
128 in its high planes. All work but the compressing goes piece by piece, so that what lies between two steps stays in the
processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.weights.bits import BitReader, Buffer
from rl4sys_zmq.weights.symbols import pack_symbols, unpack_symbols

__all__ = ["Words", "pack", "pieces", "unpack"]

Words = NDArray[np.signedinteger[Any]]
Word = type[np.int16] | type[np.int32]

_ZERO: dict[type, np.int16 | np.int32] = {np.int16: np.int16(0x8080 - 0x10000), np.int32: np.int32(0x80808080 - 0x100000000)}
"""An integer whose digits are all 0."""
PIECE = 1 << 15
"""Elements; a few arrays of so many words fit into a second-level cache."""


def pieces(size: int) -> Iterator[slice]:
    """The pieces of `size` elements, in order."""
    return (slice(begin, min(size, begin + PIECE)) for begin in range(0, size, PIECE))


def pack(parts: Iterable[Words], size: int, word: Word) -> list[Buffer]:
    """The planes, from the lowest byte to the highest, as buffers to be joined.

    Args:
        parts: the integers, piece by piece, of the type `word`.
        size: how many there are in all.
        word: their type.
    """
    itemsize, zero = np.dtype(word).itemsize, _ZERO[word]
    planes = np.empty((itemsize, size), dtype=np.uint8)
    at = 0
    for words in parts:
        here = slice(at, at + words.size)
        at += words.size
        digits = words + zero
        for lowest in range(0, itemsize, 2):  # halves first: to take bytes apart by strides costs twice as much
            half = (digits >> 16 if lowest else digits).astype(np.uint16)
            planes[lowest, here] = half
            planes[lowest + 1, here] = half >> np.uint16(8)
    return [buffer for plane in planes for buffer in pack_symbols(plane)]


def unpack(reader: BitReader, size: int, word: Word) -> Iterator[tuple[slice, Words]]:
    """What `pack` wrote of `size` integers of the type `word`, piece by piece; all is read before the first of them.

    Raises:
        WeightsError: when it is something else (``reason="payload"``).
    """
    zero = _ZERO[word]
    planes = [unpack_symbols(reader, size) for _ in range(np.dtype(word).itemsize)]

    def words(piece: slice) -> Words:
        out = _halves(planes[0][piece], planes[1][piece])
        if word is np.int32:
            low, out = out, _halves(planes[2][piece], planes[3][piece]).astype(np.uint32)
            out <<= np.uint32(16)
            out |= low.astype(np.uint32)  # an operation on arrays of two types takes longer than a cast and another
        signed: Words = out.view(word)
        signed -= zero
        return signed

    return ((piece, words(piece)) for piece in pieces(size))


def _halves(low: NDArray[np.uint8], high: NDArray[np.uint8]) -> NDArray[np.uint16]:
    out = high.astype(np.uint16)
    out <<= np.uint16(8)
    out |= low.astype(np.uint16)
    return out
