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

from rl4sys_zmq import zstd
from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.weights.bits import BitReader, Buffer, varint

Words = NDArray[np.signedinteger[Any]]
Word = type[np.int16] | type[np.int32]

_ZERO: dict[type, np.int16 | np.int32] = {np.int16: np.int16(0x8080 - 0x10000), np.int32: np.int32(0x80808080 - 0x100000000)}
"""The integer, by type, whose bytes are all 128. It is added to each integer before its bytes are separated."""
PIECE = 1 << 15
"""The number of elements in a piece. A few arrays of this size fit into a second-level cache."""
_GAIN = 0.98
"""A plane is stored as it is unless compression gets it below this share. Decompression takes ten times as long as copying."""


def pieces(size: int) -> Iterator[slice]:
    """Return the slices that cut an array of `size` elements into pieces."""
    return (slice(begin, min(size, begin + PIECE)) for begin in range(0, size, PIECE))


def pack(parts: Iterable[Words], size: int, word: Word) -> list[Buffer]:
    """Encode `size` integers, given as one array for each slice of `pieces`. Return buffers to be joined."""
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
    return [buffer for plane in planes for buffer in pack_plane(plane)]


def unpack(reader: BitReader, size: int, word: Word) -> Iterator[tuple[slice, Words]]:
    """Read integers that `pack` wrote. Return an iterator over the pieces, each with its slice.

    The call itself reads and checks all bytes. The iteration only joins bytes to integers.
    """
    zero = _ZERO[word]
    planes = [unpack_plane(reader, size) for _ in range(np.dtype(word).itemsize)]

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


def pack_plane(plane: NDArray[np.uint8]) -> tuple[Buffer, Buffer]:
    """Compress an array of bytes if that saves enough. Return its length (0 if it is not compressed), and the data."""
    packed = zstd.compress(plane.data, repeats=False)
    return (varint(len(packed)), packed) if len(packed) < _GAIN * plane.size else (varint(0), plane.data)


def unpack_plane(reader: BitReader, size: int) -> NDArray[np.uint8]:
    """Read an array of `size` bytes that `pack_plane` wrote."""
    length = reader.varint(size)
    if not length:
        return np.frombuffer(reader.take(size), dtype=np.uint8)
    try:
        return np.frombuffer(zstd.expand(reader.take(length), size), dtype=np.uint8)
    except zstd.DecompressionError as exc:
        raise WeightsError(f"a plane cannot be decompressed: {exc}", reason="payload") from exc
