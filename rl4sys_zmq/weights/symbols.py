"""Symbols of one byte for the approximate size of magnitudes (absolute values of integers).

A magnitude is split as in a floating-point number. Its highest bits become a *symbol*, and its other bits, the *open bits*, are
written separately. Symbols compress well.

The symbol of 0 is 0. From 1 on, each range from a power of two to the next has at most ``1 << mantissa_bits`` symbols. With 0
mantissa bits, for example, the magnitudes 4 to 7 have the symbol 3 and two open bits each. Magnitudes below
``2 << mantissa_bits`` have no open bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import zstd
from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.weights.bits import BitReader, Buffer, varint

__all__ = ["MAX_FINE", "bases", "best_fine", "coarser", "pack_symbols", "symbols_of", "unpack_symbols", "widths"]

MAX_FINE = 3
MAX_MAGNITUDE = 1 << 31
SYMBOL_BITS = 4.0
"""The approximate size, in bits, of the entry for one symbol in the table of a Huffman coder."""

_STORED = 0
_GAIN = 0.98
"""Symbols are stored uncompressed if compression does not reduce their size below this share.

Decompression takes ten times as long as copying.
"""
_ALL = np.arange(256, dtype=np.uint8)


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    widths = np.zeros((MAX_FINE + 1, 256), dtype=np.uint8)
    bases = np.full((MAX_FINE + 1, 256), -1, dtype=np.int64)
    for mantissa_bits in range(MAX_FINE + 1):
        bases[mantissa_bits, 0] = 0
        for index in range(255):
            exponent, fraction = index >> mantissa_bits, index & ((1 << mantissa_bits) - 1)
            base, open_bits = (1 << mantissa_bits | fraction) << exponent, max(0, exponent - mantissa_bits)
            if base % (1 << mantissa_bits) == 0 or exponent > mantissa_bits:
                base >>= mantissa_bits
                if base <= MAX_MAGNITUDE:
                    bases[mantissa_bits, index + 1], widths[mantissa_bits, index + 1] = base, open_bits
    return widths, bases


widths, bases = _tables()
"""Two tables ``[mantissa_bits, symbol]``.

`widths`: the number of open bits. `bases`: the lowest magnitude with this symbol, or -1 if no magnitude has it.
"""


def symbols_of(magnitudes: NDArray[np.int64], mantissa_bits: int) -> NDArray[np.uint8]:
    """Return the symbol of each magnitude: a byte for its approximate size, made of its highest bits, uint8.

    Args:
        magnitudes: Integers from 0 to `MAX_MAGNITUDE`.
        mantissa_bits: Number of bits of a magnitude, after its highest bit, that belong to the symbol.
    """
    symbols = magnitudes.astype(np.float64).view(np.int64)
    symbols >>= 52 - mantissa_bits
    symbols -= (1023 << mantissa_bits) - 1
    return np.maximum(symbols, 0, out=symbols).astype(np.uint8)


def best_fine(symbols: NDArray[np.uint8]) -> int:
    """Return the precision of symbols (mantissa bits, 0 to `MAX_FINE`) with which a set of magnitudes takes the fewest bytes.

    Args:
        symbols: The symbols of the magnitudes with `MAX_FINE` mantissa bits. A symbol is made of the highest bits of a
            magnitude. The other bits are written separately, and their size counts too.
    """
    counts = np.bincount(symbols, minlength=256)
    costs = []
    for mantissa_bits in range(MAX_FINE + 1):
        folded = np.bincount(coarser(_ALL, mantissa_bits), weights=counts, minlength=256)
        used = folded[folded > 0]
        entropy = float((used * np.log2(symbols.size / used)).sum())
        costs.append(entropy + SYMBOL_BITS * used.size + float((folded * widths[mantissa_bits]).sum()))
    return int(np.argmin(costs))


def coarser(symbols: NDArray[np.uint8], mantissa_bits: int) -> NDArray[np.uint8]:
    """Reduce the precision of symbols from `MAX_FINE` to `mantissa_bits` mantissa bits.

    A symbol is a byte for the highest bits of a magnitude. The result has the symbols of the same magnitudes.
    """
    return np.where(symbols > 0, (symbols - np.uint8(1) >> np.uint8(MAX_FINE - mantissa_bits)) + np.uint8(1), np.uint8(0))


def pack_symbols(symbols: NDArray[np.uint8]) -> tuple[Buffer, Buffer]:
    """Compress an array of bytes with zstd if that saves enough. Return two parts to be joined: a length, and the data.

    The length is 0 if the data is not compressed.
    """
    packed = zstd.compress(symbols.data, repeats=False)
    return (varint(len(packed)), packed) if len(packed) < _GAIN * symbols.size else (varint(_STORED), symbols.data)


def unpack_symbols(reader: BitReader, size: int) -> NDArray[np.uint8]:
    """Read an array of `size` bytes that `pack_symbols` wrote."""
    length = reader.varint(size)
    if length == _STORED:
        return np.frombuffer(reader.take(size), dtype=np.uint8)
    try:
        return np.frombuffer(zstd.expand(reader.take(length), size), dtype=np.uint8)
    except zstd.DecompressionError as exc:
        raise WeightsError(f"symbols cannot be decompressed: {exc}", reason="payload") from exc
