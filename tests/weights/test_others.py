"""Tensors that are not float32, or exact, arrive bit for bit, for every encoding of the others, or the update is refused."""

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec
from rl4sys_zmq.values.policy import TENSOR_DTYPES
from rl4sys_zmq.weights import (
    TRAILER_BYTES,
    EncodingOptions,
    PayloadEncoding,
    WeightsHeader,
    WireDtype,
    apply_update,
    choose_steps,
    digest,
    division_of,
    encode_update,
    round_to,
)

POLICY, GENERATION = b"policy-1", 17
MIXED = (
    TensorSpec("ids", (40,), "int64"),
    TensorSpec("w", (30, 10)),
    TensorSpec("half", (64, 9), "float16"),
    TensorSpec("count", (), "float64"),
    TensorSpec("b", (7,)),
    TensorSpec("table", (5,), "uint8"),
    TensorSpec("used", (3, 2), "bool"),
)
EXACT = (
    TensorSpec("mean", (5,), exact=True),
    TensorSpec("scale", (5,), exact=True),
    TensorSpec("w", (30, 10)),
    TensorSpec("used", (3,), "bool"),
    TensorSpec("b", (7,)),
    TensorSpec("epsilon", (1,), exact=True),
)


def spec_of(tensors: tuple[TensorSpec, ...]) -> PolicySpec:
    return PolicySpec(BoxSpace((4,)), DiscreteSpace(2), "mine", {}, tensors)


def drawn(spec: PolicySpec, seed: int) -> dict[str, Any]:
    """Return finite tensors: random integers, normal numbers."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for tensor in spec.tensors:
        dtype = TENSOR_DTYPES[tensor.dtype]
        if dtype.kind == "f":
            made[tensor.name] = rng.standard_normal(tensor.shape).astype(dtype)
        elif dtype.kind == "b":
            made[tensor.name] = rng.random(tensor.shape) < 0.5
        else:
            limits = np.iinfo(dtype)
            made[tensor.name] = rng.integers(limits.min, limits.max, tensor.shape, dtype=dtype, endpoint=True)
    return {name: np.asarray(value) for name, value in made.items()}


def moved(tensors: dict[str, Any], kind: str, seed: int) -> dict[str, Any]:
    """Return the next version: the same, with some elements changed, all changed a little, or all changed."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, old in tensors.items():
        share = {"same": 0.0, "few": 0.05, "all": 1.0, "small": 1.0}[kind]
        where = rng.random(old.shape) < share
        if old.dtype.kind == "f":
            new = (old + rng.standard_normal(old.shape) * (1e-3 if kind == "small" else 1.0)).astype(old.dtype)
        elif old.dtype.kind == "b":
            new = ~old
        else:
            new = old ^ np.asarray(1 if kind == "small" else 85, old.dtype)
        out[name] = np.where(where, new, old).astype(old.dtype)
    return out


class Publisher:
    """Both sides of an update. It rounds the float32 tensors, encodes updates, and applies them."""

    def __init__(self, spec: PolicySpec, dtype: WireDtype, level: int) -> None:
        self.spec, self.writing = spec, EncodingOptions(dtype, level, spec.tensors)

    def snapshot(self, tensors: dict[str, Any], version: int) -> PolicySnapshot:
        flat, others = self.spec.flatten(tensors)
        dtype, parts = self.writing.dtype, division_of(self.writing.dtype, self.spec.tensors)
        weights = parts.rounded(flat)
        steps = choose_steps(weights, None, (), parts.sizes, noise=2.0) if dtype is WireDtype.GRID else ()
        wire = parts.joined(round_to(dtype, weights, steps, parts.sizes), parts.exact(flat))
        return PolicySnapshot(GENERATION, version, digest(wire, others), wire, others)

    def encode(self, base: PolicySnapshot | None, new: PolicySnapshot, before: PolicySnapshot | None = None) -> Any:
        return encode_update(POLICY, base, new, self.writing, before=before)

    def apply(self, update: Any, held: PolicySnapshot | None, before: PolicySnapshot | None = None) -> PolicySnapshot:
        return apply_update(WeightsHeader.unpack(update[0]), update[1], held, self.spec.tensors, before=before)


