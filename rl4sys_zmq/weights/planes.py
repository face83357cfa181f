"""Integers as planes of bytes.

The high planes are almost constant and compress well. The lowest is noise and stays unchanged. The bytes are digits to the base
256 from -128 to 127, plus 128. So a small integer of either sign has only 128 in its high planes. All work except compression
goes piece by piece, so that intermediate results stay in the processor's cache.
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
"""Elements of a piece. A few arrays of this many words fit into a second-level cache."""


def pieces(size: int) -> Iterator[slice]:
    """Iterate over the pieces of `size` elements, in order."""
    return (slice(begin, min(size, begin + PIECE)) for begin in range(0, size, PIECE))


def pack(parts: Iterable[Words], size: int, word: Word) -> list[Buffer]:
    """Return the planes, from the lowest byte to the highest, as buffers to be joined.

    Args:
        parts: The integers, piece by piece, of the type `word`.
        size: Total number of integers.
        word: Type of the integers.
    """
    itemsize, zero = np.dtype(word).itemsize, _ZERO[word]
    planes = np.empty((itemsize, size), dtype=np.uint8)
    at = 0
    for words in parts:
        here = slice(at, at + words.size)
        at += words.size
        digits = words + zero
        for lowest in range(0, itemsize, 2):  # halves first: separating single bytes by strides takes twice as long
            half = (digits >> 16 if lowest else digits).astype(np.uint16)
            planes[lowest, here] = half
            planes[lowest + 1, here] = half >> np.uint16(8)
    return [buffer for plane in planes for buffer in pack_symbols(plane)]


def unpack(reader: BitReader, size: int, word: Word) -> Iterator[tuple[slice, Words]]:
    """Read `size` integers of the type `word` that `pack` wrote, and iterate over them piece by piece, with their places.

    The call itself reads all bytes and raises; the iteration only joins the bytes of a piece to integers.

    Raises:
        WeightsError: If the bytes are malformed (``reason="payload"``).
    """
    zero = _ZERO[word]
    planes = [unpack_symbols(reader, size) for _ in range(np.dtype(word).itemsize)]

    def words(piece: slice) -> Words:
        out = _halves(planes[0][piece], planes[1][piece])
        if word is np.int32:
            low, out = out, _halves(planes[2][piece], planes[3][piece]).astype(np.uint32)
            out <<= np.uint32(16)
            out |= low.astype(np.uint32)  # an operation on two types takes longer than a cast and an operation
        signed: Words = out.view(word)
        signed -= zero
        return signed

    return ((piece, words(piece)) for piece in pieces(size))


def _halves(low: NDArray[np.uint8], high: NDArray[np.uint8]) -> NDArray[np.uint16]:
    out = high.astype(np.uint16)
    out <<= np.uint16(8)
    out |= low.astype(np.uint16)
    return out
