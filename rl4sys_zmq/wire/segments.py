"""Packing of segments into bytes, and joining of packed segments into a `Submit`, which `rl4sys_zmq.wire.batch` reads.

- Each segment has a *head*, a record of 64 bytes with its numbers. The learner checks the heads of a whole message with a few
  array comparisons.
- The columns of all segments with the same layout lie side by side in the first body frame: first their observations, then
  their actions, and so on. Each such block is padded to a multiple of 16 bytes.
- A column of one segment with `LARGE_BYTES` or more has a separate frame and is never copied.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import ImageFormat, encode_images, image_size
from rl4sys_zmq.immutable import immutable_object
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire.coding import IMAGE_KINDS, MAX_IMAGE_BYTES, EncodedImages, Section, code, is_shorter
from rl4sys_zmq.wire.layout import describe, parse_layout
from rl4sys_zmq.wire.messages import AnyBytes, Frame, Submit

LARGE_BYTES = 1 << 16
ALIGN = 16
MAX_LAYOUTS = 255
_PADDING = bytes(ALIGN)

HEAD = np.dtype(
    [
        ("generation", "<u8"),
        ("episode_id", "<u8"),
        ("segment_index", "<u8"),
        ("version", "<u8"),
        ("episode_return", "<f8"),
        ("episode_length", "<u8"),
        ("check", "<u8"),
        ("steps", "<u4"),
        ("flags", "|u1"),
        ("layout", "|u1"),
        ("reserved", "<u2"),
    ]
)
"""The head of a segment. ``layout`` is an index into `Submit.layouts`. ``check`` is the xxh3-64 of the rest of the segment."""

head_struct = struct.Struct("<4QdQQI2BH")
HEAD_BYTES = head_struct.size
_FLAGS_AT, LAYOUT_AT = HEAD_BYTES - 4, HEAD_BYTES - 3
_CHECK_AT = 48
assert HEAD.itemsize == HEAD_BYTES == 64


class SegmentFlag:
    """The bits of the number ``flags`` in a segment's head. At most one of TERMINATED, TRUNCATED and CAPPED is set."""

    TERMINATED = 1
    TRUNCATED = 2
    CAPPED = 4  # the episode continues, but the actor counts a trajectory as complete
    RETURN = 8  # `episode_return` is valid
    VERSIONS = 16  # the segment has a version column; else `version` applies to all steps
    EVALUATION = 32  # not to be trained on; only together with RETURN


@immutable_object
class PackedSegment:
    """A segment as bytes, ready to be sent.

    Attributes:
        layout: The layout as text (`SegmentLayout.text`).
        head: The record of 64 bytes with the segment's numbers. `join_submit` later sets the index of the layout in it.
        small: The bytes of each column, in the order of the layout; empty for a large column.
        large: The bytes of the columns of at least 64 KiB (`LARGE_BYTES`), in the order of the layout.
        digests: The xxh3-64 of each entry of `large`.
        nbytes: Size of all columns before any compression.
        images: The observations as image files, which replace the first entry of `large`; None without image files.
    """

    layout: str
    head: bytes
    small: tuple[bytes, ...]
    large: tuple[Frame, ...]
    digests: tuple[int, ...]
    steps: int
    generation: int
    oldest_version: int
    nbytes: int
    images: EncodedImages | None = None


def segment_columns(segment: Segment) -> tuple[str, list[NDArray[Any]]]:
    """Return the letters of a segment's columns, and the columns in the order of the layout.

    Raises:
        ProtocolError: If a column has another number of rows than the segment.
    """
    observations, actions = segment.observation_leaves, segment.action_leaves
    columns: list[NDArray[Any]] = [*observations, *actions, segment.rewards, segment.log_probs, segment.versions]
    steps, rows, leaves, parts = segment.steps, segment.steps + (not segment.terminated), len(observations), len(actions)
    letters, wanted = "o" * leaves + "a" * parts + "rlv", [rows] * leaves + [steps] * (parts + 3)
    if segment.masks is not None:
        letters += "m"
        columns.append(segment.masks)
        wanted.append(rows)
    if segment.extras or segment.initial:
        letters += "x" * len(segment.extras) + "i" * len(segment.initial)
        columns += [*segment.extras.values(), *(value[None] for value in segment.initial.values())]
        wanted += [steps] * len(segment.extras) + [1] * len(segment.initial)
    if any(len(c) != n for c, n in zip(columns, wanted, strict=True)):
        raise ProtocolError(RefusalReason.SHAPE, f"the columns have {[len(c) for c in columns]} rows for {steps} steps")
    return letters, columns


def segment_flags(segment: Segment, *, mixed: bool) -> int:
    """Return the bits of a segment's `SegmentFlag`. `mixed` is True if its steps have several versions."""
    flags = (
        SegmentFlag.TERMINATED * segment.terminated
        | SegmentFlag.TRUNCATED * segment.truncated
        | SegmentFlag.CAPPED * segment.capped
    )
    flags |= SegmentFlag.RETURN * (segment.episode_return is not None) | SegmentFlag.VERSIONS * mixed
    return flags | SegmentFlag.EVALUATION * segment.evaluation


