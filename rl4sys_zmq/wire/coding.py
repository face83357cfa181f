"""The body of a `Submit` in fewer bytes, where the link is slower than a coder: each column by itself, and undone on arrival.

A frame is cut into *sections*, one for each column that lies in it. The numbers of a section are three: its bytes as they travel,
its bytes as they are, and the size of an element: of elements of more than one byte the first bytes of all come first, then the
second ones, and so on, which puts signs and exponents side by side. Then zstd. A section that does not get shorter travels as
it is, with a size of 0.

Where the size of an element would stand, 16 and 32 say that the section is the PNG or JPEG files of its images
(`rl4sys_zmq.images`). Only a large column of observations is coded so, which `rl4sys_zmq.wire.segments.with_images` does.
They are decoded when somebody asks for the column, which a gateway never does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq import zstd
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.images import BadImage, decode_images, image_size
from rl4sys_zmq.wire.messages import Frame, Submit

__all__ = ["IMAGE_KINDS", "MAX_IMAGE_BYTES", "MAX_PLAIN_BYTES", "CodedImages", "Part", "code", "plain_body", "worth_it"]

MAX_PLAIN_BYTES = 64 << 20
"""Of a whole body."""
MAX_IMAGE_BYTES = MAX_PLAIN_BYTES - (1 << 16)
"""Of the columns of a message with images: there is room for padding."""
MOST_EXPANSION, FREE_BYTES = 256, 1 << 20
"""A body may not claim more than so many times its bytes, and so many bytes: a few bytes must not cost a learner much work."""
_LEAST_BYTES = 64
_GAIN = 0.95
_SIZES = (1, 2, 4, 8)
IMAGE_KINDS = {"png": 16, "jpeg": 32}
"""What stands in the place of an element's size."""
_FORMATS = {kind: name for name, kind in IMAGE_KINDS.items()}

Section = tuple[int, int]
"""The bytes of a column in a frame, and the size of its elements."""


