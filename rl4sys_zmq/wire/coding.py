"""Compression of the body of a `Submit`, for networks that are slower than the compression.

A frame of the body consists of *sections*, the bytes of one column each. Three numbers in `Submit.codings` describe a section:
its compressed size and its plain size in bytes, and the size of an element.

1. The bytes of larger elements are reordered: the first bytes of all elements, then the second bytes, and so on. This puts
   signs and exponents side by side.
2. The result is compressed with zstd. A section that does not get shorter is sent unchanged, with an element size of 0.

An element size of 16 or 32 stands for PNG or JPEG files (`rl4sys_zmq.images`). The receiver decodes them when the column is
requested, and decompresses all other sections at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import zstd
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import BadImage, decode_images, image_size
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.wire.messages import Frame, Submit

MAX_PLAIN_BYTES = 64 << 20
"""Largest size of a whole body before compression, in bytes."""
MAX_IMAGE_BYTES = MAX_PLAIN_BYTES - (1 << 16)
"""Largest size, in bytes, of a segment with images before they are encoded. It leaves room for padding in the body."""
MOST_EXPANSION, FREE_BYTES = 256, 1 << 20
"""The limit on the plain size that a body can claim: a multiple of its compressed size, plus a number of bytes.

So a short message cannot cause the receiver much work.
"""
_LEAST_BYTES = 64
_GAIN = 0.95
_SIZES = (1, 2, 4, 8)
IMAGE_KINDS = {"png": 16, "jpeg": 32}
"""The element size of a section that consists of image files, by the format of the files."""
_FORMATS = {kind: name for name, kind in IMAGE_KINDS.items()}

Section = tuple[int, int]
"""The size of a column in a frame, and the size of one element of the column, both in bytes."""


@immutable
class EncodedImages:
    """A column of images as PNG or JPEG files, in place of the pixels.

    Attributes:
        frame: The files, one after the other.
        nbytes: Size of the decoded column in bytes, which ``len`` returns too.
        kind: The format of the files: 16 for PNG, 32 for JPEG.
    """

    frame: Frame
    nbytes: int
    kind: int

    def __len__(self) -> int:
        return self.nbytes

    @property
    def numbers(self) -> list[int]:
        """The entry in `Submit.codings` for these images: the bytes of the files, the bytes of the pixels, and `kind`."""
        return [len(self.frame), self.nbytes, self.kind]

    def decode(self, row: tuple[int, ...], row_bytes: int) -> NDArray[np.uint8]:
        """Return the pixels of the images, uint8 ``[rows, *row]``. A row has the shape `row` and `row_bytes` bytes."""
        size = image_size(row)
        if size is None:
            raise BadImage(f"rows of {row} are not images")
        return decode_images(self.frame, (self.nbytes // row_bytes, *row), size, _FORMATS[self.kind])


BodyFrame = Frame | EncodedImages


def code(message: Submit, sections: Sequence[Sequence[Section]]) -> Submit:
    """Return a copy of a message with a compressed body, or the message itself if that saves less than 5 % or exceeds a limit.

    `sections` has the size of each column in each frame, and the size of the column's elements, in bytes.
    """
    codings, body = [], []
    for n, (frame, parts) in enumerate(zip(message.body, sections, strict=True)):
        coded_before = message.codings and message.codings[n][2]
        numbers, pieces = (message.codings[n], [frame]) if coded_before else _code_frame(memoryview(frame).cast("B"), parts)
        codings.append(numbers)
        body.append(b"".join(pieces))
    before, coded = sum(map(len, message.body)), sum(map(len, body))
    plain = sum(sum(numbers[1::3]) for numbers in codings)
    if coded > _GAIN * before or plain > MOST_EXPANSION * coded + FREE_BYTES or plain > MAX_PLAIN_BYTES:
        return message
    return dataclasses.replace(message, codings=codings, body=tuple(body), digests=())


def is_shorter(coded: int, plain: int) -> bool:
    """Return True if `coded` bytes save at least 5 % of the `plain` bytes that they encode, and a learner accepts the ratio."""
    return coded <= _GAIN * plain and plain <= MOST_EXPANSION * coded


def plain_body(message: Submit) -> tuple[BodyFrame, ...]:
    """Return the decompressed body of a message from an untrusted peer. Image files are not decoded."""
    if not message.codings:
        return message.body
    if len(message.codings) != len(message.body):
        raise ProtocolError(
            RefusalReason.MALFORMED, f"codings of {len(message.codings)} frames for a body of {len(message.body)}"
        )
    sections = [_sections(numbers, len(frame)) for numbers, frame in zip(message.codings, message.body, strict=True)]
    plain, coded = sum(size for frame in sections for _, size, _ in frame), sum(map(len, message.body))
    if plain > min(MAX_PLAIN_BYTES, MOST_EXPANSION * coded + FREE_BYTES):
        raise ProtocolError(RefusalReason.TOO_LARGE, f"a body of {coded} bytes claims a plain size of {plain}")
    if any(kind in _FORMATS for _, _, kind in sections[0]):
        raise ProtocolError(RefusalReason.MALFORMED, "the frame of small columns contains images")
    return tuple(_plain_frame(frame, parts) for frame, parts in zip(message.body, sections, strict=True))


def _code_frame(frame: memoryview, parts: Sequence[Section]) -> tuple[list[int], list[Any]]:
    numbers: list[int] = []
    pieces: list[Any] = []
    begin = 0
    for size, itemsize in parts:
        plain = frame[begin : begin + size]
        begin += size
        coded = zstd.compress(_shuffled(plain, itemsize)) if size >= _LEAST_BYTES else plain
        shorter = len(coded) < size
        numbers += (len(coded), size, itemsize) if shorter else (size, size, 0)
        pieces.append(coded if shorter else plain)
    assert begin == len(frame)
    return numbers, pieces


def _shuffled(plain: Frame, itemsize: int, *, back: bool = False) -> Any:
    """Put the first bytes of all elements of `itemsize` bytes first, then the second bytes, and so on. `back` undoes this.

    An incomplete last element stays at the end.
    """
    if itemsize == 1:
        return plain
    data = np.frombuffer(plain, np.uint8)
    whole = len(data) - len(data) % itemsize
    table = data[:whole].reshape((itemsize, -1) if back else (-1, itemsize))
    return np.concatenate([table.T.ravel(), data[whole:]]).data


def _sections(numbers: Any, size: int) -> list[tuple[int, int, int]]:
    """Check the entry of `Submit.codings` for a frame. Return compressed size, plain size and element size of each section."""
    if type(numbers) is not list or len(numbers) % 3 or not all(type(n) is int and n >= 0 for n in numbers):
        raise ProtocolError(RefusalReason.MALFORMED, f"invalid codings {numbers!r:.80}")
    sections = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
    if sum(coded for coded, _, _ in sections) != size:
        raise ProtocolError(RefusalReason.MALFORMED, f"codings {numbers!r:.80} do not add up to their frame of {size} bytes")
    for coded, plain, itemsize in sections:
        alone = itemsize in _FORMATS and len(sections) == 1
        if (itemsize not in _SIZES and not alone) if itemsize else coded != plain:
            raise ProtocolError(
                RefusalReason.MALFORMED, f"invalid section: {coded} coded bytes, {plain} plain, elements of {itemsize}"
            )
    return sections


def _plain_frame(frame: Frame, sections: list[tuple[int, int, int]]) -> BodyFrame:
    if len(sections) == 1:
        _, plain, kind = sections[0]
        if not kind:
            return frame
        if kind in _FORMATS:
            return EncodedImages(frame, plain, kind)
    view, begin = memoryview(frame), 0
    pieces: list[Any] = []
    for coded, plain, itemsize in sections:
        piece = view[begin : begin + coded]
        begin += coded
        try:
            pieces.append(_shuffled(zstd.expand(piece, plain), itemsize, back=True) if itemsize else piece)
        except zstd.DecompressionError as exc:
            raise ProtocolError(RefusalReason.MALFORMED, str(exc)) from exc
    return b"".join(pieces)