SPECS = st.one_of(
    st.sampled_from([MIXED, EXACT]),
    st.lists(
        st.tuples(st.lists(st.integers(1, 40), max_size=2), st.sampled_from(sorted(TENSOR_DTYPES)), st.booleans()),
        min_size=1,
        max_size=5,
    ).map(lambda ts: tuple(TensorSpec(f"t{i}", tuple(shape), dtype, exact) for i, (shape, dtype, exact) in enumerate(ts))),
)


@settings(max_examples=200)
@given(
    SPECS,
    st.sampled_from(WireDtype),
    st.integers(0, 1),
    st.lists(st.sampled_from(["same", "few", "small", "all"]), max_size=4),
    st.integers(0, 2**32),
)
def test_all_dtypes_come_through_snapshots_and_diffs(tensors: Any, dtype: Any, level: int, kinds: Any, seed: int) -> None:
    publisher = Publisher(spec_of(tensors), dtype, level)
    now = drawn(publisher.spec, seed)
    versions = [publisher.snapshot(now, 0)]
    held, before = publisher.apply(publisher.encode(None, versions[0]), None), None
    for version, kind in enumerate(kinds, 1):
        now = moved(now, kind, seed + version)
        versions.append(publisher.snapshot(now, version))
        update = publisher.encode(versions[-2], versions[-1], versions[-3] if version > 1 else None)
        kept = division_of(dtype, publisher.spec.tensors).kept
        words = len(held.others) + 4 * kept
        assert len(update[1]) <= dtype.itemsize * (publisher.spec.size - kept) + words + TRAILER_BYTES * bool(words)
        held, before = publisher.apply(update, held, before), held
        assert (held.flat.tobytes(), held.others) == (versions[-1].flat.tobytes(), versions[-1].others)
        assert held.digest == versions[-1].digest == digest(held.flat, held.others)
        views = publisher.spec.views(held.flat, held.others)
        for tensor in (*publisher.spec.others, *(one for one in publisher.spec.tensors if one.exact)):
            assert views[tensor.name].tobytes() == now[tensor.name].tobytes()
    late = publisher.apply(publisher.encode(None, versions[-1]), None)
    jumped = publisher.apply(publisher.encode(versions[0], versions[-1]), versions[0]) if kinds else late
    assert late.others == jumped.others == versions[-1].others and late.flat.tobytes() == jumped.flat.tobytes()


def test_what_does_not_change_costs_nothing_and_halves_are_diffed() -> None:
    publisher = Publisher(spec_of(MIXED), WireDtype.FP32, 1)
    v0 = publisher.snapshot(drawn(publisher.spec, 0), 0)
    same = publisher.encode(v0, dataclasses.replace(v0, version=1))
    assert WeightsHeader.unpack(same[0]).codec is PayloadEncoding.UNCHANGED and len(same[1]) == TRAILER_BYTES
    wide = Publisher(spec_of((TensorSpec("half", (200, 200), "float16"),)), WireDtype.FP32, 1)
    old = drawn(wide.spec, 0)
    new = moved(old, "small", 1)
    _, payload = wide.encode(wide.snapshot(old, 0), wide.snapshot(new, 1))
    assert len(payload) < 0.7 * wide.spec.nbytes


def test_a_policy_of_float32_alone_pays_nothing() -> None:
    spec = spec_of((TensorSpec("w", (30, 10)),))
    publisher = Publisher(spec, WireDtype.FP32, 1)
    new = publisher.snapshot(drawn(spec, 0), 0)
    header, payload = publisher.encode(None, new)
    assert (header, bytes(payload)) == tuple(map(bytes, encode_update(POLICY, None, new)))
    assert new.digest == xxhash.xxh3_64_intdigest(new.flat.tobytes()) and not WeightsHeader.unpack(header).others


