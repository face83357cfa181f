"""The coder is exact for every bit pattern and in every form, its output never grows, and it refuses foreign data."""

import itertools
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.weights import PayloadEncoding, WireDtype, digest
from rl4sys_zmq.weights.bits import pack_flags, pack_gaps, varint
from rl4sys_zmq.weights.coder import decode_diff, encode_diff
from rl4sys_zmq.weights.forms import BF16, FP32, form_of
from rl4sys_zmq.weights.integers import PIECE

from .strategies import bits_of, ordered_slow, state_lists

forms = pytest.mark.parametrize(("form", "itemsize"), [(FP32, 4), (BF16, 2)])
MAGICLESS = zstandard.FORMAT_ZSTD1_MAGICLESS


def compressed(data: Any, **parameters: Any) -> Any:
    chosen = zstandard.ZstdCompressionParameters.from_level(1, format=MAGICLESS, **{"write_checksum": 0, **parameters})
    return zstandard.ZstdCompressor(compression_params=chosen).compress(data)


def check(before: Any, base: Any, new: Any, form: Any, itemsize: int) -> Any:
    held = base.copy()
    diff = encode_diff(base, new, form=form, before=before)
    assert len(diff.payload) <= itemsize * new.size
    needed = before if diff.predicted else None
    result = decode_diff(diff.codec, memoryview(diff.payload), base, form=form, before=needed).flat
    assert np.array_equal(bits_of(result), bits_of(new))
    assert result.dtype == np.float32 and not np.shares_memory(result, base)
    assert np.array_equal(bits_of(base), bits_of(held))
    return diff


@forms
@given(st.data(), st.booleans())
def test_exact_for_any_bits_and_never_larger_than_raw(form: Any, itemsize: Any, data: Any, known: bool) -> None:
    before, base, new = data.draw(state_lists(3, bf16=form is BF16))
    with np.errstate(all="ignore"):
        check(before if known else None, base, new, form, itemsize)


@forms
@pytest.mark.parametrize("momentum", [0.0, 1.0])
@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 77])
def test_exact_beyond_one_piece(form: Any, itemsize: Any, size: Any, momentum: float) -> None:
    rng = np.random.default_rng(size)
    start, move = rng.standard_normal((2, size))
    noise = 3e-4 if momentum else 3e-2
    states = [(start + k * 3e-3 * momentum * move + rng.uniform(-noise, noise, size)).astype(np.float32) for k in range(3)]
    if form is BF16:
        states = [(bits_of(s) & np.uint32(0xFFFF0000)).view(np.float32) for s in states]
    before, base, new = states
    diff = check(before, base, new, form, itemsize)
    assert diff.codec == PayloadEncoding.PLANES and diff.predicted == bool(momentum)


def test_where_few_change_and_by_any_amount_planes_are_shorter() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal(60_000).astype(np.float32)
    new = base.copy()
    there = np.repeat(rng.random(1200) < 0.4, 50)  # in runs, as the rows of a matrix whose inputs were 0 do not change
    new[there] += (10.0 ** rng.uniform(-6, 0, there.sum())).astype(np.float32)
    assert check(None, base, new, FP32, 4).codec == PayloadEncoding.PLANES


@forms
def test_a_momentum_is_worth_predicting(form: Any, itemsize: Any) -> None:
    rng = np.random.default_rng(0)
    start = rng.standard_normal(20_000)
    move = 3e-3 * rng.standard_normal(20_000)
    states = [(start + k * move + 1e-5 * rng.standard_normal(20_000)).astype(np.float32) for k in range(3)]
    if form is BF16:
        states = [(bits_of(s) & np.uint32(0xFFFF0000)).view(np.float32) for s in states]
    before, base, new = states
    diff = check(before, base, new, form, itemsize)
    alone = check(None, base, new, form, itemsize)
    assert diff.predicted and not alone.predicted and len(diff.payload) < 0.98 * len(alone.payload)


