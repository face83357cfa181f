"""Updates: a header and a payload that lead from one verified snapshot to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from rl4sys_zmq.errors import ProtocolError, WeightsError
from rl4sys_zmq.values import FlatWeights, PolicySnapshot
from rl4sys_zmq.weights.coder import Codec, Payload, decode_diff, encode_diff, merge_diffs
from rl4sys_zmq.weights.digest import digest
from rl4sys_zmq.weights.header import WeightsHeader

__all__ = ["apply_update", "encode_update", "merge_updates"]

SNAPSHOT_GAIN = 0.9
"""A whole state is sent compressed only below this share of its size: expanding it costs every actor time."""


def encode_update(policy_id: bytes, generation: int, base: PolicySnapshot | None, new: PolicySnapshot) -> tuple[bytes, bytes]:
    """The header and the payload that bring an actor from `base` to `new`.

    A whole snapshot when `base` is None or of another generation: no diff crosses generations.

    Raises:
        WeightsError: `new` is of another generation or not newer than `base` (``gap``), of another size than `base`
            (``size``), or not finite (``finite``).
        ProtocolError: a number does not fit the header.
    """
    if new.generation != generation:
        raise WeightsError(f"a snapshot of generation {new.generation} published as {generation}", reason="gap")
    _require_finite(new.flat)
    if base is None or base.generation != generation:
        codec, payload = _encode_snapshot(new.flat)
        base_version = new.version
    else:
        if new.version <= base.version:
            raise WeightsError(f"version {new.version} does not follow {base.version}", reason="gap")
        codec, payload = encode_diff(base.flat, new.flat)
        base_version = base.version
    header = WeightsHeader(
        policy_id=policy_id,
        generation=generation,
        base_version=base_version,
        new_version=new.version,
        codec=codec,
        elements=new.flat.size,
        payload_bytes=len(payload),
        payload_hash=xxhash.xxh3_64_intdigest(payload),
        state_hash=new.digest,
    )
    return header.pack(), payload


def apply_update(
    header: bytes | memoryview | WeightsHeader, payload: Payload, held: PolicySnapshot | None, spec_size: int
) -> PolicySnapshot:
    """The snapshot that an update leads to from the one that is `held`, verified whole, in a fresh buffer.

    Which policy it is for, and whether a snapshot is older than what is held, is for the caller to compare.

    Args:
        header: the 72 bytes, or what `WeightsHeader.unpack` made of them.
        payload: the bytes that followed.
        held: what the actor has; None before the first snapshot.
        spec_size: the number of elements of the policy.

    Raises:
        WeightsError: nothing was applied. Its `reason` is ``size`` (another policy's size), ``payload`` (header or payload are
            damaged or malformed), ``gap`` (the diff is not from what is held: ask for a snapshot), ``digest`` (the result is
            not the learner's state: ask for a snapshot), or ``finite`` (the learner's state has infinities or NaN).
    """
    head = _unpacked(header)
    if head.elements != spec_size:
        raise WeightsError(f"{head.elements} elements for a policy of {spec_size}", reason="size")
    _verify_payload(head, payload)
    if head.codec.is_diff:
        if held is None or (held.generation, held.version) != (head.generation, head.base_version):
            have = "nothing" if held is None else f"version {held.version} of generation {held.generation}"
            raise WeightsError(
                f"a diff from version {head.base_version} of generation {head.generation}, and {have} is held", reason="gap"
            )
        if held.flat.size != spec_size:
            raise WeightsError(f"{held.flat.size} elements are held for a policy of {spec_size}", reason="size")
        flat = decode_diff(head.codec, payload, held.flat)
    else:
        flat = _decode_snapshot(head.codec, payload, spec_size)
    if digest(flat) != head.state_hash:
        raise WeightsError(f"version {head.new_version} does not verify: its digest is not the learner's", reason="digest")
    _require_finite(flat)
    return PolicySnapshot(head.generation, head.new_version, head.state_hash, flat)


def merge_updates(updates: Sequence[tuple[bytes, Payload]]) -> tuple[bytes, bytes]:
    """One diff from the base of the first of consecutive diffs to the new version of the last.

    Raises:
        WeightsError: there is none, one is damaged (``payload``) or not a diff that follows the one before (``gap``).
    """
    heads = [_unpacked(header) for header, _ in updates]
    if not heads:
        raise WeightsError("no updates to merge", reason="gap")
    first, last = heads[0], heads[-1]
    version = first.base_version
    for head, (_, payload) in zip(heads, updates, strict=True):
        same = (head.policy_id, head.generation, head.elements) == (first.policy_id, first.generation, first.elements)
        if not (same and head.codec.is_diff and head.base_version == version):
            raise WeightsError(f"{head.codec.name} from version {head.base_version} does not follow {version}", reason="gap")
        _verify_payload(head, payload)
        version = head.new_version
    codec, merged = merge_diffs([(h.codec, p) for h, (_, p) in zip(heads, updates, strict=True)], first.elements)
    header = WeightsHeader(
        policy_id=first.policy_id,
        generation=first.generation,
        base_version=first.base_version,
        new_version=last.new_version,
        codec=codec,
        elements=first.elements,
        payload_bytes=len(merged),
        payload_hash=xxhash.xxh3_64_intdigest(merged),
        state_hash=last.state_hash,
    )
    return header.pack(), merged


def _encode_snapshot(flat: FlatWeights) -> tuple[Codec, bytes]:
    codec, packed = encode_diff(np.zeros_like(flat), flat)
    if codec == Codec.PLANES_ZSTD and len(packed) <= SNAPSHOT_GAIN * flat.nbytes:
        return Codec.SNAPSHOT_ZSTD, packed
    return Codec.SNAPSHOT, flat.tobytes()


def _decode_snapshot(codec: Codec, payload: Payload, size: int) -> FlatWeights:
    if codec == Codec.SNAPSHOT_ZSTD:
        return decode_diff(Codec.PLANES_ZSTD, payload, np.zeros(size, dtype=np.float32))
    if len(payload) != 4 * size:
        raise WeightsError(f"a snapshot of {len(payload)} bytes for {size} elements", reason="payload")
    return np.frombuffer(payload, dtype=np.float32).copy()


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
