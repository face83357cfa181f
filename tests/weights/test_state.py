"""Updates are applied whole and verified, or not at all."""

import dataclasses
import itertools

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import HEADER_BYTES, Codec, WeightsHeader, apply_update, digest, encode_update, merge_updates

POLICY = b"policy-1"
GENERATION = 17


def snapshot(flat, version, generation=GENERATION):
    flat = np.asarray(flat, dtype=np.float32)
    return PolicySnapshot(generation, version, digest(flat), flat)


def chain(size, count, scale=1e-4, seed=0):
    """`count` consecutive snapshots with small steps between them."""
    rng = np.random.default_rng(seed)
    flat = rng.standard_normal(size).astype(np.float32)
    out = []
    for version in range(count):
        out.append(snapshot(flat, version))
        flat = flat + (scale * rng.standard_normal(size)).astype(np.float32)
    return out


def reason_of(*args):
    with pytest.raises(WeightsError) as caught:
        apply_update(*args)
    return caught.value.reason


def resealed(header, payload, **changes):
    """The header of `payload` with some fields changed: a sender that lies rather than a wire that errs."""
    fields = {"payload_bytes": len(payload), "payload_hash": xxhash.xxh3_64_intdigest(payload), **changes}
    return dataclasses.replace(WeightsHeader.unpack(header), **fields).pack()


@given(st.one_of(st.integers(0, 5), st.integers(1, 5000)), st.sampled_from([0.0, 1e-7, 1e-3, 1.0]), st.booleans())
def test_diffs_and_snapshots_lead_to_the_same_state(size, scale, parsed):
    old, new = chain(size, 2, scale)
    for base in (old, None):
        header, payload = encode_update(POLICY, GENERATION, base, new)
        assert len(header) == HEADER_BYTES and len(payload) <= 4 * size
        got = apply_update(WeightsHeader.unpack(header) if parsed else header, memoryview(payload), base, size)
        assert (got.generation, got.version, got.digest) == (GENERATION, 1, new.digest)
        assert np.array_equal(got.flat.view(np.uint32), new.flat.view(np.uint32))
        assert not got.flat.flags.writeable and not np.shares_memory(got.flat, old.flat)
        assert got.flat.flags.aligned


def test_another_generation_travels_as_a_snapshot():
    old, new = chain(50, 2)
    header, payload = encode_update(POLICY, GENERATION, dataclasses.replace(old, generation=3), new)
    assert not WeightsHeader.unpack(header).codec.is_diff
    assert apply_update(header, payload, None, 50).digest == new.digest


def test_snapshots_are_compressed_when_it_pays():
    sparse = np.zeros(5000, dtype=np.float32)
    sparse[::50] = 1.5
    header, payload = encode_update(POLICY, GENERATION, None, snapshot(sparse, 3))
    assert WeightsHeader.unpack(header).codec == Codec.SNAPSHOT_ZSTD and len(payload) < 2000
    assert np.array_equal(apply_update(header, payload, None, 5000).flat, sparse)
    noise = np.random.default_rng(0).integers(0, 0x7F000000, 5000, dtype=np.uint32).view(np.float32)
    assert WeightsHeader.unpack(encode_update(POLICY, GENERATION, None, snapshot(noise, 3))[0]).codec == Codec.SNAPSHOT


def test_gaps():
    v0, v1, v2 = chain(30, 3)
    header, payload = encode_update(POLICY, GENERATION, v1, v2)
    assert reason_of(header, payload, None, 30) == "gap"
    assert reason_of(header, payload, v0, 30) == "gap"
    assert reason_of(header, payload, v2, 30) == "gap"
    assert reason_of(header, payload, dataclasses.replace(v1, generation=1), 30) == "gap"
    with pytest.raises(WeightsError, match="does not follow"):
        encode_update(POLICY, GENERATION, v2, v1)
    with pytest.raises(WeightsError, match="generation"):
        encode_update(POLICY, GENERATION + 1, v1, v2)


