"""Updates: a header and a payload that lead from one verified snapshot to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from rl4sys_zmq.errors import ProtocolError, WeightsError
from rl4sys_zmq.values import FlatWeights, PolicySnapshot
from rl4sys_zmq.weights import planes
from rl4sys_zmq.weights.bits import BitReader, bad
from rl4sys_zmq.weights.coder import Codec, DecodedState, Diff, Payload, decode_diff, encode_diff
from rl4sys_zmq.weights.digest import digest
from rl4sys_zmq.weights.forms import BF16, FP32, IntegerForm, WireDtype, form_of
from rl4sys_zmq.weights.header import WeightsHeader
from rl4sys_zmq.weights.rounding import LEAST_EXPONENT, Steps, steps_of

__all__ = ["EncodingOptions", "apply_update", "encode_update"]

SNAPSHOT_GAIN = {0: 0.0, 1: 0.6, 2: 0.9}
"""By level: a whole state is compressed only below this share of its size, for expanding it costs every actor time."""
SNAPSHOT_SAMPLE = 1024
"""About how many elements say whether it is worth trying."""

_TABLED = (Codec.SPARSE, Codec.PLANES, Codec.GROUPS)
"""What is written in multiples of a grid's steps, and so has the table of the steps before it."""


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """How updates are written.

    Attributes:
        dtype: what the elements are on the wire.
        level: 0 writes whole states, not coded at all; 1 is fast; 2 takes up to ten times as long, for fewer bytes.
        sizes: the elements of each tensor; only a grid needs them.
    """

    dtype: WireDtype = WireDtype.FP32
    level: int = 1
    sizes: tuple[int, ...] = ()


def encode_update(
    policy_id: bytes,
    base: PolicySnapshot | None,
    new: PolicySnapshot,
    writing: EncodingOptions | None = None,
    *,
    before: PolicySnapshot | None = None,
) -> tuple[bytes, Payload]:
    """The header and the payload that bring an actor from `base` to `new`.

    A whole snapshot when `base` is None or of another generation (no diff crosses generations), and at level 0.

    Args:
        policy_id: of the policy.
        base: what the actor holds.
        new: what it shall hold, in values of the wire dtype.
        writing: how to write it; None: float32 at level 1.
        before: the version before the base, if the actor holds that too: a diff may then need it.

    Raises:
        WeightsError: `new` is not newer than `base` (``gap``), of another size than `base` (``size``), not of the wire dtype
            (``dtype``), or not finite (``finite``).
        ProtocolError: a number does not fit the header.
    """
    _require_finite(new.flat)
    writing = writing or EncodingOptions()
    if base is None or base.generation != new.generation or not writing.level:
        diff, base_version = Diff(*_encode_snapshot(new.flat, writing)), new.version
    else:
        if new.version <= base.version:
            raise WeightsError(f"version {new.version} does not follow {base.version}", reason="gap")
        if before is not None and not _precedes(before, base.generation, base.version):
            before = None
        diff, base_version = _encode_diff(base.flat, new.flat, writing, before), base.version
    header = WeightsHeader(
        policy_id=policy_id,
        generation=new.generation,
        base_version=base_version,
        new_version=new.version,
        codec=diff.codec,
        elements=new.flat.size,
        payload_bytes=len(diff.payload),
        payload_hash=xxhash.xxh3_64_intdigest(diff.payload),
        state_hash=new.digest,
        wire_dtype=writing.dtype,
        predicted=diff.predicted,
    )
    return header.pack(), diff.payload


def apply_update(
    header: bytes | memoryview | WeightsHeader,
    payload: Payload,
    held: PolicySnapshot | None,
    sizes: Sequence[int],
    *,
    before: PolicySnapshot | None = None,
) -> PolicySnapshot:
    """The snapshot that an update leads to from the one that is `held`, verified whole.

    It lies in a fresh buffer, or in the payload's own, which nobody may write to again.
    Which policy it is for, and whether a snapshot is older than what is held, is for the caller to compare.

    Args:
        header: the 72 bytes, or what `WeightsHeader.unpack` made of them.
        payload: the bytes that followed.
        held: what the actor has, which is finite; None before the first snapshot.
        sizes: the elements of each tensor of the policy.
        before: what the actor had before `held`, if it is still there.

    Raises:
        WeightsError: nothing was applied. Its `reason` is ``size`` (another policy's size), ``payload`` (header or payload are
            damaged or malformed), ``gap`` (the diff is not from what is held, or needs the version before that too: ask for what
            is missing), ``digest`` (the result is not the learner's state: ask for a snapshot), or ``finite`` (the learner's
            state has infinities or NaN).
    """
    head = _unpacked(header)
    size = sum(sizes)
    if head.elements != size:
        raise WeightsError(f"{head.elements} elements for a policy of {size}", reason="size")
    _verify_payload(head, payload)
    if head.codec.is_diff:
        if held is None or (held.generation, held.version) != (head.generation, head.base_version):
            have = "nothing" if held is None else f"version {held.version} of generation {held.generation}"
            raise WeightsError(
                f"a diff from version {head.base_version} of generation {head.generation}, and {have} is held", reason="gap"
            )
        if head.predicted and not (before is not None and _precedes(before, head.generation, head.base_version)):
            raise WeightsError(f"a diff that needs version {head.base_version - 1}, which is not held", reason="gap")
        used = (held, before) if head.predicted and before is not None else (held,)
        if any(one.flat.size != size for one in used):
            raise WeightsError(f"{[one.flat.size for one in used]} elements are held for a policy of {size}", reason="size")
        decoded = _decode_diff(head, payload, held.flat, before.flat if head.predicted and before is not None else None, sizes)
        flat, written = decoded.flat, decoded.written
    else:
        flat = written = _decode_snapshot(head.codec, payload, size, head.wire_dtype)
    if digest(flat) != head.state_hash:
        raise WeightsError(f"version {head.new_version} does not verify: its digest is not the learner's", reason="digest")
    _require_finite(written)
    return PolicySnapshot(head.generation, head.new_version, head.state_hash, flat)


