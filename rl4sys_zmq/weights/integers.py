"""The encoding of arrays of integers in few bytes at high speed: sparse integers, byte planes, and blocks without a change.

Sparse: most integers are 0 and the others small. The positions of the non-zero integers are written as gaps, and the signs as
bits. The magnitudes minus 1 follow. If most of them are 0, they are encoded in the same way, recursively. Otherwise each is
split as in a floating-point number: its highest bits become a *symbol* of one byte, and its other bits, the *open bits*, are
written separately. Symbols compress well. The symbol of 0 is 0. From 1 on, each range from a power of two to the next has at
most ``1 << mantissa_bits`` symbols. With 0 mantissa bits, for example, the magnitudes 4 to 7 have the symbol 3 and two open bits
each. Magnitudes below ``2 << mantissa_bits`` have no open bits.

Byte planes: the lowest bytes of all integers, then the second bytes, and so on. For small integers, the planes of the higher
bytes are almost constant and compress well. The lowest plane is noise and does not get shorter. An integer is written in digits
from -128 to 127 to the base 256, and each byte is a digit plus 128. So the high bytes of a small integer are 128, for either
sign. All work except compression is done in pieces of `PIECE` elements, so that intermediate results stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import zstd
from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.weights.bits import BitReader, Buffer, Integers, bad, pack_fields, pack_flags, pack_gaps, varint

Words = NDArray[np.signedinteger[Any]]
Word = type[np.int16] | type[np.int32]

_ZERO: dict[type, np.int16 | np.int32] = {np.int16: np.int16(0x8080 - 0x10000), np.int32: np.int32(0x80808080 - 0x100000000)}
"""The integer, by type, whose bytes are all 128. It is added to each integer before its bytes are separated."""
PIECE = 1 << 15
"""The number of elements in a piece. A few arrays of this size fit into a second-level cache."""
_GAIN = 0.98
"""A plane is stored as it is unless compression gets it below this share. Decompression takes ten times as long as copying."""


def pieces(size: int) -> Iterator[slice]:
    """Return the slices that cut an array of `size` elements into pieces of `PIECE` elements, the last one shorter."""
    return (slice(begin, min(size, begin + PIECE)) for begin in range(0, size, PIECE))


def pack_planes(parts: Iterable[Words], size: int, word: Word) -> list[Buffer]:
    """Encode `size` integers, given as one array for each slice of `pieces`. Return buffers, to be joined in this order."""
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


def unpack_planes(reader: BitReader, size: int, word: Word) -> Iterator[tuple[slice, Words]]:
    """Read integers that `pack_planes` wrote. Return an iterator over the pieces, each with its slice.

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
    """Compress bytes if that saves enough. Return two buffers: the encoded length (0 if not compressed), and the data."""
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


ZERO, SPARSE, SYMBOLS = range(3)
SPARSE_SHARE = 0.45
"""The share of non-zero integers up to which positions take fewer bytes than symbols."""
UNIT_SHARE, SPARSE_SHARE_OF_UNITS = 0.75, 0.6
"""If at least the first share of the non-zero integers is 1 or -1, for which Huffman codes are too long, positions are used up to
the second share of non-zero integers."""
MAX_DEPTH = 6
MAX_FINE = 3
MAX_MAGNITUDE = 1 << 31
_SYMBOL_BITS = 4.0
"""The approximate size, in bits, of the entry for one symbol in the table of a Huffman coder."""
_ALL = np.arange(256, dtype=np.uint8)

Sparse = tuple[NDArray[np.int64], NDArray[np.int64]]
"""An array of integers in two parts: the ascending positions of the non-zero integers, and these integers, int64."""


def is_sparse(magnitudes: Integers, size: int) -> bool:
    """Return True if an array of `size` integers should be written with the positions of its non-zero ones."""
    if magnitudes.size <= SPARSE_SHARE * size:
        return True
    units = np.count_nonzero(magnitudes == 1)
    return magnitudes.size <= SPARSE_SHARE_OF_UNITS * size and bool(units >= UNIT_SHARE * magnitudes.size)


