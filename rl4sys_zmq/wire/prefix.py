"""The 48-byte prefix of every message. All numbers are unsigned and little-endian.

======  ====  =========  ======================================================================
offset  size  field      meaning
======  ====  =========  ======================================================================
0       4     magic      ``R4SZ``
4       1     major      a different major is refused: ``version``
5       1     minor      a newer minor can add header keys, which are then ignored
6       1     kind       the message (`rl4sys_zmq.wire.messages`)
7       1     frames     number of body frames
8       4     flags      the receiver must know bits 0-15 and can ignore bits 16-31
12      4     header     length of the msgpack header that follows the prefix in the same frame
16      8     body       total length of the body frames, in bytes
24      8     seq        first sequence number in the message, or 0
32      4     count      number of segments in the message, or 0
36      4     reserved   0
40      8     checksum   xxh3-64 of bytes 0-39, the header, and the xxh3-64 of each body frame, in that order
======  ====  =========  ======================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

from rl4sys_zmq.errors import ProtocolError, RefusalReason

MAGIC = b"R4SZ"
MAJOR, MINOR = 1, 0
PREFIX_BYTES, KIND_AT = 48, 6
MAX_BODY_FRAMES = 255
WRAPPERS = frozenset({33, 49, 55})
"""The kinds of `DeliverSegments`, `PolicyPublished` and `QuarantinedSegment`. Their bodies have checksums of their own, so that
the one in the prefix covers only bytes 0-39 and the header.
"""

_KNOWN_FLAGS = 0x0000
_FIELDS = struct.Struct("<4s4B2I2Q2I")
_CHECKSUM = struct.Struct("<Q")

Frame = bytes | memoryview


def pack_prefix(
    kind: int, frames: int, header_bytes: int, body_bytes: int, seq: int = 0, count: int = 0, flags: int = 0, minor: int = MINOR
) -> bytes:
    """Return the prefix of a message without its checksum, 40 bytes. The module lists the fields."""
    if frames > MAX_BODY_FRAMES:
        raise ProtocolError(RefusalReason.FRAMES, f"{frames} body frames; the limit is {MAX_BODY_FRAMES}")
    try:
        return _FIELDS.pack(MAGIC, MAJOR, minor, kind, frames, flags, header_bytes, body_bytes, seq, count, 0)
    except struct.error as exc:
        raise ProtocolError(RefusalReason.RANGE, f"a field of the prefix is out of range: {exc}") from exc


def read_prefix(frames: Sequence[Frame], *, verify: bool = True) -> tuple[int, int, int, int, int, int, int, int]:
    """Check a prefix. Return kind, frames, header bytes, body bytes, seq, count, flags and minor."""
    head = frames[0]
    if len(head) < PREFIX_BYTES:
        raise ProtocolError(RefusalReason.MAGIC, f"a first frame of {len(head)} bytes is shorter than the prefix")
    magic, major, minor, kind, count_frames, flags, header, body, seq, count, reserved = _FIELDS.unpack_from(head)
    if magic != MAGIC:
        raise ProtocolError(RefusalReason.MAGIC, f"the first bytes are {magic!r}, not {MAGIC!r}")
    if major != MAJOR:
        raise ProtocolError(RefusalReason.VERSION, f"protocol {major}.{minor}; this side speaks {MAJOR}.{MINOR}")
    if flags & 0xFFFF & ~_KNOWN_FLAGS:
        raise ProtocolError(RefusalReason.FEATURE, f"flags {flags:#010x} name a feature that this side does not support")
    if count_frames != len(frames) - 1:
        raise ProtocolError(RefusalReason.FRAMES, f"{len(frames) - 1} body frames; the prefix says {count_frames}")
    if PREFIX_BYTES + header != len(head) or body != (sum([len(f) for f in frames[1:]]) if count_frames else 0):
        raise ProtocolError(RefusalReason.MALFORMED, "the lengths in the prefix differ from the lengths of the frames")
    (expected,) = _CHECKSUM.unpack_from(head, 40)
    if verify and checksum(head, frames[1:]) != expected:
        raise ProtocolError(RefusalReason.CHECKSUM, "the checksum does not match the received bytes")
    if reserved:
        raise ProtocolError(RefusalReason.MALFORMED, f"the reserved field of the prefix is {reserved:#x}; expected 0")
    return kind, count_frames, header, body, seq, count, flags, minor


def seal(fields: bytes, header: bytes, body: Sequence[Frame], digests: Sequence[int | None] = ()) -> bytes:
    """Return the first frame: `fields` of `pack_prefix`, checksum, header. `digests` has known xxh3-64 of body frames."""
    digest = checksum(fields + bytes(8) + header, body, digests) if body else xxhash.xxh3_64_intdigest(fields + header)
    return fields + _CHECKSUM.pack(digest) + header


def checksum(head: Frame, body: Sequence[Frame], digests: Sequence[int | None] = ()) -> int:
    """Return the checksum of a message with the first frame `head`. `digests` has known xxh3-64 of body frames, or None."""
    if not body:
        return xxhash.xxh3_64_intdigest(b"".join((head[:40], head[PREFIX_BYTES:])))
    view = memoryview(head)
    hasher = xxhash.xxh3_64(view[:40])
    hasher.update(view[PREFIX_BYTES:])
    if view[6] in WRAPPERS:
        return hasher.intdigest()
    known = digests or [None] * len(body)
    for frame, digest in zip(body, known, strict=True):
        hasher.update(_CHECKSUM.pack(xxhash.xxh3_64_intdigest(frame) if digest is None else digest))
    return hasher.intdigest()