def _precedes(before: PolicySnapshot, generation: int, version: int) -> bool:
    return (before.generation, before.version) == (generation, version - 1)


def _encode_diff(base: FlatWeights, new: FlatWeights, writing: EncodingOptions, before: PolicySnapshot | None) -> Diff:
    steps: Steps = ()
    table = b""
    if writing.dtype is WireDtype.GRID:
        steps = steps_of(new, writing.sizes)
        if sum(writing.sizes) != new.size or any(step < LEAST_EXPONENT for step in steps):
            raise WeightsError("a state that is on no grid of these tensors", reason="dtype")
        table = np.array(steps, dtype=np.int8).tobytes()
    form = form_of(writing.dtype, steps, writing.sizes)
    flat = before.flat if before is not None else None
    return encode_diff(base, new, form=form, level=writing.level, before=flat, prefix=table)


def _decode_diff(
    head: WeightsHeader, payload: Payload, base: FlatWeights, before: FlatWeights | None, sizes: Sequence[int]
) -> DecodedState:
    steps: Steps = ()
    if head.wire_dtype is WireDtype.GRID and head.codec in _TABLED:
        steps = tuple(np.frombuffer(BitReader(payload).take(len(sizes)), dtype=np.int8).tolist())
        payload = memoryview(payload)[len(sizes) :]
    form = form_of(head.wire_dtype, steps or (0,) * len(sizes), sizes)
    return decode_diff(head.codec, payload, base, form=form, before=before)


def _snapshot_form(dtype: WireDtype) -> IntegerForm:
    return BF16 if dtype is WireDtype.BF16 else FP32


def _encode_snapshot(flat: FlatWeights, writing: EncodingOptions) -> tuple[Codec, Payload]:
    """The whole state; compressed, where that gains enough, in the form of its bits, which needs no steps."""
    dtype, most = writing.dtype, SNAPSHOT_GAIN[writing.level]
    every = 1 + flat.size // SNAPSHOT_SAMPLE
    sample = flat[::every]
    if most and len(_planes_of(sample, dtype)) <= most * dtype.itemsize * sample.size:
        packed = _planes_of(flat, dtype)
        if len(packed) <= most * dtype.itemsize * flat.size:
            return Codec.SNAPSHOT_PLANES, packed
    if dtype is WireDtype.BF16:
        return Codec.SNAPSHOT, (flat.view(np.uint32) >> np.uint32(16)).astype("<u2").view(np.uint8).data
    return Codec.SNAPSHOT, flat.astype("<f4", copy=False).view(np.uint8).data


def _planes_of(flat: FlatWeights, dtype: WireDtype) -> bytes:
    form = _snapshot_form(dtype)
    words: Iterator[planes.Words] = (
        form.integers(flat[piece]).astype(form.word, copy=False) for piece in planes.pieces(flat.size)
    )
    return b"".join(planes.pack(words, flat.size, form.word))


def _decode_snapshot(codec: Codec, payload: Payload, size: int, dtype: WireDtype) -> FlatWeights:
    if codec == Codec.SNAPSHOT_PLANES:
        form, reader = _snapshot_form(dtype), BitReader(payload)
        parts = planes.unpack(reader, size, form.word)
        reader.end()
        flat = np.empty(size, dtype=np.float32)
        for piece, words in parts:
            flat[piece] = form.flat(words)
        return flat
    if len(payload) != dtype.itemsize * size:
        raise bad(f"a snapshot of {len(payload)} bytes for {size} elements")
    if dtype is WireDtype.BF16:
        return (np.frombuffer(payload, dtype="<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.require(np.frombuffer(payload, dtype="<f4"), np.float32, "A")


def _unpacked(header: bytes | memoryview | WeightsHeader) -> WeightsHeader:
    if isinstance(header, WeightsHeader):
        return header
    try:
        return WeightsHeader.unpack(header)
    except ProtocolError as exc:
        raise WeightsError(f"not a weights header: {exc}", reason="payload") from exc


def _verify_payload(head: WeightsHeader, payload: Payload) -> None:
    if head.chunks != 1:
        raise WeightsError(f"an update in {head.chunks} chunks; this side reads whole ones", reason="payload")
    if len(payload) != head.payload_bytes:
        raise WeightsError(f"a payload of {len(payload)} bytes, not {head.payload_bytes}", reason="payload")
    if xxhash.xxh3_64_intdigest(payload) != head.payload_hash:
        raise WeightsError("the payload is not the one that was sent", reason="payload")


def _require_finite(flat: FlatWeights) -> None:
    if not np.isfinite(flat).all():
        raise WeightsError("the weights are not finite", reason="finite")