def pack_integers(positions: Integers, values: Integers, size: int) -> bytes:
    """Encode an array of `size` integers of 32 bits, given by the ascending positions and the values of its non-zero ones."""
    if not positions.size:
        return bytes([ZERO])
    magnitudes, negative = np.abs(values), values < 0
    head = bytes([SPARSE]) + varint(positions.size) + pack_gaps(positions, size) + pack_flags(negative)
    return head + _pack_magnitudes(magnitudes - 1, MAX_DEPTH)


def unpack_integers(reader: BitReader, size: int) -> Sparse:
    """Read an array that `pack_integers` wrote. Return the positions and the values of its non-zero integers."""
    mode = reader.byte()
    if mode == ZERO:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty
    if mode != SPARSE:
        raise bad(f"unknown mode {mode}")
    count = reader.varint(size)
    positions = reader.gaps(count, size)
    negative = reader.flags(count)
    values = _unpack_magnitudes(reader, count, MAX_DEPTH)
    values += 1
    # The signs are set in place, in a third of the time that numpy's `where` takes.
    signs = negative.astype(np.int64)
    values ^= np.negative(signs)
    values += signs
    return positions, values


def _pack_magnitudes(excess: NDArray[np.int64], depth: int) -> bytes:
    positions = np.flatnonzero(excess)
    if not positions.size:
        return bytes([ZERO])
    values = excess[positions]
    if not depth or not is_sparse(values, excess.size):
        return _pack_symbols(positions, values, excess.size)
    head = bytes([SPARSE]) + varint(positions.size) + pack_gaps(positions, excess.size)
    return head + _pack_magnitudes(values - 1, depth - 1)


def _unpack_magnitudes(reader: BitReader, size: int, depth: int) -> NDArray[np.int64]:
    mode = reader.byte()
    out = np.zeros(size, dtype=np.int64)
    if mode == ZERO:
        return out
    if mode == SPARSE:
        if not depth:
            raise bad("magnitudes are nested too deep")
        count = reader.varint(size)
        positions = reader.gaps(count, size)
        out[positions] = _unpack_magnitudes(reader, count, depth - 1) + 1
    else:
        positions, values = _unpack_symbols(reader, mode, size)
        out[positions] = values
    return out


def _pack_symbols(positions: Integers, magnitudes: NDArray[np.int64], size: int) -> bytes:
    of_values = symbols_of(magnitudes, MAX_FINE)
    plane = np.zeros(size, dtype=np.uint8)
    plane[positions] = of_values
    fine = _best_fine(plane)
    plane, of_values = coarser(plane, fine), coarser(of_values, fine)
    widths = OPEN_BITS[fine][of_values]
    fields = magnitudes - LEAST[fine][of_values]
    there = widths > 0
    return b"".join((bytes([SYMBOLS + fine]), *pack_plane(plane), pack_fields(fields[there], widths[there])))


def _unpack_symbols(reader: BitReader, mode: int, size: int) -> Sparse:
    fine = mode - SYMBOLS
    if not 0 <= fine <= MAX_FINE:
        raise bad(f"unknown mode {mode}")
    plane = unpack_plane(reader, size)
    positions = np.flatnonzero(plane)
    of_values = plane[positions]
    values = LEAST[fine][of_values]
    if values.size and values.min() < 0:
        raise bad("a symbol stands for no magnitude")
    widths = OPEN_BITS[fine][of_values]
    there = np.flatnonzero(widths)
    values[there] += reader.fields(widths[there])
    return positions, values


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    open_bits = np.zeros((MAX_FINE + 1, 256), dtype=np.uint8)
    least = np.full((MAX_FINE + 1, 256), -1, dtype=np.int64)
    for mantissa_bits in range(MAX_FINE + 1):
        least[mantissa_bits, 0] = 0
        for index in range(255):
            exponent, fraction = index >> mantissa_bits, index & ((1 << mantissa_bits) - 1)
            base, width = (1 << mantissa_bits | fraction) << exponent, max(0, exponent - mantissa_bits)
            if base % (1 << mantissa_bits) == 0:
                base >>= mantissa_bits
                if base <= MAX_MAGNITUDE:
                    least[mantissa_bits, index + 1], open_bits[mantissa_bits, index + 1] = base, width
    return open_bits, least


