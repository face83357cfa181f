"""The 48 bytes that every message starts with.

======  ====  =========  ======================================================================
offset  size  field      meaning
======  ====  =========  ======================================================================
0       4     magic      ``R4SZ``
4       1     major      another major is refused: ``version``
5       1     minor      a newer minor may add header keys, which are then ignored
6       1     kind       which message (`rl4sys_zmq.wire.messages`)
7       1     frames     how many frames follow the first
8       4     flags      bits 0-15 must be understood by the receiver, bits 16-31 may be ignored
12      4     header     length of the msgpack header that follows the prefix in the same frame
16      8     body       bytes in the frames that follow, in total
24      8     seq        the first sequence number in the message, or 0
32      4     count      how many segments the message carries, or 0
36      4     reserved   0
40      8     checksum   xxh3-64 of bytes 0-39, the header, and the xxh3-64 of each body frame, in that order
======  ====  =========  ======================================================================

All numbers are unsigned and little-endian. The checksum of a message whose body has its own (`WRAPPERS`) leaves the body out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from rl4sys_zmq.errors import ProtocolError, Refusal

__all__ = [
    "MAGIC",
    "MAJOR",
    "MAX_BODY_FRAMES",
    "MINOR",
    "PREFIX_BYTES",
    "Prefix",
    "checksum",
    "pack_prefix",
    "read_prefix",
    "seal",
]

MAGIC = b"R4SZ"
MAJOR, MINOR = 1, 0
PREFIX_BYTES = 48
MAX_BODY_FRAMES = 255
WRAPPERS = frozenset({33, 49, 55})
"""The kinds of `Deliver`, `Published` and `DeadLetter`."""

_KNOWN_FLAGS = 0x0000
_FIELDS = struct.Struct("<4s4B2I2Q2I")
_CHECKSUM = struct.Struct("<Q")

Frame = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Prefix:
    """The fixed part of a message, as numbers."""

    kind: int
    frames: int
    header_bytes: int
    body_bytes: int
    seq: int = 0
    count: int = 0
    flags: int = 0
    minor: int = MINOR

    def pack(self) -> bytes:
        """The first 40 bytes; the checksum follows.

        Raises:
            ProtocolError: ``frames`` for more body frames than one byte counts, ``range`` for another field out of its place.
        """
        return pack_prefix(
            self.kind, self.frames, self.header_bytes, self.body_bytes, self.seq, self.count, self.flags, self.minor
        )

    @staticmethod
    def unpack(frames: Sequence[Frame], *, verify: bool = True) -> Prefix:
        """Reads and checks the prefix of a whole message: magic, version, flags, lengths and, with `verify`, checksum.

        Raises:
            ProtocolError: with the code of the first rule that is broken.
        """
        return Prefix(*read_prefix(frames, verify=verify))

    def join(self, header: bytes, body: Sequence[Frame], digests: Sequence[int | None] = ()) -> bytes:
        """The whole first frame: prefix, checksum, header. `digests` may say what is known of the body frames already."""
        return seal(self.pack(), header, body, digests)


def pack_prefix(
    kind: int, frames: int, header_bytes: int, body_bytes: int, seq: int = 0, count: int = 0, flags: int = 0, minor: int = MINOR
) -> bytes:
    """What `Prefix.pack` does, for who needs no object."""
    if frames > MAX_BODY_FRAMES:
        raise ProtocolError(Refusal.FRAMES, f"{frames} body frames; the limit is {MAX_BODY_FRAMES}")
    try:
        return _FIELDS.pack(MAGIC, MAJOR, minor, kind, frames, flags, header_bytes, body_bytes, seq, count, 0)
    except struct.error as exc:
        raise ProtocolError(Refusal.RANGE, f"a field of the prefix does not fit its place: {exc}") from exc


def read_prefix(frames: Sequence[Frame], *, verify: bool = True) -> tuple[int, int, int, int, int, int, int, int]:
    """The fields of a `Prefix`, in its order, of a whole message; what `Prefix.unpack` does, for who needs no object.

    Raises:
        ProtocolError: with the code of the first rule that is broken.
    """
    head = frames[0]
    if len(head) < PREFIX_BYTES:
        raise ProtocolError(Refusal.MAGIC, f"a first frame of {len(head)} bytes is shorter than the prefix")
    magic, major, minor, kind, count_frames, flags, header, body, seq, count, reserved = _FIELDS.unpack_from(head)
    if magic != MAGIC:
        raise ProtocolError(Refusal.MAGIC, f"the first bytes are {magic!r}, not {MAGIC!r}")
    if major != MAJOR:
        raise ProtocolError(Refusal.VERSION, f"protocol {major}.{minor}; this side speaks {MAJOR}.{MINOR}")
    if flags & 0xFFFF & ~_KNOWN_FLAGS:
        raise ProtocolError(Refusal.FEATURE, f"flags {flags:#010x} hold a feature that this side does not know")
    if count_frames != len(frames) - 1:
        raise ProtocolError(Refusal.FRAMES, f"{len(frames) - 1} body frames, {count_frames} announced")
    if PREFIX_BYTES + header != len(head) or body != (sum([len(f) for f in frames[1:]]) if count_frames else 0):
        raise ProtocolError(Refusal.MALFORMED, "the lengths in the prefix are not those of the frames")
    (expected,) = _CHECKSUM.unpack_from(head, 40)
    if verify and checksum(head, frames[1:]) != expected:
        raise ProtocolError(Refusal.CHECKSUM, "the bytes are not those that were sent")
    if reserved:
        raise ProtocolError(Refusal.MALFORMED, f"{reserved:#x} where the prefix must be 0")
    return kind, count_frames, header, body, seq, count, flags, minor


def seal(fields: bytes, header: bytes, body: Sequence[Frame], digests: Sequence[int | None] = ()) -> bytes:
    """The whole first frame: the 40 bytes of `Prefix.pack`, the checksum, the header."""
    digest = checksum(fields + bytes(8) + header, body, digests) if body else xxhash.xxh3_64_intdigest(fields + header)
    return fields + _CHECKSUM.pack(digest) + header


def checksum(head: Frame, body: Sequence[Frame], digests: Sequence[int | None] = ()) -> int:
    """xxh3-64 of a message, its own 8 bytes left out.

    Args:
        head: the first frame: prefix and header.
        body: the other frames.
        digests: of these, as far as they are known; None for one that is not.
    """
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