@given(state_lists(2))
def test_a_grid_is_exact_and_settles_what_lies_between(states: Any) -> None:
    base, new = (np.nan_to_num(s, nan=0.5, posinf=3e38, neginf=-3e38) for s in states)
    rng = np.random.default_rng(0)
    exponents = rng.integers(-10, 3, new.size).tolist()
    grid = form_of(WireDtype.GRID, exponents, [1] * new.size)
    new = np.clip(new, -1000, 1000)
    wanted = [float(round(float(v) / 2.0**e) * 2.0**e) for v, e in zip(new, exponents, strict=True)]
    on_grid = grid.canonical(new)
    assert np.array_equal(on_grid, np.array(wanted, dtype=np.float32))
    assert not np.signbit(on_grid[on_grid == 0]).any()
    check(None, base, on_grid, grid, 4)


@given(state_lists(4))
def test_diffs_compose(states: Any) -> None:
    flat = states[0]
    for base, new in itertools.pairwise(states):
        diff = encode_diff(base, new)
        flat = decode_diff(diff.codec, diff.payload, flat).flat
    jump = encode_diff(states[0], states[-1])
    assert np.array_equal(bits_of(decode_diff(jump.codec, jump.payload, states[0]).flat), bits_of(flat))


def test_the_integers_follow_the_order_of_the_floats() -> None:
    rng = np.random.default_rng(0)
    floats = np.sort(np.concatenate([rng.standard_normal(200), [0.0, -np.inf, np.inf, 1e-40, -1e-40]]).astype(np.float32))
    ordered = [ordered_slow(int(b)) for b in bits_of(floats)]
    assert ordered == sorted(ordered) == FP32.integers(floats).tolist()
    assert np.array_equal(FP32.flat(np.array(ordered)), floats)
    halves = (bits_of(floats) & np.uint32(0xFFFF0000)).view(np.float32)
    assert BF16.integers(halves).tolist() == [ordered_slow(int(b)) >> 16 for b in bits_of(halves)]


def test_codecs_are_chosen_by_what_is_shorter() -> None:
    base = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    assert encode_diff(base, base.copy()).codec == PayloadEncoding.UNCHANGED
    near = (bits_of(base) + 1).view(np.float32)
    diff = encode_diff(base, near)
    assert diff.codec == PayloadEncoding.PLANES and len(diff.payload) < 1000
    few = base.copy()
    few[::100] += 1
    assert encode_diff(base, few).codec == PayloadEncoding.SPARSE
    noise = np.random.default_rng(1).integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    assert encode_diff(base, noise).codec == PayloadEncoding.RAW


def test_a_frozen_half_costs_next_to_nothing() -> None:
    base = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    new = base.copy()
    new[20_000:] = np.random.default_rng(1).standard_normal(20_000)
    alone = encode_diff(base[20_000:], new[20_000:])
    assert len(encode_diff(base, new).payload) < len(alone.payload) * 1.03 + 2000


def test_minus_zero_is_a_change() -> None:
    zero = np.zeros(3, dtype=np.float32)
    diff = check(None, zero, -zero, FP32, 4)
    assert diff.codec != PayloadEncoding.UNCHANGED


def test_sizes_and_values_must_agree() -> None:
    three, four = np.zeros(3, np.float32), np.zeros(4, np.float32)
    for base, new, before in ((three, four, None), (three, three, four)):
        with pytest.raises(WeightsError) as caught:
            encode_diff(base, new, before=before)
        assert caught.value.reason == "size"
    with pytest.raises(WeightsError) as caught:
        encode_diff(three, three + np.float32(0.1), form=BF16)
    assert caught.value.reason == "dtype"


def refused(codec: Any, payload: Any, size: Any, **known: Any) -> None:
    with pytest.raises(WeightsError) as caught:
        decode_diff(codec, payload, np.zeros(size, dtype=np.float32), **known)
    assert caught.value.reason == "payload"


def planes_of(*frames: Any) -> Any:
    return b"\x00" + b"".join(varint(len(frame)) + frame for frame in frames)