OPEN_BITS, LEAST = _tables()
"""Two tables ``[mantissa_bits, symbol]``: the number of open bits, and the lowest magnitude of the symbol (-1: it has none)."""


def symbols_of(magnitudes: NDArray[np.int64], mantissa_bits: int) -> NDArray[np.uint8]:
    """Return one byte for each magnitude (at most `MAX_MAGNITUDE`): 0 for 0, else exponent and `mantissa_bits` bits."""
    symbols = magnitudes.astype(np.float64).view(np.int64)
    symbols >>= 52 - mantissa_bits
    symbols -= (1023 << mantissa_bits) - 1
    return np.maximum(symbols, 0, out=symbols).astype(np.uint8)


def _best_fine(symbols: NDArray[np.uint8]) -> int:
    counts = np.bincount(symbols, minlength=256)
    costs = []
    for mantissa_bits in range(MAX_FINE + 1):
        folded = np.bincount(coarser(_ALL, mantissa_bits), weights=counts, minlength=256)
        used = folded[folded > 0]
        entropy = float((used * np.log2(symbols.size / used)).sum())
        costs.append(entropy + _SYMBOL_BITS * used.size + float((folded * OPEN_BITS[mantissa_bits]).sum()))
    return int(np.argmin(costs))


def coarser(symbols: NDArray[np.uint8], mantissa_bits: int) -> NDArray[np.uint8]:
    """Return the results of `symbols_of` for `mantissa_bits`, from those for the larger number `MAX_FINE`."""
    return np.where(symbols > 0, (symbols - np.uint8(1) >> np.uint8(MAX_FINE - mantissa_bits)) + np.uint8(1), np.uint8(0))


BLOCK = 1024
_ALL_WEIGHTS = slice(None)
SHARE = 0.75
"""The share of active blocks (blocks with a change) above which all blocks are treated as active."""


def active_blocks(different: NDArray[np.bool_], count: int) -> tuple[NDArray[np.intp] | slice, bytes]:
    """Find the blocks of `BLOCK` weights in which a weight changes. Return the indices of their weights, and the encoded list.

    If these are most of the blocks, the indices are a slice of all weights.

    Args:
        different: True for each element that changes.
        count: Number of elements that change.
    """
    size = different.size
    blocks = -(-size // BLOCK)
    if blocks < 2 or not 0 < count <= SHARE * size:
        return _ALL_WEIGHTS, varint(0)
    busy = np.logical_or.reduceat(different, np.arange(0, size, BLOCK))
    numbers = np.flatnonzero(busy)
    if numbers.size > SHARE * blocks:
        return _ALL_WEIGHTS, varint(0)
    return np.flatnonzero(np.repeat(busy, BLOCK)[:size]), varint(numbers.size) + pack_gaps(numbers, blocks)


def read_blocks(reader: BitReader, size: int) -> NDArray[np.intp] | slice:
    """Read a list from `active_blocks`. Return the indices of the weights in the blocks; a slice if these are all weights."""
    blocks = -(-size // BLOCK)
    count = reader.varint(blocks)
    if not count:
        return _ALL_WEIGHTS
    busy = np.zeros(blocks, dtype=np.bool_)
    busy[reader.gaps(count, blocks)] = True
    return np.flatnonzero(np.repeat(busy, BLOCK)[:size])
