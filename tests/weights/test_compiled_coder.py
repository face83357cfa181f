"""The compiled coder and the pure one read each other's updates, refuse the same ones, and choose the same encodings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq import native
from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import PolicySnapshot, TensorSpec
from rl4sys_zmq.weights import (
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
from rl4sys_zmq.weights.coder import decode_diff, decode_snapshot, encode_diff, encode_snapshot
from rl4sys_zmq.weights.forms import BF16, FP32, IntegerMapping, form_of

from .strategies import any_bits, bits_of, state_lists

COMPILED = native.load()
pytestmark = pytest.mark.skipif(COMPILED is None, reason=f"no compiled form: {native.reason()}")
FORMS = (None, COMPILED)
KINDS = pytest.mark.parametrize("kind", list(WireDtype))


@contextmanager
def using(module: Any) -> Iterator[None]:
    """Use the pure form (None) or the compiled one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "load", lambda: module)
        yield


def decoded(module: Any, *args: Any, **known: Any) -> Any:
    """Return the bytes of the decoded state, or the reason of the refusal."""
    with using(module), np.errstate(all="ignore"):
        try:
            return decode_diff(*args, **known).flat.tobytes()
        except WeightsError as error:
            return error.reason


def rounded(kind: WireDtype, states: Any) -> tuple[IntegerMapping, Any]:
    """Return states that the wire dtype can represent, and its mapping."""
    if kind is WireDtype.FP32:
        return FP32, states
    if kind is WireDtype.BF16:
        return BF16, [(bits_of(state) & np.uint32(0xFFFF0000)).view(np.float32) for state in states]
    finite = [np.clip(np.nan_to_num(state), -1e6, 1e6).astype(np.float32) for state in states]
    size = finite[0].size
    grid = form_of(WireDtype.GRID, (-9, -3, -12), (size // 3, size // 3, size - 2 * (size // 3)))
    return grid, [grid.canonical(state) for state in finite]


def form_bytes(form: IntegerMapping) -> int:
    return np.dtype(form.word).itemsize


@KINDS
@given(state_lists(3), st.booleans())
def test_each_form_reads_what_the_other_wrote(kind: WireDtype, states: Any, known: bool) -> None:
    form, (before, base, new) = rounded(kind, states)
    for module in FORMS:
        with using(module), np.errstate(all="ignore"):
            diff = encode_diff(base, new, form=form, before=before if known else None, prefix=b"steps")
        assert diff.size <= form_bytes(form) * new.size
        assert all(type(part) in (bytes, memoryview) for part in diff.parts)
        payload = diff.payload
        if diff.codec in (PayloadEncoding.SPARSE, PayloadEncoding.PLANES):
            assert payload.startswith(b"steps")
            payload = payload[5:]
        needed = before if diff.predicted else None
        for reader in FORMS:
            assert decoded(reader, diff.codec, payload, base, form=form, before=needed) == new.tobytes()


@pytest.mark.parametrize("kind", [WireDtype.FP32, WireDtype.BF16])
@pytest.mark.parametrize(("density", "scale"), [(0.01, 1e-2), (0.3, 1e-2), (0.5, 1e-2), (1.0, 1e-5), (1.0, 1e-2), (0.0, 0.0)])
def test_both_forms_choose_the_same_encoding(kind: WireDtype, density: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    start, move = rng.standard_normal((2, 30_000)).astype(np.float32)
    moves = np.where(rng.random(30_000) < density, np.float32(scale) * move, np.float32(0))
    form, (before, base, new) = rounded(kind, [(start + k * moves).astype(np.float32) for k in range(3)])
    diffs = []
    for module in FORMS:
        with using(module):
            diffs.append(encode_diff(base, new, form=form, before=before))
    pure, compiled = diffs
    assert (pure.codec, pure.predicted) == (compiled.codec, compiled.predicted)
    assert abs(pure.size - compiled.size) <= 0.03 * pure.size  # the two may use different versions of zstd


@KINDS
@given(state_lists(3, sizes=st.integers(1, 3000)), st.data())
@settings(max_examples=150)
def test_both_forms_refuse_the_same(kind: WireDtype, states: Any, data: Any) -> None:
    form, (before, base, new) = rounded(kind, states)
    with using(data.draw(st.sampled_from(FORMS))), np.errstate(all="ignore"):
        diff = encode_diff(base, new, form=form, before=before)
    payload = bytearray(diff.payload)
    for _ in range(data.draw(st.integers(0, 3))):
        if payload:
            payload[data.draw(st.integers(0, min(40, len(payload) - 1)))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload)
    codec = data.draw(st.sampled_from([diff.codec, *PayloadEncoding]))
    last = data.draw(st.sampled_from([None, before]))
    pure, compiled = (decoded(module, codec, cut, base, form=form, before=last) for module in FORMS)
    assert pure == compiled


@given(st.binary(max_size=80), st.integers(0, 60), st.booleans(), st.sampled_from(list(PayloadEncoding)))
@settings(max_examples=300)
def test_both_forms_read_any_bytes_alike(payload: bytes, size: int, known: bool, codec: PayloadEncoding) -> None:
    base = np.arange(size, dtype=np.float32)
    for form in (FP32, BF16, form_of(WireDtype.GRID, (0,), (size,))):
        pure, compiled = (decoded(one, codec, payload, base, form=form, before=base if known else None) for one in FORMS)
        assert pure == compiled


def test_only_values_of_bf16_are_diffed_as_bf16() -> None:
    fine = np.ones(3000, dtype=np.float32)
    bad = fine.copy()
    bad[5] = 1.001
    with using(COMPILED):
        for base, new in ((fine, bad), (bad, fine)):
            with pytest.raises(WeightsError) as caught:
                encode_diff(base, new, form=BF16)
            assert caught.value.reason == "dtype"
        diff = encode_diff(fine, 2 * fine, form=BF16)
    assert [decoded(module, diff.codec, diff.payload, bad, form=BF16) for module in FORMS] == ["dtype"] * 2


@pytest.mark.parametrize("dtype", [WireDtype.FP32, WireDtype.BF16])
@given(st.integers(0, 5000), st.sampled_from([0.0, 0.02, 1.0]), st.integers(0, 99))
def test_snapshots_of_both_forms(dtype: WireDtype, size: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    flat = np.where(rng.random(size) < density, any_bits(rng, size), np.uint32(0x3F800000)).astype(np.uint32)
    state = (flat & np.uint32(0xFFFF0000 if dtype is WireDtype.BF16 else 0xFFFFFFFF)).view(np.float32)
    codecs = []
    for module in FORMS:
        with using(module):
            codec, payload = encode_snapshot(state, dtype, compress=True)
        codecs.append(codec)
        for reader in FORMS:
            with using(reader):
                assert decode_snapshot(codec, payload, size, dtype).tobytes() == state.tobytes()
                if codec == PayloadEncoding.SNAPSHOT_PLANES:
                    with pytest.raises(WeightsError):
                        decode_snapshot(codec, bytes(payload[:-1]), size, dtype)
    assert codecs[0] == codecs[1]


TENSORS = (
    TensorSpec("w", (700,)),
    TensorSpec("count", (3,), "int64"),
    TensorSpec("mean", (40,), exact=True),
    TensorSpec("v", (2500,)),
    TensorSpec("on", (5,), "bool"),
)


@KINDS
@pytest.mark.parametrize("level", [0, 1])
@given(st.sampled_from([0.0, 1e-6, 1e-3, 1.0]), st.sampled_from([0.01, 0.4, 1.0]), st.integers(0, 99))
@settings(max_examples=25)
def test_actors_and_learners_of_either_form(kind: Any, level: int, scale: float, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    flat, versions = rng.standard_normal(3240).astype(np.float32), []
    steps: tuple[int, ...] = ()
    for version in range(4):
        parts = (flat[:700], flat[740:])
        joined = np.concatenate(parts)
        steps = choose_steps(joined, None, steps, (700, 2500), noise=0.5)
        small = round_to(kind, joined, steps, (700, 2500))
        wire = np.concatenate((small[:700], flat[700:740], small[700:])).astype(np.float32)
        others = np.array([version, 7, -1]).tobytes() + bytes([1, 0, 1, 0, version % 2, 0, 0, 0])
        versions.append(PolicySnapshot(9, version, digest(wire, others), wire, others))
        flat = np.where(rng.random(3240) < share, flat + scale * rng.standard_normal(3240), flat).astype(np.float32)
    options = EncodingOptions(kind, level, TENSORS)
    for writer in FORMS:
        held: list[Any] = [None, None]
        for number, new in enumerate(versions):
            base, before = versions[number - 1] if number else None, versions[number - 2] if number > 1 else None
            with using(writer):
                header, payload = encode_update(b"policy-1", base, new, options, before=before)
            head = WeightsHeader.unpack(header)
            assert head.payload_hash == xxhash.xxh3_64_intdigest(payload)
            last = held[-1]
            for reader in FORMS:
                with using(reader):
                    got = apply_update(head, payload, last, TENSORS, before=held[-2])
                assert got.flat.tobytes() == new.flat.tobytes() and got.others == new.others
                assert not got.flat.flags.writeable
            held.append(got)