def pack_segment(segment: Segment) -> PackedSegment:
    """Return a finished segment as bytes. Columns of at least 64 KiB are not copied, so they must not change.

    Raises:
        ProtocolError: If a column's dtype or shape is not supported, or a number is out of range.
    """
    versions = segment.versions
    oldest = int(versions.min())
    mixed = oldest != int(versions.max())
    letters, columns = segment_columns(segment)
    steps = segment.steps
    layout = describe(letters, tuple((column.dtype, column.shape[1:]) for column in columns), segment.source)
    if not mixed:
        columns[letters.index("v")] = versions[:0]
    small: list[bytes] = []
    large: list[Frame] = []
    size = 0
    for column in columns:
        size += column.nbytes
        if column.nbytes >= LARGE_BYTES:
            large.append(np.ascontiguousarray(column).view(np.uint8).data.cast("B"))
            small.append(b"")
        else:
            small.append(column.tobytes())
    flags = segment_flags(segment, mixed=mixed)
    total = 0.0 if segment.episode_return is None else segment.episode_return
    length = segment.episode_length or 0
    numbers = segment.generation, segment.episode_id, segment.segment_index, oldest, total, length
    try:
        head = bytearray(head_struct.pack(*numbers, 0, steps, flags, 0, 0))
    except struct.error as exc:
        raise ProtocolError(RefusalReason.RANGE, f"a number of a segment is out of range: {exc}") from exc
    digests = tuple(map(xxhash.xxh3_64_intdigest, large))
    check = xxhash.xxh3_64(head)
    check.update(layout.encode())
    for part in (*small, *(digest.to_bytes(8, "little") for digest in digests)):
        check.update(part)
    head[_CHECK_AT : _CHECK_AT + 8] = check.intdigest().to_bytes(8, "little")
    return PackedSegment(layout, bytes(head), tuple(small), tuple(large), digests, steps, segment.generation, oldest, size)


def join_submit(first_seq: int, want_steps: int, packed: Sequence[PackedSegment], *, coded: bool = False) -> Submit:
    """Return one message with packed segments whose sequence numbers are consecutive.

    Args:
        first_seq: Sequence number of the first segment.
        want_steps: Total number of steps that the actor asks to be allowed to send.
        packed: The packed segments, in the order of their sequence numbers.
        coded: True to compress the body if that makes it shorter.
    """
    groups: dict[str, list[PackedSegment]] = {}
    for p in packed:
        groups.setdefault(p.layout, []).append(p)
    if len(groups) > MAX_LAYOUTS:
        raise ProtocolError(RefusalReason.RANGE, f"{len(groups)} layouts in one message; the limit is {MAX_LAYOUTS}")
    heads = b"".join([p.head for p in packed])
    if len(groups) > 1:
        changed = bytearray(heads)
        changed[LAYOUT_AT::HEAD_BYTES] = bytes(map(list(groups).index, [p.layout for p in packed]))
        heads = bytes(changed)
    pieces: list[bytes] = []
    sections: list[Section] = []
    for text, group in groups.items():
        for column, small in zip(parse_layout(text).columns, zip(*[p.small for p in group], strict=True), strict=True):
            size = sum(map(len, small))
            pieces += small
            pieces.append(_PADDING[: -size % ALIGN])
            sections.append((size + -size % ALIGN, column.dtype.itemsize))
    rest = [p for p in packed if p.large]
    body: tuple[Frame, ...] = (b"".join(pieces), *[frame for p in rest for frame in p.large])
    codings: list[list[int]] = []
    if any(p.images is not None for p in rest):
        places = [None, *[p.images if n == 0 else None for p in rest for n in range(len(p.large))]]
        codings = [
            images.numbers if images is not None else [len(frame), len(frame), 0]
            for frame, images in zip(body, places, strict=True)
        ]
    message = Submit(
        first_seq,
        len(packed),
        want_steps,
        list(groups),
        AnyBytes(heads),
        body,
        codings,
        digests=(None, *[digest for p in rest for digest in p.digests]),
    )
    if not coded:
        return message
    return code(message, [sections, *([section] for p in rest for section in _large_sections(p))])


def with_images(packed: PackedSegment, codec: ImageFormat) -> PackedSegment:
    """Return a copy of a packed segment in which the observations are image files of the format `codec` instead of pixels.

    Return the segment unchanged if its observations are not one large column of images, if it is larger than `MAX_IMAGE_BYTES`,
    or if the files save less than 5 %. The checksum of a segment is always that of the pixels.
    """
    layout = parse_layout(packed.layout)
    column = layout.columns[0]
    size = image_size(column.row) if column.dtype == np.uint8 and layout.leaves == 1 else None
    own = packed.large and not packed.small[0] and packed.steps
    if size is None or not own or packed.images is not None or packed.nbytes > MAX_IMAGE_BYTES:
        return packed
    pixels = np.frombuffer(packed.large[0], np.uint8)
    frame = encode_images(pixels, size, codec)
    if not is_shorter(len(frame), pixels.nbytes):
        return packed
    images = EncodedImages(frame, pixels.nbytes, IMAGE_KINDS[codec.format])
    digests = (xxhash.xxh3_64_intdigest(frame), *packed.digests[1:])
    return replace(packed, large=(frame, *packed.large[1:]), digests=digests, images=images)


def _large_sections(packed: PackedSegment) -> list[Section]:
    versions = packed.head[_FLAGS_AT] & SegmentFlag.VERSIONS
    columns = zip(parse_layout(packed.layout).columns, packed.small, strict=True)
    own = [column for column, small in columns if not small and (column.letter != "v" or versions)]
    sizes = [memoryview(frame).nbytes for frame in packed.large]
    return [(size, column.dtype.itemsize) for size, column in zip(sizes, own, strict=True)]
