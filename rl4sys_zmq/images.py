"""Arrays of images as PNG or JPEG files, and back from bytes that nobody vouches for.

The files lie one behind the other, each behind its length (u32, little-endian). What a decoder may be asked to do is known before
Pillow sees a file: its size, its kind of pixels and all its parts are compared with what they must be. Pillow is loaded when
something is coded or decoded, and comes with the extra ``images``.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import RL4SysError

__all__ = ["NEEDS_PILLOW", "BadImage", "ImageCodec", "ImageSize", "decode_images", "encode_images", "has_pillow", "image_size"]

NEEDS_PILLOW = "images need Pillow: pip install 'rl4sys-zmq[images]'"
MIN_SIDE, MAX_SIDE = 8, 65_500
"""Of an image, in pixels: less is hardly one, and more is no JPEG."""
PNG_LEVEL = 1
"""Of zlib: on rendered frames level 6 takes several times as long for a few percent."""

_LENGTH = struct.Struct("<I")
_PNG_BEGIN = struct.Struct(">8sI4sIIBBBBBI")
_PNG_CHUNK = struct.Struct(">I4s")
_PNG_COLOUR = {1: 0, 3: 2}
_JPEG_SEGMENT = struct.Struct(">BBH")
_JPEG_FRAME = struct.Struct(">BHHB")
_SOF0, _SOS = 0xC0, 0xDA
_JPEG_OTHERS = {0xC4, 0xDB, 0xDD, 0xE0, 0xEE, 0xFE}
"""Tables, restart interval, JFIF, Adobe, comment."""

ImageSize = tuple[int, int, int]
"""Height, width, and 1 (grey) or 3 (red, green, blue) channels."""


class BadImage(RL4SysError):
    """Bytes that are not the images that they should be."""


@dataclass(frozen=True, slots=True)
class ImageCodec:
    """How images are coded.

    Attributes:
        format: ``png`` (exact) or ``jpeg`` (not).
        quality: of JPEG, 1 to 100.
    """

    format: str
    quality: int = 90


@functools.cache
def has_pillow() -> bool:
    """Whether Pillow can be loaded; this loads it, once."""
    try:
        from PIL import Image, JpegImagePlugin, PngImagePlugin  # noqa: F401
    except ImportError:
        return False
    return True


def image_size(shape: Sequence[int]) -> ImageSize | None:
    """The size of the images in an array of this shape, None if it holds none.

    They are its last dimensions: ``[..., height, width, 1 or 3]``, else ``[..., height, width]``; each side has 8 to 65,500
    pixels. What stands before counts images.
    """
    if len(shape) > 2 and shape[-1] in (1, 3):
        height, width, channels = shape[-3:]
    elif len(shape) > 1:
        (height, width), channels = shape[-2:], 1
    else:
        return None
    return (height, width, channels) if MIN_SIDE <= min(height, width) <= max(height, width) <= MAX_SIDE else None


def encode_images(pixels: NDArray[np.uint8], size: ImageSize, codec: ImageCodec) -> bytes:
    """All images of an array, as files.

    Args:
        pixels: of any shape; images of `size` side by side.
        size: of each.
        codec: how.
    """
    from PIL import Image

    options = {"compress_level": PNG_LEVEL} if codec.format == "png" else {"quality": codec.quality}
    parts: list[bytes] = []
    for image in pixels.reshape(-1, *_array_shape(size)):
        file = io.BytesIO()
        Image.fromarray(image).save(file, codec.format, **options)
        parts += (_LENGTH.pack(file.tell()), file.getvalue())
    return b"".join(parts)


def decode_images(files: bytes | memoryview, shape: Sequence[int], size: ImageSize, form: str) -> NDArray[np.uint8]:
    """An array of this shape out of the files of its images.

    Args:
        files: what `encode_images` made, or anything else.
        shape: of the array, a multiple of `size`. As many bytes are allocated, and beside them those of one image in Pillow (four
            for a pixel of three) and of a copy of it.
        size: of each image.
        form: ``png`` or ``jpeg``.

    Raises:
        BadImage: when they are not exactly these images.
    """
    height, width, channels = size
    count = prod(shape) // prod(size)
    pixels = np.empty((count, *_array_shape(size)), np.uint8)
    view, at = memoryview(files), 0
    for place in range(count):
        try:
            file = _file_at(view, at)
            (_check_png if form == "png" else _check_jpeg)(file, size)
            pixels[place] = _load(file, form, "RGB" if channels == 3 else "L", (width, height))
        except BadImage as exc:
            raise BadImage(f"image {place + 1} of {count}, {form}: {exc}") from exc
        at += _LENGTH.size + len(file)
    if at != len(files):
        raise BadImage(f"{len(files) - at} bytes follow the last of {count} images")
    return pixels.reshape(shape)


def _array_shape(size: ImageSize) -> tuple[int, ...]:
    """Of one image: grey ones have no dimension of channels."""
    return size if size[2] == 3 else size[:2]


def _file_at(files: memoryview, at: int) -> memoryview:
    begin = at + _LENGTH.size
    if begin > len(files):
        raise BadImage("it is missing")
    end = begin + int(_LENGTH.unpack_from(files, at)[0])
    if end > len(files):
        raise BadImage(f"it ends {end - len(files)} bytes beyond the end")
    return files[begin:end]


def _load(file: memoryview, form: str, mode: str, side: tuple[int, int]) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file), formats=[form.upper()]) as image:
            if (image.format, image.mode, image.size) != (form.upper(), mode, side):
                raise BadImage(f"{image.format} {image.mode} of {image.size}, not {mode} of {side}")
            return np.asarray(image)
    except (BadImage, MemoryError):
        raise
    except Exception as exc:  # Pillow's parsers raise nearly anything
        raise BadImage(f"it cannot be decoded: {exc!a}"[:200]) from exc


def _check_png(file: memoryview, size: ImageSize) -> None:
    """The header must be the one of such an image, and nothing but its pixels may follow: text and profiles can expand, too.

    Pillow takes a PNG of too few rows for one of black ones, so that their bytes are counted here.
    """
    height, width, channels = size
    if len(file) < _PNG_BEGIN.size:
        raise BadImage(f"{len(file)} bytes are no PNG")
    wanted = b"\x89PNG\r\n\x1a\n", 13, b"IHDR", width, height, 8, _PNG_COLOUR[channels], 0, 0, 0
    found = _PNG_BEGIN.unpack_from(file)[:-1]
    if found != wanted:
        raise BadImage(f"it begins with {found}, not with {wanted}")
    rows, missing = zlib.decompressobj(), height * (1 + width * channels)
    at, kind = _PNG_BEGIN.size, b""
    while kind != b"IEND":
        if at + _PNG_CHUNK.size > len(file):
            raise BadImage("it is cut short")
        length, kind = _PNG_CHUNK.unpack_from(file, at)
        if kind not in (b"IDAT", b"IEND"):
            raise BadImage(f"it has a chunk {kind!r}")
        at += _PNG_CHUNK.size + length + 4
        if kind == b"IDAT" and missing >= 0:
            try:
                missing -= len(rows.decompress(file[at - length - 4 : at - 4], missing + 1))
            except zlib.error as exc:
                raise BadImage(f"its rows do not expand: {exc}") from exc
    if at != len(file):
        raise BadImage(f"its chunks take {at} bytes, it has {len(file)}")
    if missing or not rows.eof:
        raise BadImage("its rows are too few, or too many")


def _check_jpeg(file: memoryview, size: ImageSize) -> None:
    """It must be a baseline JPEG of that size in one scan: of several, each costs work and memory for all pixels."""
    height, width, channels = size
    if bytes(file[:2]) != b"\xff\xd8":
        raise BadImage("it is no JPEG")
    at, frames = 2, 0
    while True:
        if at + 16 > len(file):
            raise BadImage("it is cut short")
        begin, marker, length = _JPEG_SEGMENT.unpack_from(file, at)
        if begin != 0xFF or length < 2:
            raise BadImage(f"it has no segment at {at}")
        if marker == _SOS:
            if frames != 1 or file[at + 4] != channels:
                raise BadImage(f"a scan of {file[at + 4]} components in {frames} frames, not of {channels} in one")
            return
        if marker == _SOF0:
            frames += 1
            found, wanted = _JPEG_FRAME.unpack_from(file, at + 4), (8, height, width, channels)
            if found != wanted:
                raise BadImage(f"its frame is {found}, not {wanted}")
        elif marker not in _JPEG_OTHERS:
            raise BadImage(f"it has a segment {marker:#x}")
        at += 2 + length
