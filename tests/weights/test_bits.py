"""The bit writers equal slow twins that write one bit after the other, and the reader refuses invalid data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.weights import integers
from rl4sys_zmq.weights.bits import BitReader, pack_fields, pack_flags, pack_gaps, rice_width, varint
from rl4sys_zmq.weights.integers import pack_integers, unpack_integers


def bytes_of(bits: Any) -> bytes:
    """Convert bits to bytes, the lowest bit first."""
    out = bytearray((len(bits) + 7) // 8)
    for index, bit in enumerate(bits):
        out[index // 8] |= bit << (index % 8)
    return bytes(out)


def fields_slow(values: Any, widths: Any) -> Any:
    return bytes_of([value >> shift & 1 for value, width in zip(values, widths, strict=True) for shift in range(width)])


def gaps_slow(positions: Any, size: Any) -> Any:
    """Encode gaps by Golomb and Rice: the quotient of each gap in unary, then the remainders, plane by plane."""
    width = rice_width(len(positions), size)
    gaps = [b - a - 1 for a, b in zip([-1, *positions], positions, strict=False)]
    unary = [bit for gap in gaps for bit in [0] * (gap >> width) + [1]]
    return varint(len(unary)) + bytes_of(unary) + bytes_of([gap >> shift & 1 for shift in range(width) for gap in gaps])


def integers_slow(values: Any) -> Any:
    """Encode integers as `pack_integers` does for sparse values that change by one only."""
    positions = [index for index, value in enumerate(values) if value]
    flags = bytes_of([values[index] < 0 for index in positions])
    return b"\x01" + varint(len(positions)) + gaps_slow(positions, len(values)) + flags + b"\x00"


@given(st.lists(st.integers(1, 32).flatmap(lambda w: st.tuples(st.integers(0, 2**w - 1), st.just(w))), max_size=200))
def test_fields(pairs: Any) -> None:
    values, widths = [v for v, _ in pairs], [w for _, w in pairs]
    packed = pack_fields(np.array(values, dtype=np.int64), np.array(widths, dtype=np.uint8))
    assert packed == fields_slow(values, widths)
    reader = BitReader(packed)
    assert reader.fields(np.array(widths, dtype=np.uint8)).tolist() == values
    reader.end()


@given(st.integers(1, 3000), st.data())
def test_gaps(size: int, data: Any) -> None:
    positions = sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=60)))
    packed = pack_gaps(np.array(positions, dtype=np.int64), size)
    assert packed == gaps_slow(positions, size)
    reader = BitReader(packed)
    assert reader.gaps(len(positions), size).tolist() == positions
    reader.end()


@given(st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, -1]), min_size=1, max_size=500))
def test_integers_that_move_by_one(values: Any) -> None:
    array = np.array(values, dtype=np.int64)
    positions = np.flatnonzero(array)
    packed = pack_integers(positions, array[positions], array.size)
    assert packed == (integers_slow(values) if positions.size else b"\x00")


@given(st.lists(st.one_of(st.just(0), st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1)), max_size=500))
def test_any_integers(values: Any) -> None:
    array = np.array(values, dtype=np.int64)
    positions = np.flatnonzero(array)
    reader = BitReader(pack_integers(positions, array[positions], array.size))
    there, found = unpack_integers(reader, array.size)
    reader.end()
    assert there.tolist() == positions.tolist() and found.tolist() == array[positions].tolist()


def digits_slow(value: Any, count: Any) -> Any:
    """Return the lowest digits of a number to the base 256, each from -128 to 127, with 128 added to each."""
    out = []
    for _ in range(count):
        digit = (value + 128) % 256 - 128
        value = (value - digit) // 256
        out.append(digit + 128)
    return out


@pytest.mark.parametrize("word", [np.int16, np.int32])
@given(data=st.data())
def test_planes_are_digits_of_both_signs(word: Any, data: Any) -> None:
    least = np.iinfo(word).min
    values = data.draw(st.lists(st.one_of(st.integers(least, -1 - least), st.integers(-300, 300)), max_size=300))
    array, itemsize = np.array(values, dtype=word), np.dtype(word).itemsize
    packed = b"".join(integers.pack_planes([array[:100], array[100:]], array.size, word))
    reader = BitReader(packed)
    got = [integers.unpack_plane(reader, array.size).tolist() for _ in range(itemsize)]
    reader.end()
    assert list(zip(*got, strict=True)) == [tuple(digits_slow(value, itemsize)) for value in values]
    back = [words for _, words in integers.unpack_planes(BitReader(packed), array.size, word)]
    assert [value for words in back for value in words.tolist()] == values


@given(st.integers(0, 2**31), st.integers(0, 3))
def test_a_symbol_and_its_open_bits_are_the_magnitude(magnitude: int, fine: int) -> None:
    symbol = int(integers.symbols_of(np.array([magnitude]), fine)[0])
    base, width = int(integers.LEAST[fine][symbol]), int(integers.OPEN_BITS[fine][symbol])
    assert base <= magnitude < base + (1 << width)
    finest = integers.symbols_of(np.array([magnitude]), integers.MAX_FINE)
    assert integers.coarser(finest, fine)[0] == symbol


@pytest.mark.parametrize(
    "read",
    [
        lambda: BitReader(b"\x80\x00").varint(1000),
        lambda: BitReader(b"\xff\xff\xff\xff\xff\xff").varint(2**32),
        lambda: BitReader(b"\x05").varint(4),
        lambda: BitReader(b"").byte(),
        lambda: BitReader(b"\xff").flags(7),
        lambda: BitReader(b"\xff").flags(9),
        lambda: BitReader(b"\xff").fields(np.array([3, 4])),
        lambda: BitReader(b"ab").take(3),
        lambda: BitReader(b"a").end(),
        lambda: BitReader(varint(4) + b"\x08").gaps(2, 4),
        lambda: BitReader(varint(4) + b"\x01").gaps(1, 4),
        lambda: BitReader(varint(8) + b"\x80").gaps(1, 4),
        lambda: unpack_integers(BitReader(b"\x02"), 10),
    ],
)
def test_what_nobody_wrote_is_refused(read: Callable[..., Any]) -> None:
    with pytest.raises(WeightsError) as caught:
        read()
    assert caught.value.reason == "payload"


def test_flags() -> None:
    assert pack_flags(np.array([True, False, False, True, True, False, False, False, True])) == b"\x19\x01"
