"""The encoding of arrays of integers as byte planes: the lowest bytes of all integers, then the second bytes, and so on.

For small integers, the planes of the higher bytes are almost constant and compress well. The lowest plane is noise and does not
get shorter. An integer is written in digits from -128 to 127 to the base 256, and each byte is a digit plus 128. So the high
bytes of a small integer are 128, for either sign. All work except compression is done in pieces of `PIECE` elements, so that
intermediate results stay in the processor's cache.
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
"""The integer, by type, whose bytes are all 128. It is added to each integer before its bytes are separated."""
PIECE = 1 << 15
"""The number of elements in a piece. A few arrays of this size fit into a second-level cache."""


def pieces(size: int) -> Iterator[slice]:
    """Return the slices that cut an array of `size` elements into pieces that fit the processor's cache, in order."""
    return (slice(begin, min(size, begin + PIECE)) for begin in range(0, size, PIECE))


def pack(parts: Iterable[Words], size: int, word: Word) -> list[Buffer]:
    """Encode integers as compressed byte planes: the lowest bytes of all integers, then the second bytes, and so on.

    Return the planes as buffers to be joined.

    Args:
        parts: The integers, of the type `word`, as one array for each slice of `pieces`.
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
    """Read integers that `pack` wrote as byte planes, and return an iterator over pieces of their array.

    The iterator yields pairs of a slice (the position of the piece in the array) and the integers. The call itself reads and
    checks all bytes. The iteration only joins bytes to integers.

    Args:
        reader: The source of the bytes.
        size: Total number of integers.
        word: Type of the integers.

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