@pytest.mark.parametrize("declare", [1, 0])
@pytest.mark.parametrize("codec", [PayloadEncoding.PLANES, PayloadEncoding.SPARSE])
def test_bombs_are_refused_before_they_expand(declare: int, codec: Any) -> None:
    bomb = compressed(bytes(200_000_000), write_content_size=declare)
    size = 100_000
    every = varint(size) + pack_gaps(np.arange(size), size) + pack_flags(np.zeros(size, dtype=np.bool_))
    sparse = b"\x00\x01" + every + b"\x05" + varint(len(bomb)) + bomb
    payload = planes_of(*[bomb] * 4) if codec == PayloadEncoding.PLANES else sparse
    tracemalloc.start()
    try:
        refused(codec, payload, size)
        assert tracemalloc.get_traced_memory()[1] < 40 * size
    finally:
        tracemalloc.stop()


def test_frames_that_lie_about_their_size_are_refused() -> None:
    n = 1000
    good, short = compressed(b"\x80" * n), compressed(b"\x80" * (n - 1))
    assert not decode_diff(PayloadEncoding.PLANES, planes_of(*[good] * 4), np.zeros(n, np.float32)).flat.any()
    for plane in (short, good + b"x", good + good, good[:-1], b"", b"\x00" * 10, compressed(bytes(n), write_content_size=0)[:-1]):
        refused(PayloadEncoding.PLANES, planes_of(good, good, plane, good), n)


@pytest.mark.parametrize("codec", list(PayloadEncoding))
@pytest.mark.parametrize("length", [1, 15, 16, 17, 39, 41, 4000])
def test_wrong_lengths_are_refused(codec: Any, length: int) -> None:
    refused(codec, bytes(length), 10)


def test_a_diff_must_agree_with_its_header_on_what_is_needed() -> None:
    base = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    sparse = base.copy()
    sparse[3] += 1
    diff = encode_diff(base, sparse)
    refused(diff.codec, diff.payload, 1000, before=base)


@given(st.binary(max_size=200), st.integers(0, 50), st.booleans())
@settings(max_examples=200)
def test_any_bytes_give_a_state_or_our_error(payload: bytes, size: int, known: bool) -> None:
    base = np.zeros(size, dtype=np.float32)
    for codec in PayloadEncoding:
        for form in (FP32, BF16, form_of(WireDtype.GRID, (0,), (size,))):
            try:
                out = decode_diff(codec, payload, base, form=form, before=base if known else None).flat
            except WeightsError as exc:
                assert exc.reason == "payload"
            else:
                assert out.shape == (size,)


@given(state_lists(3, sizes=st.integers(100, 3000)), st.data())
def test_corrupted_payloads_give_a_state_or_our_error_and_stay_small(states: Any, data: Any) -> None:
    """The payload's hash is not checked here, because it would detect all of these changes."""
    before, base, new = states
    with np.errstate(all="ignore"):
        diff = encode_diff(base, new, before=before)
    payload = bytearray(diff.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload
    tracemalloc.start()
    try:
        out = decode_diff(diff.codec, bytes(payload), base, before=before if diff.predicted else None).flat
        assert out.shape == base.shape
    except WeightsError as exc:
        assert exc.reason == "payload"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 200 * base.size + 200_000


def test_digest_sees_every_bit() -> None:
    flat = np.random.default_rng(0).standard_normal(33).astype(np.float32)
    seen = {digest(flat)}
    for index in range(33):
        for bit in (0, 31):
            other = flat.copy()
            other.view(np.uint32)[index] ^= np.uint32(1 << bit)
            seen.add(digest(other))
    assert len(seen) == 1 + 66
    assert digest(np.zeros(0, np.float32)) == 0x2D06800538D394C2  # xxh3-64 of no bytes


def test_raw_is_what_it_says() -> None:
    zero = np.zeros(1, dtype=np.float32)
    one = np.array([1.5], dtype=np.float32)
    assert encode_diff(zero, one).payload == struct.pack("<i", 0x3FC00000)
    assert encode_diff(zero, one, form=BF16).payload == struct.pack("<h", 0x3FC0)
