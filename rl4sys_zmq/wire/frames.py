"""The frames of every message. The first has a prefix of 48 bytes and a header in msgpack; the others are the body.

The numbers of the prefix are unsigned and little-endian:

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

Numpy arrays in a header are encoded as msgpack-numpy does. The decoder of msgpack-numpy is never called, because it unpickles
object arrays and builds dtypes from the sender's bytes. The decoder here accepts an array only as a map with exactly the keys
``nd, type, kind, shape, data``, and a scalar with exactly ``nd, type, data``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import msgpack
import msgpack_numpy
import numpy as np
import xxhash

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import MAX_DEPTH, MAX_ITEMS
from rl4sys_zmq.wire.messages import Frame

MAGIC = b"R4SZ"
MAJOR, MINOR = 1, 0
PREFIX_BYTES, KIND_AT = 48, 6
MAX_BODY_FRAMES = 255
WRAPPERS = frozenset({33, 49, 55})
"""The kinds of `DeliverSegments`, `PolicyPublished` and `QuarantinedSegment`. Their bodies have checksums of their own, so that
the one in the prefix covers only bytes 0-39 and the header.
"""

_FIELDS = struct.Struct("<4s4B2I2Q2I")
_CHECKSUM = struct.Struct("<Q")

MAX_HEADER_BYTES = 1 << 20
MAX_STRING = 16_384
MAX_ELEMENTS = 1 << 40


class HeaderLimits(NamedTuple):
    """The limits on a msgpack header.

    Attributes:
        nbytes: Largest size, in bytes.
        items: Largest number of entries in a list or map.
    """

    nbytes: int
    items: int


HEADER = HeaderLimits(MAX_HEADER_BYTES, MAX_ITEMS)

_ARRAY_KEYS = {b"nd", b"type", b"kind", b"shape", b"data"}
_SCALAR_KEYS = {b"nd", b"type", b"data"}


def pack_frames(
    kind: int,
    header: bytes,
    body: Sequence[Frame] = (),
    seq: int = 0,
    count: int = 0,
    digests: Sequence[int | None] = (),
    flags: int = 0,
    minor: int = MINOR,
) -> list[Frame]:
    """Return the frames of a message with an encoded header. `digests` has the xxh3-64 of each body frame, None if unknown."""
    if len(body) > MAX_BODY_FRAMES:
        raise ProtocolError(RefusalReason.FRAMES, f"{len(body)} body frames; the limit is {MAX_BODY_FRAMES}")
    size = sum([f.nbytes if isinstance(f, memoryview) else len(f) for f in body]) if body else 0
    try:
        fields = _FIELDS.pack(MAGIC, MAJOR, minor, kind, len(body), flags, len(header), size, seq, count, 0)
    except struct.error as exc:
        raise ProtocolError(RefusalReason.RANGE, f"a field of the prefix is out of range: {exc}") from exc
    digest = checksum(fields + bytes(8) + header, body, digests) if body else xxhash.xxh3_64_intdigest(fields + header)
    return [fields + _CHECKSUM.pack(digest) + header, *body]


def read_prefix(frames: Sequence[Frame], *, verify: bool = True) -> tuple[int, int, int, int]:
    """Check the prefix of a message, and with `verify` its checksum. Return the prefix's fields kind, seq, count and minor."""
    head = frames[0]
    if len(head) < PREFIX_BYTES:
        raise ProtocolError(RefusalReason.MAGIC, f"a first frame of {len(head)} bytes is shorter than the prefix")
    magic, major, minor, kind, count_frames, flags, header, body, seq, count, reserved = _FIELDS.unpack_from(head)
    if magic != MAGIC:
        raise ProtocolError(RefusalReason.MAGIC, f"the first bytes are {magic!r}, not {MAGIC!r}")
    if major != MAJOR:
        raise ProtocolError(RefusalReason.VERSION, f"protocol {major}.{minor}; this side speaks {MAJOR}.{MINOR}")
    if flags & 0xFFFF:
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
    return kind, seq, count, minor


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