def test_the_layout_is_the_documented_one() -> None:
    spec = spec_of((TensorSpec("flag", (1,), "uint8"), TensorSpec("w", (2,)), TensorSpec("ids", (1,), "int64")))
    tensors = {"flag": np.array([7], np.uint8), "w": np.array([1, -2], np.float32), "ids": np.array([258])}
    publisher = Publisher(spec, WireDtype.FP32, 0)
    new = publisher.snapshot(tensors, 3)
    header, payload = publisher.encode(None, new)
    assert payload == bytes.fromhex("0000803f 000000c0 0201000000000000 07000000 0c000000 05")
    assert header[4:8] == bytes([3, 2, PayloadEncoding.SNAPSHOT, WireDtype.FP32])
    assert struct.unpack_from("<2I", header, 44) == (2, len(payload))
    assert new.digest == xxhash.xxh3_64_intdigest(payload[:-TRAILER_BYTES])


@pytest.mark.parametrize("dtype", [WireDtype.BF16, WireDtype.GRID])
def test_exact_elements_follow_the_other_tensors(dtype: WireDtype) -> None:
    tensors = (TensorSpec("mean", (1,), exact=True), TensorSpec("w", (1,)), TensorSpec("n", (1,), "uint8"))
    spec = spec_of((*tensors, TensorSpec("epsilon", (1,), exact=True)))
    numbers = {"mean": [1000.1], "w": [-2.0], "epsilon": [0.05]}
    given = {name: np.array(value, np.float32) for name, value in numbers.items()} | {"n": np.array([7], np.uint8)}
    header, payload = Publisher(spec, dtype, 0).encode(None, Publisher(spec, dtype, 0).snapshot(given, 3))
    weight = "00c0" if dtype is WireDtype.BF16 else "000000c0"
    assert payload == bytes.fromhex(f"{weight} 07000000 66067a44 cdcc4c3d 0c000000 05")
    assert WeightsHeader.unpack(header).others and struct.unpack_from("<I", header, 44) == (4 - 1,)


def test_an_exact_element_that_is_not_finite_is_refused() -> None:
    publisher = Publisher(spec_of(EXACT), WireDtype.BF16, 0)
    sound = publisher.snapshot(drawn(publisher.spec, 0), 1)
    flat = sound.flat.copy()
    publisher.spec.views(flat, sound.others)["epsilon"][0] = np.nan
    header, payload = publisher.encode(None, sound)
    body = bytes(payload)[: -TRAILER_BYTES - 4] + flat[-1:].tobytes() + bytes(payload)[-TRAILER_BYTES:]
    assert reason_of(publisher, resealed(header, body, state_hash=digest(flat, sound.others)), None) == "finite"


def resealed(header: bytes, payload: bytes, **changes: Any) -> tuple[bytes, bytes]:
    """Return the header for another payload, or with other fields, as a malicious sender would."""
    fields = {"payload_bytes": len(payload), "payload_hash": xxhash.xxh3_64_intdigest(payload), **changes}
    return dataclasses.replace(WeightsHeader.unpack(header), **fields).pack(), payload


def reason_of(publisher: Publisher, update: Any, held: PolicySnapshot | None) -> str:
    with pytest.raises(WeightsError) as caught:
        publisher.apply(update, held)
    return caught.value.reason


@pytest.fixture
def publisher() -> Publisher:
    return Publisher(spec_of(MIXED), WireDtype.FP32, 1)


