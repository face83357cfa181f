"""Packing of numbers into bits: single bits, fields of different widths, and ascending positions.

The lowest bit of a byte comes first. The reader checks that every byte belongs to a field and that the bits after the last field
are 0. So each value has exactly one encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import WeightsError

Integers = NDArray[np.integer[Any]]
Buffer = bytes | memoryview
"""The types of data that ``bytes.join`` accepts."""
_MASKS = ((np.uint64(1) << np.arange(33, dtype=np.uint64)) - np.uint64(1)).astype(np.uint64)


def varint(value: int) -> bytes:
    """Encode a number of at least 0 in bytes of 7 bits, lowest bits first. The high bit says that more bytes follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_flags(flags: NDArray[np.bool_]) -> bytes:
    """Return booleans as bytes, one bit for each."""
    return np.packbits(flags, bitorder="little").tobytes()


def pack_fields(values: Integers, widths: Integers) -> bytes:
    """Return numbers of at least 0 as bytes. `widths` has the number of bits for each, 1 to 32."""
    if not widths.size:
        return b""
    ends = np.cumsum(widths, dtype=np.int64)
    starts = ends - widths
    words = starts >> 5
    pieces = values.astype(np.uint64)
    pieces <<= (starts & 31).astype(np.uint64)
    # Each word of 32 bits contains the beginning of some field. Only the last field that begins in a word extends into the next.
    firsts = np.flatnonzero(words[1:] != words[:-1]) + 1
    sums = np.add.reduceat(pieces, np.concatenate(([0], firsts)))
    out = np.zeros(sums.size + 1, dtype=np.uint32)
    out[:-1] = sums.astype(np.uint32)
    out[1:] |= (sums >> np.uint64(32)).astype(np.uint32)
    return out.astype("<u4", copy=False).tobytes()[: (int(ends[-1]) + 7) // 8]


def rice_width(positions: int, size: int) -> int:
    """Return how many low bits of each gap `pack_gaps` writes unchanged, for a number of positions among `size` elements."""
    # This is optimal where all elements are equally likely to change (Kiely, Selecting the Golomb parameter in Rice coding,
    # 2004). It uses integers only, so that both sides compute the same width.
    return (4812 * size // (10_000 * positions)).bit_length() if positions else 0


def pack_gaps(positions: Integers, size: int) -> bytes:
    """Encode ascending positions below `size` with a Golomb-Rice code of the gaps between them.

    The low bits of each gap are written unchanged (`rice_width` gives their number), and the rest in unary.
    """
    width = rice_width(positions.size, size)
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum((gaps >> width) + 1)
    unary = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.bool_)
    unary[ends - 1] = True
    out = varint(unary.size) + pack_flags(unary)
    if width:  # the lowest bits of all gaps, then the second bits of all, and so on
        planes = (gaps.astype(np.uint32) >> np.arange(width, dtype=np.uint32)[:, None]) & np.uint32(1)
        out += np.packbits(planes.astype(np.uint8), axis=None, bitorder="little").tobytes()
    return out


class BitReader:
    """A reader of the packed bits and bytes of a weight update. Each method reads from where the last one stopped.

    Every method raises `WeightsError` (``reason="payload"``) if the data are too short, or are not the encoding of any value.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes, without copying them."""
        if count > len(self._data) - self._at:
            raise bad(f"{count} bytes are needed at offset {self._at} of {len(self._data)} bytes")
        self._at += count
        return self._data[self._at - count : self._at]

    def byte(self) -> int:
        """Return the next byte as a number."""
        return self.take(1)[0]

    def varint(self, high: int) -> int:
        """Read a number from 0 to `high` that the function `varint` encoded."""
        value = 0
        for shift in range(0, 35, 7):
            digit = self.byte()
            value |= (digit & 0x7F) << shift
            if digit < 0x80:
                if value > high or (digit == 0 and shift):
                    break
                return value
        raise bad(f"a number exceeds {high} or is not in its shortest encoding")

    def flags(self, count: int) -> NDArray[np.bool_]:
        """Read `count` bits that `pack_flags` packed."""
        data = np.frombuffer(self.take((count + 7) // 8), dtype=np.uint8)
        if count % 8 and data[-1] >> (count % 8):
            raise bad("bits are set after the last flag")
        return np.unpackbits(data, count=count, bitorder="little").view(np.bool_)

    def fields(self, widths: Integers) -> NDArray[np.uint32]:
        """Read the numbers that `pack_fields` packed with these widths."""
        if not widths.size:
            return np.zeros(0, dtype=np.uint32)
        ends = np.cumsum(widths, dtype=np.int64)
        bits = int(ends[-1])
        data = self.take((bits + 7) // 8)
        if bits % 8 and data[-1] >> (bits % 8):
            raise bad("bits are set after the last field")
        starts = ends - widths
        words = np.zeros((bits + 31) // 32 + 1, dtype="<u4")
        words.view(np.uint8)[: len(data)] = data
        windows = words[:-1].astype(np.uint64)
        windows |= words[1:].astype(np.uint64) << np.uint64(32)
        values = windows[starts >> 5]
        values >>= (starts & 31).astype(np.uint64)
        values &= _MASKS[widths]
        fields: NDArray[np.uint32] = values.astype(np.uint32)
        return fields

    def gaps(self, count: int, size: int) -> NDArray[np.int64]:
        """Return the positions that `pack_gaps` encoded: `count` ascending integers below `size`, int64 ``[count]``."""
        width = rice_width(count, size)
        bits = self.varint(count + (size >> width))
        ones = np.flatnonzero(self.flags(bits))
        if ones.size != count or (count and ones[-1] != bits - 1):
            raise bad(f"{ones.size} positions; expected {count}")
        gaps = np.diff(ones, prepend=-1) - 1
        if width:
            gaps <<= width
            planes = self.flags(width * count).view(np.uint8).reshape(width, count)
            for shift in range(0, width, 8):  # 8 bits at a time: operations on bytes are eight times as fast
                low = np.zeros(count, dtype=np.uint8)
                for plane in planes[shift : shift + 8][::-1]:
                    low <<= np.uint8(1)
                    low |= plane
                gaps |= low.astype(np.int64) << shift
        gaps += 1
        positions = np.cumsum(gaps) - 1
        if count and positions[-1] >= size:
            raise bad(f"a position is beyond {size} elements")
        return positions

    def end(self) -> None:
        """Raise `WeightsError` if bytes are left over. Call this after the last read."""
        if self._at != len(self._data):
            raise bad(f"{len(self._data) - self._at} bytes are left over")


def bad(problem: str) -> WeightsError:
    """Return the error for a malformed payload."""
    return WeightsError(f"not a diff of this policy: {problem}", reason="payload")
