"""Magnitudes as small floats: a symbol of one byte for the approximate size, and the remaining bits.

Symbols compress well. The symbol of 0 is 0. Other symbols count, from 1, the values of a float whose mantissa has
`mantissa_bits` bits. Magnitudes below ``2 << mantissa_bits`` leave no bits open. Above that, each doubling has ``1 <<
mantissa_bits`` symbols.
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
"""The approximate cost in bits of one used symbol in the table of a Huffman coder."""

_STORED = 0
_GAIN = 0.98
"""Symbols are compressed only below this share of their size. Decompression takes ten times as long as copying."""
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
"""Tables by `mantissa_bits` and symbol: the number of open bits, and the lowest magnitude (-1 for symbols without one)."""


def symbols_of(magnitudes: NDArray[np.int64], mantissa_bits: int) -> NDArray[np.uint8]:
    """Return the symbol of each magnitude. Magnitudes are at most `MAX_MAGNITUDE`."""
    symbols = magnitudes.astype(np.float64).view(np.int64)
    symbols >>= 52 - mantissa_bits
    symbols -= (1023 << mantissa_bits) - 1
    return np.maximum(symbols, 0, out=symbols).astype(np.uint8)


def best_fine(symbols: NDArray[np.uint8]) -> int:
    """Return the number of fine bits with the shortest code, given the symbols with `MAX_FINE` fine bits."""
    counts = np.bincount(symbols, minlength=256)
    costs = []
    for mantissa_bits in range(MAX_FINE + 1):
        folded = np.bincount(coarser(_ALL, mantissa_bits), weights=counts, minlength=256)
        used = folded[folded > 0]
        entropy = float((used * np.log2(symbols.size / used)).sum())
        costs.append(entropy + SYMBOL_BITS * used.size + float((folded * widths[mantissa_bits]).sum()))
    return int(np.argmin(costs))


def coarser(symbols: NDArray[np.uint8], mantissa_bits: int) -> NDArray[np.uint8]:
    """Convert symbols with `MAX_FINE` fine bits to symbols with `mantissa_bits` of them."""
    return np.where(symbols > 0, (symbols - np.uint8(1) >> np.uint8(MAX_FINE - mantissa_bits)) + np.uint8(1), np.uint8(0))


def pack_symbols(symbols: NDArray[np.uint8]) -> tuple[Buffer, Buffer]:
    """Pack a plane of symbols, as parts to be joined: a length and a zstd frame, or length 0 and the symbols."""
    packed = zstd.compress(symbols.data, repeats=False)
    return (varint(len(packed)), packed) if len(packed) < _GAIN * symbols.size else (varint(_STORED), symbols.data)


def unpack_symbols(reader: BitReader, size: int) -> NDArray[np.uint8]:
    """Read `size` symbols that `pack_symbols` wrote."""
    length = reader.varint(size)
    if length == _STORED:
        return np.frombuffer(reader.take(size), dtype=np.uint8)
    try:
        return np.frombuffer(zstd.expand(reader.take(length), size), dtype=np.uint8)
    except zstd.NotExpanded as exc:
        raise WeightsError(f"symbols cannot be decompressed: {exc}", reason="payload") from exc