@dataclass(frozen=True, slots=True)
class CodedImages:
    """A column of images that nobody has decoded yet, in the place of its bytes.

    Attributes:
        frame: their files.
        nbytes: of the column; `len` says it too, as of any frame.
        kind: one of `IMAGE_KINDS`.
    """

    frame: Frame
    nbytes: int
    kind: int

    def __len__(self) -> int:
        return self.nbytes

    @property
    def numbers(self) -> list[int]:
        """The numbers of the frame's only section."""
        return [len(self.frame), self.nbytes, self.kind]

    def decode(self, row: tuple[int, ...], row_bytes: int) -> NDArray[np.uint8]:
        """The column, ``[rows, *row]``.

        Raises:
            BadImage: when the files are not those of such images.
        """
        size = image_size(row)
        if size is None:
            raise BadImage(f"rows of {row} are no images")
        return decode_images(self.frame, (self.nbytes // row_bytes, *row), size, _FORMATS[self.kind])


Part = Frame | CodedImages
"""A frame of a body, as it is as far as possible."""


def code(message: Submit, sections: Sequence[Sequence[Section]]) -> Submit:
    """The same message with its body coded; the message itself if that gains nothing.

    Args:
        message: with its body as it is, but for frames of images, which stay as they are.
        sections: of each frame of the body, in their order.
    """
    codings, body = [], []
    for n, (frame, parts) in enumerate(zip(message.body, sections, strict=True)):
        if message.codings and message.codings[n][2]:
            codings.append(message.codings[n])
            body.append(frame)
            continue
        numbers, pieces = _code_frame(memoryview(frame).cast("B"), parts)
        codings.append(numbers)
        body.append(b"".join(pieces))
    before, coded = sum(map(len, message.body)), sum(map(len, body))
    plain = sum(sum(numbers[1::3]) for numbers in codings)
    if coded > _GAIN * before or plain > MOST_EXPANSION * coded + FREE_BYTES or plain > MAX_PLAIN_BYTES:
        return message
    return dataclasses.replace(message, codings=codings, body=tuple(body), digests=())


def worth_it(coded: int, plain: int) -> bool:
    """Whether a frame of so many bytes should travel in so many, and a learner will believe it, whatever else is in the body."""
    return coded <= _GAIN * plain and plain <= MOST_EXPANSION * coded


def plain_body(message: Submit) -> tuple[Part, ...]:
    """The body of a message as it was before `code`, but for its images, from bytes that nobody vouches for.

    Raises:
        ProtocolError: ``malformed`` where the codings are not those of the frames, ``too_large`` for more than
            `MAX_PLAIN_BYTES`, or more than such a message may expand to.
    """
    if not message.codings:
        return message.body
    if len(message.codings) != len(message.body):
        raise ProtocolError(Refusal.MALFORMED, f"codings of {len(message.codings)} frames for a body of {len(message.body)}")
    sections = [_sections(numbers, len(frame)) for numbers, frame in zip(message.codings, message.body, strict=True)]
    plain, coded = sum(size for frame in sections for _, size, _ in frame), sum(map(len, message.body))
    if plain > min(MAX_PLAIN_BYTES, MOST_EXPANSION * coded + FREE_BYTES):
        raise ProtocolError(Refusal.TOO_LARGE, f"a body of {coded} bytes that claims to be {plain}")
    if any(kind in _FORMATS for _, _, kind in sections[0]):
        raise ProtocolError(Refusal.MALFORMED, "images among small columns")
    return tuple(_plain_frame(frame, parts) for frame, parts in zip(message.body, sections, strict=True))


def _code_frame(frame: memoryview, parts: Sequence[Section]) -> tuple[list[int], list[Any]]:
    numbers: list[int] = []
    pieces: list[Any] = []
    begin = 0
    for size, itemsize in parts:
        plain = frame[begin : begin + size]
        begin += size
        coded = zstd.compress(_turned(plain, itemsize)) if size >= _LEAST_BYTES else plain
        shorter = len(coded) < size
        numbers += (len(coded), size, itemsize) if shorter else (size, size, 0)
        pieces.append(coded if shorter else plain)
    assert begin == len(frame)
    return numbers, pieces


def _turned(plain: memoryview, itemsize: int) -> Any:
    """All first bytes of the elements, then all second ones; what is left over at the end stays there."""
    if itemsize == 1:
        return plain
    data = np.frombuffer(plain, np.uint8)
    whole = len(data) - len(data) % itemsize
    return np.concatenate([data[:whole].reshape(-1, itemsize).T.ravel(), data[whole:]]).data


def _turned_back(turned: bytes, itemsize: int) -> Any:
    if itemsize == 1:
        return turned
    data = np.frombuffer(turned, np.uint8)
    whole = len(data) - len(data) % itemsize
    return np.concatenate([data[:whole].reshape(itemsize, -1).T.ravel(), data[whole:]]).data


def _sections(numbers: Any, size: int) -> list[tuple[int, int, int]]:
    """The sections of a frame of `size` bytes."""
    if type(numbers) is not list or len(numbers) % 3 or not all(type(n) is int and n >= 0 for n in numbers):
        raise ProtocolError(Refusal.MALFORMED, f"codings {numbers!r:.80}")
    found = list(_triples(numbers))
    if sum(coded for coded, _, _ in found) != size:
        raise ProtocolError(Refusal.MALFORMED, f"codings {numbers!r:.80} of a frame of {size} bytes")
    for coded, plain, itemsize in found:
        alone = itemsize in _FORMATS and len(found) == 1
        if (itemsize not in _SIZES and not alone) if itemsize else coded != plain:
            raise ProtocolError(Refusal.MALFORMED, f"a section of {coded} bytes for {plain}, elements of {itemsize}")
    return found


def _triples(numbers: list[int]) -> Iterator[tuple[int, int, int]]:
    return zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)


def _plain_frame(frame: Frame, sections: list[tuple[int, int, int]]) -> Part:
    view = memoryview(frame)
    if len(sections) == 1:
        _, plain, kind = sections[0]
        if not kind:
            return frame
        if kind in _FORMATS:
            return CodedImages(frame, plain, kind)
    pieces: list[Any] = []
    begin = 0
    for coded, plain, itemsize in sections:
        piece = view[begin : begin + coded]
        begin += coded
        pieces.append(_turned_back(_expanded(piece, plain), itemsize) if itemsize else piece)
    return b"".join(pieces)


def _expanded(piece: memoryview, size: int) -> bytes:
    try:
        return zstd.expand(piece, size)
    except zstd.NotExpanded as exc:
        raise ProtocolError(Refusal.MALFORMED, str(exc)) from exc
