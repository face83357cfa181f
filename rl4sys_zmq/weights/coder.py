"""Exact diffs of float32 states: what the bits differ by, as integers, in as few bytes as a fast coder finds.

The 32 bits of a float, read as an integer that grows with the float (negative floats mirrored), make neighbouring floats
neighbouring integers. A diff is the wrapping difference of two such integers per element: exact for every bit pattern (NaN
payloads, -0.0, infinities, denormals), invertible, and composable by addition. Small differences of either sign become small
unsigned numbers (zigzag), whose four byte planes are compressed one by one: the high planes are almost all zero, the
lowest is noise and stays as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

import numpy as np
import zstandard
from numpy.typing import NDArray

from rl4sys_zmq.errors import WeightsError
from rl4sys_zmq.values import FlatWeights

__all__ = ["Codec", "Payload", "decode_diff", "encode_diff", "merge_diffs"]

Payload = bytes | memoryview

_Integers = NDArray[np.int32]

_LEVEL = 1  # level 3 takes longer and finds nothing more in byte planes of diffs
_PLANE_LENGTHS = struct.Struct("<4I")
_MAGNITUDE = np.int32(0x7FFFFFFF)


class Codec(IntEnum):
    """How a payload is written.

    ===============  =================================================================================================
    `UNCHANGED`      a diff of zeros: no payload
    `PLANES_ZSTD`    a diff: four u32 lengths, then the planes of the zigzag integers from the lowest byte to the highest;
                     a plane whose length is the element count is stored, any other is one zstd frame
    `RAW`            a diff: the int32 differences themselves, 4 bytes per element; the fallback when nothing is shorter
    `SNAPSHOT`       a whole state: its float32 elements
    `SNAPSHOT_ZSTD`  a whole state: `PLANES_ZSTD` of its diff from a state of zeros
    ===============  =================================================================================================
    """

    UNCHANGED = 0
    PLANES_ZSTD = 1
    RAW = 2
    SNAPSHOT = 3
    SNAPSHOT_ZSTD = 4

    @property
    def is_diff(self) -> bool:
        """True when a base is needed to decode it."""
        return self < Codec.SNAPSHOT


def encode_diff(base: FlatWeights, new: FlatWeights) -> tuple[Codec, bytes]:
    """The diff that leads from `base` to `new`, both float32 ``[n]``; never longer than ``4 * n`` bytes.

    Raises:
        WeightsError: when the sizes differ (``reason="size"``).
    """
    if base.shape != new.shape:
        raise WeightsError(f"no diff between {base.size} and {new.size} elements", reason="size")
    difference = _ordered(new.view(np.int32))
    difference -= _ordered(base.view(np.int32))
    return _encode(difference)


def decode_diff(codec: Codec, payload: Payload, base: FlatWeights) -> FlatWeights:
    """The state that a diff leads to from `base`, bit for bit, in a fresh buffer, float32 ``[n]``.

    Whatever the payload claims, no more than the state's own size is allocated, a few times.

    Raises:
        WeightsError: when the payload is not a diff of ``n`` elements (``reason="payload"``).
    """
    new = _decode(codec, payload, base.size)
    new += _ordered(base.view(np.int32))
    return _ordered(new).view(np.float32)


def merge_diffs(diffs: Iterable[tuple[Codec, Payload]], size: int) -> tuple[Codec, bytes]:
    """One diff of `size` elements with the effect of consecutive `diffs`, the oldest first.

    Raises:
        WeightsError: when a payload is not a diff of `size` elements (``reason="payload"``).
    """
    total = np.zeros(size, dtype=np.int32)
    for codec, payload in diffs:
        total += _decode(codec, payload, size)
    return _encode(total)


def _ordered(bits: _Integers) -> _Integers:
    """Float bits to integers of the same order, int32 ``[n]`` in a fresh array; its own inverse.

    Positive floats stay; of negative ones all bits but the sign are flipped.
    """
    out: _Integers = bits >> 31
    out &= _MAGNITUDE
    out ^= bits
    return out


def _encode(difference: _Integers) -> tuple[Codec, bytes]:
    if not difference.any():
        return Codec.UNCHANGED, b""
    sign = difference >> 31
    zigzag = ((difference << 1) ^ sign).view(np.uint32)
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    planes = []
    for shift in (0, 8, 16, 24):
        plane = (zigzag >> np.uint32(shift)).astype(np.uint8)
        packed = compressor.compress(plane.data)
        planes.append(packed if len(packed) < plane.size else plane.tobytes())
    lengths = [len(plane) for plane in planes]
    if _PLANE_LENGTHS.size + sum(lengths) >= difference.nbytes:
        return Codec.RAW, difference.tobytes()
    return Codec.PLANES_ZSTD, b"".join((_PLANE_LENGTHS.pack(*lengths), *planes))


def _decode(codec: Codec, payload: Payload, size: int) -> _Integers:
    """The differences of a diff, int32 ``[size]``, in a fresh array."""
    if codec == Codec.UNCHANGED:
        _require(len(payload) == 0, "a payload where nothing changed")
        return np.zeros(size, dtype=np.int32)
    if codec == Codec.RAW:
        _require(len(payload) == 4 * size, f"{len(payload)} bytes for {size} raw differences")
        return np.frombuffer(payload, dtype=np.int32).copy()
    _require(codec == Codec.PLANES_ZSTD, f"codec {codec} is not a diff")
    return _decode_planes(memoryview(payload), size)


def _decode_planes(payload: memoryview, size: int) -> _Integers:
    _require(len(payload) > _PLANE_LENGTHS.size, "too short for its plane lengths")
    lengths = _PLANE_LENGTHS.unpack_from(payload)
    end = _PLANE_LENGTHS.size + sum(lengths)
    _require(end == len(payload), f"planes of {end} bytes in a payload of {len(payload)}")
    decompressor = zstandard.ZstdDecompressor()
    zigzag = np.zeros(size, dtype=np.uint32)
    for length in reversed(lengths):
        plane = payload[end - length : end]
        end -= length
        zigzag <<= np.uint32(8)
        zigzag |= np.frombuffer(plane if length == size else _expand(decompressor, plane, size), dtype=np.uint8)
    negative = (zigzag & np.uint32(1)).view(np.int32)
    difference = (zigzag >> np.uint32(1)).view(np.int32)
    difference ^= -negative
    return difference


def _expand(decompressor: zstandard.ZstdDecompressor, frame: memoryview, size: int) -> bytes:
    """One zstd frame of exactly `size` bytes."""
    try:
        # zstandard allocates what the frame declares, and looks at max_output_size only when it declares nothing.
        declared = zstandard.frame_content_size(frame)
        _require(declared == size, f"a plane declares {declared} bytes, not {size}")
        return decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise WeightsError(f"a plane does not decompress: {exc}", reason="payload") from exc


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise WeightsError(f"not a diff of this policy: {problem}", reason="payload")
