"""Weight updates: encoding of a snapshot as header and payload, and application of a received update.

An update contains a whole snapshot, or a diff to the snapshot that the receiver holds. It is verified by checksums over all
weights of a version: the digest, and with a secret key the tag. A learner that works with relays gives each actor a secret key
(`Welcome.tag_key`) over the actor's own connection, and publishes the tag of each version with the weights. A relay does not get
the key. So it cannot change weights, or invent a version, without the actor noticing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import xxhash

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.values import FlatWeights, PolicySnapshot, TensorSpec
from rl4sys_zmq.values.policy import other_tensors
from rl4sys_zmq.weights.bits import BitReader
from rl4sys_zmq.weights.coder import (
    DecodedState,
    Payload,
    PayloadEncoding,
    decode_diff,
    decode_snapshot,
    encode_diff,
    encode_snapshot,
)
from rl4sys_zmq.weights.forms import LEAST_EXPONENT, Steps, WireDtype, form_of, steps_of
from rl4sys_zmq.weights.header import WeightsHeader
from rl4sys_zmq.weights.others import (
    TRAILER_BYTES,
    append_others,
    decode_others,
    division_of,
    split_payload,
    verify_others,
)

TAG_BYTES = 16
TAG_KEY_BYTES = 32
_FIELDS = struct.Struct("<8s2Q")


def digest(flat: FlatWeights, others: bytes = b"") -> int:
    """Return the 64-bit checksum xxh3-64 of the weights of a policy version. It takes 5 us for 70,000 elements.

    The checksum detects accidental changes, not attacks.

    Args:
        flat: The float32 weights, contiguous, little-endian, ``[n]``.
        others: The bytes of the tensors that are not float32 (`PolicySnapshot.others`).
    """
    if not others:
        return xxhash.xxh3_64_intdigest(flat.data)
    hasher = xxhash.xxh3_64(flat.data)
    hasher.update(others)
    return hasher.intdigest()


def tag_of(key: bytes, policy_id: bytes, snapshot: PolicySnapshot) -> bytes:
    """Return the tag (16 bytes) of a version: keyed BLAKE2b over the policy's id, generation, version and all weights.

    It takes about 1 ms per MB of weights, during which other Python threads run.

    Args:
        key: The secret key, 32 bytes.
        policy_id: The 8 bytes that identify the policy.
        snapshot: The weights of the version.
    """
    import hashlib  # late: actors without relays do not need it

    hasher = hashlib.blake2b(key=key, digest_size=TAG_BYTES, person=b"rl4sys-weights")
    hasher.update(_FIELDS.pack(policy_id, snapshot.generation, snapshot.version))
    hasher.update(snapshot.flat.data)
    hasher.update(snapshot.others)
    return hasher.digest()


def is_tag_of(tag: bytes, key: bytes, policy_id: bytes, snapshot: PolicySnapshot) -> bool:
    """Return True if `tag` is the tag of this version under the key of 32 bytes. An empty tag is never valid."""
    import hmac

    return hmac.compare_digest(tag, tag_of(key, policy_id, snapshot))


_WITH_STEP_TABLE = (PayloadEncoding.SPARSE, PayloadEncoding.PLANES)
"""The forms whose payload begins with a table of steps if the wire dtype is ``grid``."""


@immutable
class EncodingOptions:
    """The options for encoding weight updates: number format, compression level, and the policy's tensors.

    Attributes:
        dtype: Number format in which the float32 elements are sent.
        level: Compression level. 0: every update is a whole, uncompressed snapshot. 1: updates are diffs where the receiver
            has the base, and snapshots are compressed if that saves much.
        tensors: The tensors (`PolicySpec.tensors`). Exact tensors and those that are not float32 are sent without loss. If all
            are float32 and none is exact, only the wire dtype ``grid`` needs them.
    """

    dtype: WireDtype = WireDtype.FP32
    level: int = 1
    tensors: tuple[TensorSpec, ...] = ()


def encode_update(
    policy_id: bytes,
    base: PolicySnapshot | None,
    new: PolicySnapshot,
    writing: EncodingOptions | None = None,
    *,
    before: PolicySnapshot | None = None,
) -> tuple[bytes, Payload]:
    """Return the header and the payload of a weight update, with which an actor gets from the snapshot `base` to `new`.

    The update is a diff to `base`. It is a whole snapshot if `base` is None or of another generation, or at level 0.

    Args:
        policy_id: 8 bytes that identify the policy.
        base: The snapshot that the actor holds. None: the actor has none.
        new: The snapshot to send. Its values are already rounded to the wire dtype (`round_to`).
        writing: The options. None: the defaults of `EncodingOptions`.
        before: The snapshot before `base`, if the actor holds it too. The diff can then use the last change as a prediction.

    Raises:
        WeightsError: If `new` is not newer than `base` (``gap``), has another size than `base` or than ``writing.tensors``
            (``size``), has values outside the wire dtype (``dtype``), or is not finite (``finite``).
        ProtocolError: If a number does not fit the header.
    """
    _require_finite(new.flat)
    writing = writing or EncodingOptions()
    verify_others(other_tensors(writing.tensors), new.others)
    division = division_of(writing.dtype, writing.tensors)
    (flat, words), sizes = division.parts(new), division.sizes
    held_words, predicted, base_version = None, False, new.version
    if base is None or base.generation != new.generation or not writing.level:
        codec, payload = encode_snapshot(flat, writing.dtype, compress=bool(writing.level))
    else:
        if new.version <= base.version:
            raise WeightsError(f"version {new.version} does not follow {base.version}", reason="gap")
        if before is not None and not _precedes(before, base.generation, base.version):
            before = None
        held, held_words = division.parts(base)
        last = division.rounded(before.flat) if before is not None else None
        steps = steps_of(flat, sizes) if writing.dtype is WireDtype.GRID else ()
        if writing.dtype is WireDtype.GRID and (sum(sizes) != flat.size or any(step < LEAST_EXPONENT for step in steps)):
            raise WeightsError("the state is not on a grid of these tensors", reason="dtype")
        form, table = form_of(writing.dtype, steps, sizes), np.array(steps, dtype=np.int8).tobytes()
        diff, base_version = encode_diff(held, flat, form=form, before=last, prefix=table), base.version
        codec, payload, predicted = diff.codec, diff.payload, diff.predicted
    if words:
        payload = append_others(payload, held_words, words, compress=bool(writing.level))
    header = WeightsHeader(
        policy_id=policy_id,
        generation=new.generation,
        base_version=base_version,
        new_version=new.version,
        codec=codec,
        elements=new.flat.size,
        payload_bytes=len(payload),
        payload_hash=xxhash.xxh3_64_intdigest(payload),
        state_hash=new.digest,
        wire_dtype=writing.dtype,
        predicted=predicted,
        others=bool(words),
    )
    return header.pack(), payload


def apply_update(
    head: WeightsHeader,
    payload: Payload,
    held: PolicySnapshot | None,
    tensors: Sequence[TensorSpec],
    *,
    before: PolicySnapshot | None = None,
) -> PolicySnapshot:
    """Apply a weight update. Return the new snapshot, after a check of its digest.

    The weights of the result are in a new buffer, or in the buffer of the payload, which must not be changed afterwards. The
    caller checks that the update is for this policy, and that a whole snapshot is not older than `held`.

    Args:
        head: The header.
        payload: The bytes after the header.
        held: The snapshot that the actor holds, with finite weights; None if it has none so far.
        tensors: The tensors of the policy (`PolicySpec.tensors`).
        before: The snapshot that the actor held before `held`, if it is still available; else None.

    Raises:
        WeightsError: If the update cannot be applied. Nothing was changed. The `reason` is ``size`` (the update is for a policy
            of another size), ``payload`` (header or payload are damaged or malformed), ``gap`` (the diff does not apply to
            `held`, or needs `before`: fetch the missing updates), ``digest`` (the result differs from the learner's state: fetch
            a snapshot), or ``finite`` (the learner's state has infinities or NaN).
    """
    division = division_of(head.wire_dtype, tuple(tensors))
    size, other_size = division.size, division.other_size
    if head.elements != size:
        raise WeightsError(f"{head.elements} elements for a policy of {size}", reason="size")
    word_size = other_size + 4 * division.kept
    if head.others != bool(word_size):
        have = f"an update {'with' if head.others else 'without'} tensors that are not rounded"
        raise WeightsError(f"{have}; the policy has {len(tensors) - len(division.sizes)}", reason="size")
    _verify_payload(head, payload, size - division.kept, word_size)
    codec, coded = 0, payload
    if word_size:
        payload, coded, codec = split_payload(payload)
    held_words = None
    if head.codec.is_diff:
        if held is None or (held.generation, held.version) != (head.generation, head.base_version):
            have = "nothing" if held is None else f"version {held.version} of generation {held.generation}"
            raise WeightsError(
                f"the diff starts from version {head.base_version} of generation {head.generation}, but {have} is held",
                reason="gap",
            )
        if head.predicted and not (before is not None and _precedes(before, head.generation, head.base_version)):
            raise WeightsError(f"the diff needs version {head.base_version - 1}, which is not held", reason="gap")
        used = (held, before) if head.predicted and before is not None else (held,)
        if any(one.flat.size != size for one in used) or len(held.others) != other_size:
            raise WeightsError(f"{[one.flat.size for one in used]} elements are held for a policy of {size}", reason="size")
        base, held_words = division.parts(held)
        last = division.rounded(before.flat) if head.predicted and before is not None else None
        decoded = _decode_diff(head, payload, base, last, division.sizes)
        flat, written = decoded.flat, decoded.written
    else:
        flat = written = decode_snapshot(head.codec, payload, size - division.kept, head.wire_dtype)
    words = decode_others(codec, coded, word_size, held_words) if word_size else b""
    rest, kept = words[:other_size], np.frombuffer(words[other_size:], "<f4")
    flat = division.joined(flat, kept)
    if digest(flat, rest) != head.state_hash:
        raise WeightsError(f"version {head.new_version} does not verify: its digest differs from the learner's", reason="digest")
    _require_finite(written)
    _require_finite(kept)
    verify_others(other_tensors(tensors), rest)
    return PolicySnapshot(head.generation, head.new_version, head.state_hash, flat, rest)


def _precedes(before: PolicySnapshot, generation: int, version: int) -> bool:
    return (before.generation, before.version) == (generation, version - 1)


def _decode_diff(
    head: WeightsHeader, payload: Payload, base: FlatWeights, before: FlatWeights | None, sizes: Sequence[int]
) -> DecodedState:
    steps: Steps = ()
    if head.wire_dtype is WireDtype.GRID and head.codec in _WITH_STEP_TABLE:
        steps = tuple(np.frombuffer(BitReader(payload).take(len(sizes)), dtype=np.int8).tolist())
        payload = memoryview(payload)[len(sizes) :]
    form = form_of(head.wire_dtype, steps or (0,) * len(sizes), sizes)
    return decode_diff(head.codec, payload, base, form=form, before=before)


def _verify_payload(head: WeightsHeader, payload: Payload, elements: int, word_size: int) -> None:
    if head.chunks != 1:
        raise WeightsError(f"the update has {head.chunks} chunks; this side supports one", reason="payload")
    if head.others and head.payload_bytes > (most := head.wire_dtype.itemsize * elements + word_size + TRAILER_BYTES):
        raise WeightsError(f"the payload has {head.payload_bytes} bytes; the limit for this policy is {most}", reason="payload")
    if len(payload) != head.payload_bytes:
        raise WeightsError(f"the payload has {len(payload)} bytes; expected {head.payload_bytes}", reason="payload")
    if xxhash.xxh3_64_intdigest(payload) != head.payload_hash:
        raise WeightsError("the checksum does not match the received payload", reason="payload")


def _require_finite(flat: FlatWeights) -> None:
    if not np.isfinite(flat).all():
        raise WeightsError("the weights are not finite", reason="finite")
