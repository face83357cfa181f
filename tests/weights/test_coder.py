"""The coder is exact for every bit pattern, composes, never grows, and refuses what it did not write."""

import itertools
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.weights import Codec, decode_diff, digest, encode_diff, merge_diffs

SPECIAL = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC12345, 0x7F800001, 0x00000001, 0x80000001, 0x7F7FFFFF]


def bits_of(flat):
    return flat.view(np.uint32)


@st.composite
def state_lists(draw, count):
    """`count` states of one size: unrelated bits, special values, or small moves of the one before."""
    n = draw(st.one_of(st.integers(0, 20), st.integers(0, 5000)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    states = [rng.integers(0, 2**32, n, dtype=np.uint32)]
    for _ in range(count - 1):
        kind = draw(st.sampled_from(["random", "special", "near", "sparse", "same"]))
        last = states[-1].copy()
        if kind == "random":
            last = rng.integers(0, 2**32, n, dtype=np.uint32)
        elif kind == "special":
            last = rng.choice(np.array(SPECIAL, dtype=np.uint32), n)
        elif kind == "near":
            last += rng.integers(-300, 300, n).astype(np.uint32)
        elif kind == "sparse":
            last[rng.random(n) < 0.02] ^= np.uint32(1)
        states.append(last)
    return [s.view(np.float32) for s in states]


def ordered_slow(bits):
    """One float's bits as an integer of the same order, in Python's own integers."""
    return bits if bits < 2**31 else -(bits - 2**31) - 1


@given(state_lists(2))
def test_exact_for_any_bits_and_never_larger_than_raw(states):
    base, new = states
    before = base.copy()
    codec, payload = encode_diff(base, new)
    assert len(payload) <= 4 * new.size
    result = decode_diff(codec, payload, base)
    assert np.array_equal(bits_of(result), bits_of(new))
    assert result.dtype == np.float32 and not np.shares_memory(result, base)
    assert np.array_equal(bits_of(base), bits_of(before))


@given(state_lists(4))
def test_diffs_compose(states):
    diffs = [encode_diff(a, b) for a, b in itertools.pairwise(states)]
    codec, payload = merge_diffs(diffs, states[0].size)
    assert len(payload) <= 4 * states[0].size
    assert np.array_equal(bits_of(decode_diff(codec, payload, states[0])), bits_of(states[-1]))
    assert (codec, payload) == encode_diff(states[0], states[-1])


def test_the_integers_follow_the_order_of_the_floats():
    rng = np.random.default_rng(0)
    floats = np.sort(np.concatenate([rng.standard_normal(200), [0.0, -np.inf, np.inf, 1e-40, -1e-40]]).astype(np.float32))
    ordered = [ordered_slow(int(b)) for b in bits_of(floats)]
    assert ordered == sorted(ordered)
    # A diff of one element is raw, so it shows the integer itself.
    zero = np.zeros(1, dtype=np.float32)
    for value, integer in zip(floats, ordered, strict=True):
        codec, payload = encode_diff(zero, value.reshape(1))
        assert (codec, payload) == ((Codec.RAW, struct.pack("<i", integer)) if integer else (Codec.UNCHANGED, b""))


def test_codecs_are_chosen_by_what_is_shorter():
    base = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert encode_diff(base, base.copy()) == (Codec.UNCHANGED, b"")
    near = (bits_of(base) + 1).view(np.float32)
    codec, payload = encode_diff(base, near)
    assert codec == Codec.PLANES_ZSTD and len(payload) < 400
    noise = np.random.default_rng(1).integers(0, 2**32, 1000, dtype=np.uint32).view(np.float32)
    assert encode_diff(base, noise)[0] == Codec.RAW


def test_minus_zero_is_a_change():
    zero = np.zeros(3, dtype=np.float32)
    codec, payload = encode_diff(zero, -zero)
    assert codec != Codec.UNCHANGED
    assert np.signbit(decode_diff(codec, payload, zero)).all()


def test_sizes_must_agree():
    with pytest.raises(WeightsError) as caught:
        encode_diff(np.zeros(3, np.float32), np.zeros(4, np.float32))
    assert caught.value.reason == "size"


def payload_of(planes):
    return struct.pack("<4I", *map(len, planes)) + b"".join(planes)


def refused(codec, payload, size):
    with pytest.raises(WeightsError) as caught:
        decode_diff(codec, payload, np.zeros(size, dtype=np.float32))
    assert caught.value.reason == "payload"


@pytest.mark.parametrize("declare", [True, False])
def test_bombs_are_refused_before_they_expand(declare):
    bomb = zstandard.ZstdCompressor(level=1, write_content_size=declare).compress(bytes(200_000_000))
    payload = payload_of([bomb] * 4)
    size = 100_000
    decode_diff(*encode_diff(np.zeros(size, np.float32), np.ones(size, np.float32)), np.zeros(size, np.float32))
    tracemalloc.start()
    try:
        refused(Codec.PLANES_ZSTD, payload, size)
        assert tracemalloc.get_traced_memory()[1] < 40 * size
    finally:
        tracemalloc.stop()


def test_frames_that_lie_about_their_size_are_refused():
    n = 1000
    good = zstandard.ZstdCompressor(level=1).compress(bytes(n))
    short = zstandard.ZstdCompressor(level=1).compress(bytes(n - 1))
    assert np.array_equal(decode_diff(Codec.PLANES_ZSTD, payload_of([good] * 4), np.zeros(n, np.float32)), np.zeros(n))
    for plane in (short, good + b"x", good + good, good[:-1], b"", b"\x00" * 10):
        refused(Codec.PLANES_ZSTD, payload_of([good, good, plane, good]), n)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("length", [1, 15, 16, 17, 39, 41, 4000])
def test_wrong_lengths_are_refused(codec, length):
    refused(codec, bytes(length), 10)


def test_plane_lengths_beyond_the_payload_are_refused():
    refused(Codec.PLANES_ZSTD, struct.pack("<4I", 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(4), 4)


@given(st.binary(max_size=200), st.integers(0, 50))
@settings(max_examples=200)
def test_any_bytes_give_a_state_or_our_error(payload, size):
    for codec in Codec:
        try:
            out = decode_diff(codec, payload, np.zeros(size, dtype=np.float32))
        except WeightsError as exc:
            assert exc.reason == "payload"
        else:
            assert out.shape == (size,)


def test_digest_sees_every_bit():
    flat = np.random.default_rng(0).standard_normal(33).astype(np.float32)
    seen = {digest(flat)}
    for index in range(33):
        for bit in (0, 31):
            other = flat.copy()
            other.view(np.uint32)[index] ^= np.uint32(1 << bit)
            seen.add(digest(other))
    assert len(seen) == 1 + 66
    assert digest(np.zeros(0, np.float32)) == 0x2D06800538D394C2  # xxh3-64 of nothing
