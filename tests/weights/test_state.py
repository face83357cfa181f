"""An update is applied as a whole and verified, or not at all."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import ProtocolError, WeightsError
from rl4sys_zmq.values import PolicySnapshot, TensorSpec
from rl4sys_zmq.weights import (
    HEADER_BYTES,
    EncodingOptions,
    PayloadEncoding,
    WeightsHeader,
    WireDtype,
    apply_update,
    choose_steps,
    digest,
    encode_update,
    round_to,
)
from rl4sys_zmq.weights.coder import encode_diff
from rl4sys_zmq.weights.forms import steps_of

POLICY = b"policy-1"
GENERATION = 17


def snapshot(flat: Any, version: Any, generation: Any = GENERATION) -> Any:
    flat = np.asarray(flat, dtype=np.float32)
    return PolicySnapshot(generation, version, digest(flat), flat)


def tensors_of(*sizes: int) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"t{number}", (size,)) for number, size in enumerate(sizes))


def chain(size: Any, count: Any, scale: float = 1e-4, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    flat = rng.standard_normal(size).astype(np.float32)
    out = []
    for version in range(count):
        out.append(snapshot(flat, version))
        flat = flat + (scale * rng.standard_normal(size)).astype(np.float32)
    return out


def applied(header: Any, *args: Any, **known: Any) -> PolicySnapshot:
    return apply_update(WeightsHeader.unpack(header), *args, **known)


def reason_of(*args: Any) -> Any:
    with pytest.raises(WeightsError) as caught:
        applied(*args)
    return caught.value.reason


def resealed(header: Any, payload: Any, **changes: Any) -> Any:
    """Return the header of `payload` with some fields changed, as from a malicious sender and not from a faulty wire."""
    fields = {"payload_bytes": len(payload), "payload_hash": xxhash.xxh3_64_intdigest(payload), **changes}
    return dataclasses.replace(WeightsHeader.unpack(header), **fields).pack()


@given(st.one_of(st.integers(0, 5), st.integers(1, 5000)), st.sampled_from([0.0, 1e-7, 1e-3, 1.0]))
def test_diffs_and_snapshots_lead_to_the_same_state(size: Any, scale: Any) -> None:
    old, new = chain(size, 2, scale)
    for base in (old, None):
        header, payload = encode_update(POLICY, base, new)
        assert len(header) == HEADER_BYTES and len(payload) <= 4 * size
        got = applied(header, memoryview(payload), base, tensors_of(size))
        assert (got.generation, got.version, got.digest) == (GENERATION, 1, new.digest)
        assert np.array_equal(got.flat.view(np.uint32), new.flat.view(np.uint32))
        assert not got.flat.flags.writeable and not np.shares_memory(got.flat, old.flat)
        assert got.flat.flags.aligned


def test_another_generation_travels_as_a_snapshot() -> None:
    old, new = chain(50, 2)
    header, payload = encode_update(POLICY, dataclasses.replace(old, generation=3), new)
    assert not WeightsHeader.unpack(header).codec.is_diff
    assert applied(header, payload, None, tensors_of(50)).digest == new.digest


def test_snapshots_are_compressed_when_it_pays() -> None:
    sparse = np.zeros(5000, dtype=np.float32)
    sparse[::50] = 1.5
    header, payload = encode_update(POLICY, None, snapshot(sparse, 3))
    assert WeightsHeader.unpack(header).codec == PayloadEncoding.SNAPSHOT_PLANES and len(payload) < 2000
    assert np.array_equal(applied(header, payload, None, tensors_of(5000)).flat, sparse)
    noise = np.random.default_rng(0).integers(0, 0x7F000000, 5000, dtype=np.uint32).view(np.float32)
    assert WeightsHeader.unpack(encode_update(POLICY, None, snapshot(noise, 3))[0]).codec == PayloadEncoding.SNAPSHOT


def test_gaps() -> None:
    v0, v1, v2 = chain(30, 3)
    header, payload = encode_update(POLICY, v1, v2)
    assert reason_of(header, payload, None, tensors_of(30)) == "gap"
    assert reason_of(header, payload, v0, tensors_of(30)) == "gap"
    assert reason_of(header, payload, v2, tensors_of(30)) == "gap"
    assert reason_of(header, payload, dataclasses.replace(v1, generation=1), tensors_of(30)) == "gap"
    with pytest.raises(WeightsError, match="does not follow"):
        encode_update(POLICY, v2, v1)


def test_sizes() -> None:
    v0, v1 = chain(30, 2)
    header, payload = encode_update(POLICY, v0, v1)
    assert reason_of(header, payload, v0, tensors_of(31)) == "size"
    with pytest.raises(WeightsError) as caught:
        encode_update(POLICY, v0, snapshot(np.zeros(29), 1))
    assert caught.value.reason == "size"
    assert reason_of(resealed(header, payload, elements=2**30), payload, v0, tensors_of(30)) == "size"
    assert reason_of(header, payload, snapshot(np.zeros(29), 0), tensors_of(30)) == "size"


def test_the_result_must_be_the_learners_state() -> None:
    v0, v1 = chain(30, 2)
    header, payload = encode_update(POLICY, v0, v1)
    drifted = snapshot(v0.flat + 1, 0)
    assert reason_of(header, payload, drifted, tensors_of(30)) == "digest"
    assert reason_of(resealed(header, payload, state_hash=v1.digest ^ 1), payload, v0, tensors_of(30)) == "digest"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_on_both_sides(bad: Any) -> None:
    v0 = snapshot(np.ones(30), 0)
    flat = np.ones(30, dtype=np.float32)
    flat[7] = bad
    for base in (v0, None):
        with pytest.raises(WeightsError) as caught:
            encode_update(POLICY, base, snapshot(flat.copy(), 1))
        assert caught.value.reason == "finite"
    raw = flat.tobytes()
    header, _ = encode_update(POLICY, None, v0)
    header = resealed(header, raw, codec=PayloadEncoding.SNAPSHOT, state_hash=digest(flat))
    assert reason_of(header, raw, None, tensors_of(30)) == "finite"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("codec", "share"), [(PayloadEncoding.SPARSE, 0.01), (PayloadEncoding.PLANES, 1.0), (PayloadEncoding.RAW, 1.0)]
)
def test_a_diff_that_writes_what_is_not_finite_is_refused(bad: Any, codec: Any, share: float) -> None:
    """The sender has not checked its weights. Everything else in the update is valid."""
    rng = np.random.default_rng(0)
    v0 = snapshot(rng.standard_normal(5000), 0)
    changed = np.where(rng.random(5000) < share, v0.flat + np.float32(1e-3), v0.flat)
    if codec == PayloadEncoding.RAW:
        changed = np.nan_to_num(rng.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32))
    changed[np.flatnonzero(changed != v0.flat)[3]] = bad
    diff = encode_diff(v0.flat, changed)
    assert diff.codec == codec
    header = resealed(
        encode_update(POLICY, v0, snapshot(v0.flat.copy(), 1))[0], diff.payload, codec=codec, state_hash=digest(changed)
    )
    assert reason_of(header, diff.payload, v0, tensors_of(5000)) == "finite"


@pytest.mark.parametrize("whole", [False, True])
def test_every_corrupted_byte_is_detected(whole: bool) -> None:
    v0, v1 = chain(60, 2)
    header, payload = encode_update(POLICY, None if whole else v0, v1)
    message = header + payload
    for index in range(len(message)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(message)
            broken[index] ^= flip
            with pytest.raises((WeightsError, ProtocolError)):
                applied(bytes(broken[:HEADER_BYTES]), bytes(broken[HEADER_BYTES:]), v0, tensors_of(60))


@given(st.data())
@settings(max_examples=50)
def test_truncated_and_lengthened_payloads_are_refused(data: Any) -> None:
    v0, v1 = chain(200, 2)
    header, payload = encode_update(POLICY, v0, v1)
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    longer = payload + data.draw(st.binary(min_size=1, max_size=20))
    for other in (cut, longer):
        assert reason_of(header, other, v0, tensors_of(200)) == "payload"
        if len(other) <= 800:
            assert reason_of(resealed(header, other), other, v0, tensors_of(200)) in ("payload", "digest")
    assert reason_of(resealed(header, payload, chunks=2), payload, v0, tensors_of(200)) == "payload"
    with pytest.raises(ProtocolError):
        WeightsHeader.unpack(header[:-1])


SIZES = (1, 0, 40, 700, 2500)
TENSORS = tensors_of(*SIZES)
DTYPES = pytest.mark.parametrize("dtype", list(WireDtype))


def published(dtype: Any, count: Any, scale: float = 1e-3, seed: int = 0) -> tuple[Any, ...]:
    """Return the snapshots that a learner publishes of `count` versions of its weights, and the weights."""
    masters = [s.flat for s in chain(sum(SIZES), count, scale, seed)]
    steps: tuple[int, ...] = ()
    out = []
    for version, flat in enumerate(masters):
        steps = choose_steps(flat, masters[version - 1] if version else None, steps, SIZES, noise=0.5)
        out.append(snapshot(round_to(dtype, flat, steps, SIZES), version))
    return out, masters


@DTYPES
@given(st.integers(2, 8), st.sampled_from([0.0, 1e-6, 1e-3, 1.0]), st.data())
@settings(max_examples=30)
def test_whatever_an_actor_received_it_holds_the_same(dtype: Any, count: int, scale: Any, data: Any) -> None:
    """One actor applies every diff, predicted or not, one skips versions, and one begins with a snapshot."""
    versions, _ = published(dtype, count, scale)
    writing = EncodingOptions(dtype, tensors=TENSORS)
    held, before = applied(*encode_update(POLICY, None, versions[0], writing), None, TENSORS), None
    for base, new in itertools.pairwise(versions):
        known = versions[base.version - 1] if base.version else None
        header, payload = encode_update(POLICY, base, new, writing, before=known)
        assert len(payload) <= dtype.itemsize * sum(SIZES)
        held, before = applied(header, payload, held, TENSORS, before=before), held
    start = data.draw(st.integers(0, count - 2))
    jumped = applied(*encode_update(POLICY, versions[start], versions[-1], writing), versions[start], TENSORS)
    late = applied(*encode_update(POLICY, None, versions[-1], writing), None, TENSORS)
    for one in (held, jumped, late):
        assert one.flat.tobytes() == versions[-1].flat.tobytes() and one.digest == versions[-1].digest


def test_a_diff_that_needs_the_version_before_says_so() -> None:
    rng = np.random.default_rng(0)
    start, move = rng.standard_normal(3000), 1e-3 * rng.standard_normal(3000)
    v0, v1, v2 = (snapshot(start + k * move, k) for k in range(3))
    header, payload = encode_update(POLICY, v1, v2, before=v0)
    assert WeightsHeader.unpack(header).predicted
    assert applied(header, payload, v1, tensors_of(3000), before=v0).digest == v2.digest
    for before in (None, v1, dataclasses.replace(v0, generation=1)):
        with pytest.raises(WeightsError) as caught:
            applied(header, payload, v1, tensors_of(3000), before=before)
        assert caught.value.reason == "gap"
    assert not WeightsHeader.unpack(encode_update(POLICY, v1, v2, before=v1)[0]).predicted


@DTYPES
@pytest.mark.parametrize("whole", [False, True])
def test_every_corrupted_byte_of_every_dtype_is_detected(dtype: Any, whole: bool) -> None:
    versions, _ = published(dtype, 2)
    header, payload = encode_update(POLICY, None if whole else versions[0], versions[1], EncodingOptions(dtype, tensors=TENSORS))
    for index in range(0, len(payload), 7):
        broken = bytearray(payload)
        broken[index] ^= 1 << index % 8
        with pytest.raises(WeightsError) as caught:
            applied(header, bytes(broken), versions[0], TENSORS)
        assert caught.value.reason == "payload"
        try:  # a malicious sender: an update is accepted only if it leads to the learner's state
            got = applied(resealed(header, bytes(broken)), bytes(broken), versions[0], TENSORS)
        except WeightsError as exc:
            assert exc.reason in ("payload", "digest")
        else:
            assert got.flat.tobytes() == versions[1].flat.tobytes()


def bf16_slow(value: Any) -> Any:
    """Return the bf16 value that is nearest to a float32, and the even one of two that are equally near."""
    bits = int(np.float32(value).view(np.uint32))
    low, high = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    rest = bits - low
    up = rest > 0x8000 or (rest == 0x8000 and high >> 16 & 1 == 0)
    return high if up else low


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32, allow_nan=False), max_size=50))
def test_bf16_is_the_nearest(values: Any) -> None:
    flat = np.array(values, dtype=np.float32)
    assert round_to(WireDtype.BF16, flat).view(np.uint32).tolist() == [bf16_slow(v) for v in flat]


def test_what_is_not_finite_does_not_travel() -> None:
    for dtype, value in ((WireDtype.FP32, np.nan), (WireDtype.BF16, np.inf), (WireDtype.BF16, np.finfo(np.float32).max)):
        with pytest.raises(WeightsError) as caught:
            round_to(dtype, np.array([1, value], dtype=np.float32))
        assert caught.value.reason == "finite"


@given(st.integers(0, 2**32), st.sampled_from([1e-30, 1e-5, 1.0, 1e30]))
def test_a_grid_errs_by_half_a_step_and_never_drifts(seed: int, scale: Any) -> None:
    """Each version is rounded from the weights, independent of the versions before."""
    rng = np.random.default_rng(seed)
    steps: tuple[int, ...] = ()
    flat, last = (scale * rng.standard_normal(sum(SIZES))).astype(np.float32), None
    for _ in range(4):
        steps = choose_steps(flat, last, steps, SIZES, noise=0.5)
        rounded = round_to(WireDtype.GRID, flat, steps, SIZES)
        half = np.repeat(np.ldexp(0.5, np.array(steps)), SIZES)
        assert (np.abs(rounded.astype(np.float64) - flat) <= half).all()
        assert all(coarse >= step for coarse, step in zip(steps_of(rounded, SIZES), steps, strict=True))
        last, flat = flat, (flat + scale * 1e-3 * rng.standard_normal(flat.size)).astype(np.float32)


def test_the_steps_of_a_state_are_the_lowest_bits() -> None:
    flat = np.array([0.75, -8, 0, 0, 1e-45, 96], dtype=np.float32)
    assert steps_of(flat, (2, 2, 1, 1)) == (-2, 127, -149, 5)


def test_what_is_on_no_grid_is_refused() -> None:
    v0, v1 = chain(30, 2)
    tiny = snapshot(np.full(30, 1e-45), 1)
    for new, sizes in ((tiny, (30,)), (v1, (29,))):
        with pytest.raises(WeightsError) as caught:
            encode_update(POLICY, v0, new, EncodingOptions(WireDtype.GRID, tensors=tensors_of(*sizes)))
        assert caught.value.reason == "dtype"