def test_sizes():
    v0, v1 = chain(30, 2)
    header, payload = encode_update(POLICY, GENERATION, v0, v1)
    assert reason_of(header, payload, v0, 31) == "size"
    with pytest.raises(WeightsError) as caught:
        encode_update(POLICY, GENERATION, v0, snapshot(np.zeros(29), 1))
    assert caught.value.reason == "size"
    assert reason_of(resealed(header, payload, elements=2**30), payload, v0, 30) == "size"
    assert reason_of(header, payload, snapshot(np.zeros(29), 0), 30) == "size"


def test_the_result_must_be_the_learners_state():
    v0, v1 = chain(30, 2)
    header, payload = encode_update(POLICY, GENERATION, v0, v1)
    drifted = snapshot(v0.flat + 1, 0)
    assert reason_of(header, payload, drifted, 30) == "digest"
    assert reason_of(resealed(header, payload, state_hash=v1.digest ^ 1), payload, v0, 30) == "digest"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_on_both_sides(bad):
    v0 = snapshot(np.ones(30), 0)
    flat = np.ones(30, dtype=np.float32)
    flat[7] = bad
    for base in (v0, None):
        with pytest.raises(WeightsError) as caught:
            encode_update(POLICY, GENERATION, base, snapshot(flat.copy(), 1))
        assert caught.value.reason == "finite"
    raw = flat.tobytes()
    header, _ = encode_update(POLICY, GENERATION, None, v0)
    header = resealed(header, raw, codec=Codec.SNAPSHOT, state_hash=digest(flat))
    assert reason_of(header, raw, None, 30) == "finite"


@pytest.mark.parametrize("whole", [False, True])
def test_every_corrupted_byte_is_detected(whole):
    v0, v1 = chain(60, 2)
    header, payload = encode_update(POLICY, GENERATION, None if whole else v0, v1)
    message = header + payload
    for index in range(len(message)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(message)
            broken[index] ^= flip
            with pytest.raises(WeightsError):
                apply_update(bytes(broken[:HEADER_BYTES]), bytes(broken[HEADER_BYTES:]), v0, 60)


@given(st.data())
@settings(max_examples=50)
def test_truncated_and_lengthened_payloads_are_refused(data):
    v0, v1 = chain(200, 2)
    header, payload = encode_update(POLICY, GENERATION, v0, v1)
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    longer = payload + data.draw(st.binary(min_size=1, max_size=20))
    for other in (cut, longer):
        assert reason_of(header, other, v0, 200) == "payload"
        if len(other) <= 800:
            assert reason_of(resealed(header, other), other, v0, 200) in ("payload", "digest")
    assert reason_of(header[:-1], payload, v0, 200) == "payload"
    assert reason_of(resealed(header, payload, chunks=2), payload, v0, 200) == "payload"


@given(st.integers(0, 300), st.integers(1, 6))
def test_merged_updates_jump_to_the_last_version(size, count):
    states = chain(size, count + 1)
    updates = [encode_update(POLICY, GENERATION, a, b) for a, b in itertools.pairwise(states)]
    header, payload = merge_updates(updates)
    assert len(payload) <= 4 * size
    got = apply_update(header, payload, states[0], size)
    assert (got.version, got.digest) == (count, states[-1].digest)


def test_only_consecutive_diffs_merge():
    v0, v1, v2 = chain(30, 3)
    first, second = encode_update(POLICY, GENERATION, v0, v1), encode_update(POLICY, GENERATION, v1, v2)
    snap, other = encode_update(POLICY, GENERATION, None, v2), encode_update(b"policy-2", GENERATION, v1, v2)
    for updates in ([], [second, first], [first, first], [first, snap], [first, other]):
        with pytest.raises(WeightsError) as caught:
            merge_updates(updates)
        assert caught.value.reason == "gap"
    with pytest.raises(WeightsError) as caught:
        merge_updates([first, (second[0], second[1] + b"x")])
    assert caught.value.reason == "payload"