@pytest.mark.parametrize("whole", [False, True])
def test_lies_about_the_other_tensors_are_refused(publisher: Publisher, whole: bool) -> None:
    now = drawn(publisher.spec, 0)
    v0, v1 = publisher.snapshot(now, 0), publisher.snapshot(moved(now, "all", 1), 1)
    header, payload = publisher.encode(None if whole else v0, v1)
    payload = bytes(payload)
    count, codec = struct.unpack("<IB", payload[-TRAILER_BYTES:])
    body = payload[:-TRAILER_BYTES]

    def lying(count: int, codec: int, body: bytes = body, **changes: Any) -> str:
        return reason_of(publisher, resealed(header, body + struct.pack("<IB", count, codec), **changes), v0)

    assert publisher.apply(resealed(header, payload), v0).digest == v1.digest
    for wrong in (0, count - 1, count + 1, len(body), len(body) + 1, 2**32 - 1):
        assert lying(wrong, codec) in ("payload", "digest")
    for other in (7, 255, *[c for c in PayloadEncoding if c.is_diff == whole]):
        assert lying(count, other) == "payload"
    assert lying(count, codec, body + bytes(len(v1.others) + 4 * v1.flat.size)) == "payload"
    assert lying(count, codec, state_hash=v1.digest ^ 1) == "digest"
    assert reason_of(publisher, resealed(header, payload[: TRAILER_BYTES - 1]), v0) == "payload"
    assert reason_of(publisher, resealed(header, b""), v0) == "payload"
    plain = Publisher(spec_of((TensorSpec("w", (307,)),)), WireDtype.FP32, 1)
    assert reason_of(plain, (header, payload), dataclasses.replace(v0, others=b"")) == "size"
    if not whole:
        assert reason_of(publisher, resealed(header, b"", others=False), v0) == "size"
        assert reason_of(publisher, (header, payload), dataclasses.replace(v0, others=v0.others[:-4])) == "size"
        assert reason_of(publisher, (header, payload), dataclasses.replace(v0, others=v0.others[::-1])) == "digest"


def test_a_giant_is_refused_before_it_is_read(publisher: Publisher) -> None:
    """The payload has more bytes than the policy can have, whatever size they expand to."""
    zeros = bytes(1 << 20)
    header, _ = publisher.encode(None, publisher.snapshot(drawn(publisher.spec, 0), 0))
    update = resealed(header, zeros + struct.pack("<IB", len(zeros) - 4 * publisher.spec.size, PayloadEncoding.SNAPSHOT_PLANES))
    assert reason_of(publisher, update, None) == "payload"


@pytest.mark.parametrize("whole", [False, True])
def test_damage_never_gets_through(publisher: Publisher, whole: bool) -> None:
    now = drawn(publisher.spec, 3)
    v0, v1 = publisher.snapshot(now, 0), publisher.snapshot(moved(now, "small", 1), 1)
    header, payload = publisher.encode(None if whole else v0, v1)
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(payload)
        broken[int(rng.integers(len(broken)))] ^= 1 << int(rng.integers(8))
        assert reason_of(publisher, (header, bytes(broken)), v0) == "payload"
        try:
            got = publisher.apply(resealed(header, bytes(broken)), v0)
        except WeightsError:
            continue
        assert (got.flat.tobytes(), got.others) == (v1.flat.tobytes(), v1.others)  # another encoding of the same state


@pytest.mark.parametrize("case", ["infinite half", "no number", "no boolean"])
def test_contents_are_checked_on_both_sides(publisher: Publisher, case: str) -> None:
    sound = publisher.snapshot(drawn(publisher.spec, 0), 1)
    tensors = publisher.spec.views(sound.flat, bytearray(sound.others))  # type: ignore[arg-type]
    tensors["half"][3, 4] = np.inf if case == "infinite half" else 0.0
    tensors["count"][...] = np.nan if case == "no number" else 0.0
    tensors["used"].view(np.uint8)[1, 1] = 2 if case == "no boolean" else 1
    bad = publisher.snapshot(tensors, 1)
    reason = "payload" if case == "no boolean" else "finite"
    with pytest.raises(WeightsError) as caught:
        publisher.encode(None, bad)
    assert caught.value.reason == reason
    payload = bad.flat.tobytes() + bad.others + struct.pack("<IB", len(bad.others), PayloadEncoding.SNAPSHOT)
    header, _ = publisher.encode(None, sound)
    update = resealed(header, payload, codec=PayloadEncoding.SNAPSHOT, state_hash=bad.digest)
    assert reason_of(publisher, update, None) == reason


def test_the_padding_is_zero_and_the_size_that_of_the_policy(publisher: Publisher) -> None:
    sound = publisher.snapshot(drawn(publisher.spec, 0), 1)
    assert len(sound.others) > sum(tensor.nbytes for tensor in publisher.spec.others)
    for others, reason in ((sound.others[:-1] + b"\1", "payload"), (sound.others + bytes(4), "size"), (b"", "size")):
        with pytest.raises(WeightsError) as caught:
            publisher.encode(None, dataclasses.replace(sound, others=others))
        assert caught.value.reason == reason
