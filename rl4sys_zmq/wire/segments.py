"""Segments to bytes and back.

A segment is packed once, when it is finished: its small columns side by side in one blob, each starting at a multiple of 16
bytes; a column of `LARGE_BYTES` or more is a frame of its own. A `Submit` holds the headers of its segments in the message
header; its first body frame is their blobs joined, the further ones are their large columns in order. Where a column lies
follows from the headers alone. What arrives is read as views, nothing is copied.

The header of a segment is a list: generation, episode id, index, flags (1 terminated, 2 truncated, 4 capped), episode return
or nil, episode length or nil, steps, bytes of its blob, and its columns as ``[letter, dtype, dimensions]`` in the order
``o a r l v`` and perhaps ``m``. A version column of one row stands for all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.values import DTYPES, DiscreteSpace, Segment, Space
from rl4sys_zmq.wire.messages import Frame, Submit
from rl4sys_zmq.wire.values import elements

__all__ = [
    "LARGE_BYTES",
    "PackedSegment",
    "SegmentSchema",
    "action_dtype",
    "join_submit",
    "pack_segment",
    "read_submit",
    "segment_steps",
    "submit_checksums",
]

LARGE_BYTES = 1 << 16
_ALIGN = 16
_TERMINATED, _TRUNCATED, _CAPPED = 1, 2, 4
_U64 = 1 << 64
_LETTERS = ("o", "a", "r", "l", "v", "m")


@dataclass(frozen=True, slots=True, eq=False)
class PackedSegment:
    """A segment as bytes, with what delivery wants to know about it.

    Attributes:
        header: the list described above.
        blob: its small columns.
        large: its large columns.
        steps: how many decisions it holds.
        generation: of the policy that made them.
        oldest_version: the least version among its steps.
        nbytes: the bytes of blob and large columns.
    """

    header: list[Any]
    blob: bytes
    large: tuple[Frame, ...]
    steps: int
    generation: int
    oldest_version: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SegmentSchema:
    """What a client's segments must look like: its spaces and the longest segment allowed, in steps."""

    observation_space: Space
    action_space: Space
    max_steps: int

    def check(self, segment: Segment) -> ProtocolError | None:
        """The rule that a segment's columns break, or None. Content (finiteness) is not looked at here."""
        steps = segment.steps
        rows = steps + (0 if segment.terminated else 1)
        if not 1 <= steps <= self.max_steps:
            return ProtocolError(Refusal.RANGE, f"a segment of {steps} steps; 1 to {self.max_steps} are allowed")
        act = self.action_space
        wanted: list[tuple[str, NDArray[Any], tuple[int, ...], str]] = [
            ("observations", segment.observations, (rows, *self.observation_space.shape), self.observation_space.dtype),
            ("actions", segment.actions, (steps, *act.shape), action_dtype(act)),
            ("rewards", segment.rewards, (steps,), "<f4"),
            ("log_probs", segment.log_probs, (steps,), "<f4"),
            ("versions", segment.versions, (steps,), "<u8"),
        ]
        if segment.masks is not None:
            if not isinstance(act, DiscreteSpace):
                return ProtocolError(Refusal.SPEC, "masks for a continuous action space")
            wanted.append(("masks", segment.masks, (rows, act.n), "|b1"))
        for name, column, shape, dtype in wanted:
            if column.shape != shape or column.dtype.str != dtype:
                return ProtocolError(Refusal.SPEC, f"{name} are {column.dtype.str} {column.shape}, not {dtype} {shape}")
        return None


def action_dtype(space: Space) -> str:
    """The dtype of the actions column: int64 for discrete actions, float32 for the raw sample of a continuous one."""
    return "<i8" if isinstance(space, DiscreteSpace) else "<f4"


def pack_segment(segment: Segment) -> PackedSegment:
    """Packs a finished segment; its columns may be reused afterwards, except the large ones, which are not copied.

    Raises:
        ProtocolError: when a column's dtype cannot travel.
    """
    versions = segment.versions
    oldest = int(versions.min())
    if len(versions) > 1 and oldest == int(versions.max()):
        versions = versions[:1]
    columns: list[NDArray[Any]] = [segment.observations, segment.actions, segment.rewards, segment.log_probs, versions]
    if segment.masks is not None:
        columns.append(segment.masks)
    described, small, large = [], [], []
    size = 0
    for letter, column in zip(_LETTERS, columns, strict=False):
        if column.dtype.str not in DTYPES:
            raise ProtocolError(Refusal.DTYPE, f"column {letter} of dtype {column.dtype} cannot travel")
        described.append([letter, column.dtype.str, list(column.shape)])
        data = np.ascontiguousarray(column)
        if data.nbytes >= LARGE_BYTES:
            large.append(data.view(np.uint8).data.cast("B"))
            size += data.nbytes
        else:
            padding = -data.nbytes % _ALIGN
            small.append(data.tobytes() + bytes(padding))
    blob = b"".join(small)
    flags = _TERMINATED * segment.terminated | _TRUNCATED * segment.truncated | _CAPPED * segment.capped
    header = [
        segment.generation,
        segment.episode_id,
        segment.segment_index,
        flags,
        segment.episode_return,
        segment.episode_length,
        segment.steps,
        len(blob),
        described,
    ]
    return PackedSegment(header, blob, tuple(large), segment.steps, segment.generation, oldest, size + len(blob))


def join_submit(first_seq: int, want_steps: int, packed: Sequence[PackedSegment]) -> Submit:
    """One message of consecutive segments of a stream."""
    blobs = packed[0].blob if len(packed) == 1 else b"".join(p.blob for p in packed)
    body: list[Frame] = [blobs]
    for p in packed:
        body.extend(p.large)
    return Submit(first_seq, len(packed), want_steps, [p.header for p in packed], tuple(body))