def pack_header(value: object, limits: HeaderLimits = HEADER) -> bytes:
    """Return a header as msgpack bytes: None, booleans, numbers, strings, bytes, arrays, and nested lists and maps of these."""
    try:
        packed: bytes = msgpack.packb(value, default=_encode, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise ProtocolError(RefusalReason.MALFORMED, f"the value cannot travel: {exc}") from exc
    if len(packed) > limits.nbytes:
        raise ProtocolError(RefusalReason.TOO_LARGE, f"the header has {len(packed)} bytes; the limit is {limits.nbytes}")
    return packed


def unpack_header(data: bytes | memoryview, limits: HeaderLimits = HEADER) -> Any:
    """Return the header that `pack_header` encoded."""
    return _decode(unpack_plain(data, _pairs, limits), 0)


def unpack_plain(
    data: bytes | memoryview, pairs: Callable[[list[tuple[Any, Any]]], Any] | None = None, limits: HeaderLimits = HEADER
) -> Any:
    """Decode one msgpack value within `limits`. A map that stands for an array stays a map.

    If `pairs` is given, it makes each map from the list of the map's (key, value) pairs.
    """
    if len(data) > limits.nbytes:
        raise ProtocolError(RefusalReason.TOO_LARGE, f"the header has {len(data)} bytes; the limit is {limits.nbytes}")
    items = min(limits.items, len(data))  # else a short message could cause the allocation of long lists
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_STRING,
            max_bin_len=len(data),
            max_array_len=items,
            max_map_len=items,
            max_ext_len=0,
            object_pairs_hook=pairs,
        )
    except ProtocolError:
        raise
    except Exception as exc:  # msgpack raises ValueError, StackError, ExtraData, UnicodeDecodeError, TypeError
        raise ProtocolError(RefusalReason.MALFORMED, f"not a msgpack value: {type(exc).__name__}") from exc


def elements(shape: object) -> int:
    """Return the number of elements of an array with this shape. Raise ProtocolError if the shape is invalid or too large."""
    if type(shape) is list and len(shape) == 1 and type(shape[0]) is int and 0 <= shape[0] <= MAX_ELEMENTS:
        return shape[0]
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise ProtocolError(RefusalReason.SHAPE, f"an array has the invalid shape {shape!r:.60}")
    count = prod(shape)
    if count > MAX_ELEMENTS or (count == 0 and prod(max(n, 1) for n in shape) > MAX_ELEMENTS):
        raise ProtocolError(RefusalReason.SHAPE, f"an array of shape {shape!r:.60} has more than {MAX_ELEMENTS} elements")
    return count


def _encode(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.str not in DTYPES:
            raise ProtocolError(RefusalReason.DTYPE, f"an array of dtype {value.dtype} cannot travel")
        return msgpack_numpy.encode(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ProtocolError(RefusalReason.MALFORMED, "a map has the same key twice")
    return out


def _decode(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ProtocolError(RefusalReason.MALFORMED, f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if kind is list:
        return [_decode(v, depth + 1) for v in value]
    if kind is dict:
        if b"nd" in value:
            return _array(value)
        for key in value:
            if type(key) is not str:
                raise ProtocolError(RefusalReason.MALFORMED, "a map key is not a string")
        return {k: _decode(v, depth + 1) for k, v in value.items()}
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    raise ProtocolError(RefusalReason.MALFORMED, f"a value has the unsupported type {kind.__name__}")


def _array(form: dict[Any, Any]) -> Any:
    """Return the array or scalar that a map of msgpack-numpy describes. Only the dtypes of this library are accepted."""
    dtype, data = form.get(b"type"), form.get(b"data")
    if type(dtype) is not str or dtype not in DTYPES:
        raise ProtocolError(RefusalReason.DTYPE, f"an array has the unsupported dtype {dtype!r:.60}")
    itemsize = np.dtype(dtype).itemsize
    if form[b"nd"] is False and set(form) == _SCALAR_KEYS:
        if type(data) is not bytes or len(data) != itemsize:
            raise ProtocolError(RefusalReason.SHAPE, "the bytes of a scalar do not fit its dtype")
        return np.frombuffer(data, dtype=dtype)[0]
    if form[b"nd"] is not True or set(form) != _ARRAY_KEYS or form[b"kind"] != b"":
        raise ProtocolError(RefusalReason.MALFORMED, "a map with the key `nd` is not a valid array")
    shape = form[b"shape"]
    if type(data) is not bytes or elements(shape) * itemsize != len(data):
        raise ProtocolError(RefusalReason.SHAPE, f"the bytes of an array do not fit its shape {shape!r:.60}")
    return np.frombuffer(data, dtype=dtype).reshape(shape)