def read_submit(message: Submit) -> list[Segment | ProtocolError]:
    """The segments of a message, as read-only views into its frames; in the place of one that is out of range, its error.

    Raises:
        ProtocolError: when the message does not hold together, so that no segment in it can be trusted.
    """
    if message.count != len(message.segments) or not message.segments:
        raise ProtocolError(Refusal.MALFORMED, f"{len(message.segments)} segments, {message.count} announced")
    if not message.body:
        raise ProtocolError(Refusal.FRAMES, "segments without a body")
    blobs, large = memoryview(message.body[0]), iter(message.body[1:])
    start = 0
    out: list[Segment | ProtocolError] = []
    for header in message.segments:
        size = _blob_bytes(header)
        if start + size > len(blobs):
            raise ProtocolError(Refusal.SHAPE, "a blob beyond the end of its frame")
        columns = _columns(header, blobs[start : start + size], large)
        out.append(_segment(header, columns))
        start += size
    if start != len(blobs) or next(large, None) is not None:
        raise ProtocolError(Refusal.SHAPE, "bytes that belong to no segment")
    return out


def segment_steps(message: Submit) -> list[int]:
    """How many steps each segment claims to have; a header of the wrong form counts as none."""
    headers = (h for h in message.segments if type(h) is list and len(h) == 9)
    return [h[6] for h in headers if type(h[6]) is int]


def submit_checksums(message: Submit) -> list[int]:
    """The xxh3-64 of each segment's header and columns, however segments are shared out between messages.

    For a message that `read_submit` has read.
    """
    blobs, large = memoryview(message.body[0]), iter(message.body[1:])
    start = 0
    out = []
    for header in message.segments:
        checksum = xxhash.xxh3_64(repr(header).encode())
        checksum.update(blobs[start : start + header[7]])
        for _, dtype, shape in header[8]:
            if elements(shape) * np.dtype(dtype).itemsize >= LARGE_BYTES:
                checksum.update(next(large))
        start += header[7]
        out.append(checksum.intdigest())
    return out


def _blob_bytes(header: Any) -> int:
    if type(header) is not list or len(header) != 9 or type(header[7]) is not int or header[7] < 0 or type(header[8]) is not list:
        raise ProtocolError(Refusal.MALFORMED, f"a segment header of the wrong form: {header!r:.80}")
    return header[7]


def _columns(header: list[Any], blob: memoryview, large: Iterator[Frame]) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {}
    start = 0
    described = header[8]
    letters = [d[0] if type(d) is list and len(d) == 3 and type(d[0]) is str else "" for d in described]
    if letters not in (list(_LETTERS), list(_LETTERS[:5])):
        raise ProtocolError(Refusal.MALFORMED, f"a segment with other columns than {' '.join(_LETTERS)}")
    for letter, dtype, shape in described:
        if type(dtype) is not str or dtype not in DTYPES:
            raise ProtocolError(Refusal.DTYPE, f"column {letter} of dtype {dtype!r:.40}")
        count = elements(shape)
        if not shape or 0 in shape[1:]:  # so that nobody claims rows for which there are no bytes
            raise ProtocolError(Refusal.SHAPE, f"column {letter} of shape {shape!r:.80}")
        size = count * np.dtype(dtype).itemsize
        if size >= LARGE_BYTES:
            frame = next(large, b"")
            if len(frame) != size:
                raise ProtocolError(Refusal.SHAPE, f"column {letter} needs {size} bytes, its frame has {len(frame)}")
            out[letter] = np.frombuffer(frame, dtype=dtype).reshape(shape)
        else:
            if start + size > len(blob):
                raise ProtocolError(Refusal.SHAPE, f"column {letter} ends beyond its blob")
            out[letter] = np.frombuffer(blob, dtype=dtype, count=count, offset=start).reshape(shape)
            start += size + (-size % _ALIGN)
    if start != len(blob):
        raise ProtocolError(Refusal.SHAPE, f"a blob of {len(blob)} bytes for columns of {start}")
    return out


def _segment(header: list[Any], columns: dict[str, NDArray[Any]]) -> Segment | ProtocolError:
    generation, episode, index, flags, total, length, steps = header[:7]
    whole = (generation, episode, index, flags, steps)
    if any(type(n) is not int or not 0 <= n < _U64 for n in whole) or flags not in (0, _TERMINATED, _TRUNCATED, _CAPPED):
        return ProtocolError(Refusal.RANGE, f"a segment with the numbers {whole!r:.120}")
    ended = flags in (_TERMINATED, _TRUNCATED)
    if ended and (type(total) not in (float, type(None)) or type(length) is not int or not steps <= length < _U64):
        return ProtocolError(Refusal.RANGE, f"an ended episode of return {total!r:.40} and length {length!r:.40}")
    if not ended and (total is not None or length is not None):
        return ProtocolError(Refusal.RANGE, "a return or length on a segment that does not end its episode")
    if len(columns["a"]) != steps:
        return ProtocolError(Refusal.SHAPE, f"{len(columns['a'])} actions for {steps} steps")
    versions = columns["v"]
    if versions.shape == (1,) and steps > 1:
        versions = np.broadcast_to(versions, (steps,))
    return Segment(
        columns["o"],
        columns["a"],
        columns["r"],
        columns["l"],
        versions,
        columns.get("m"),
        generation,
        episode,
        index,
        bool(flags & _TERMINATED),
        bool(flags & _TRUNCATED),
        bool(flags & _CAPPED),
        total,
        length,
    )
