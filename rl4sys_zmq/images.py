"""The conversion of arrays of images to PNG or JPEG files and back. The decoder accepts untrusted bytes.

An encoded array is a sequence of files, one per image, each preceded by its length in bytes (u32, little-endian). This module
checks the image size, the pixel format and all parts of a file before Pillow gets the file. So no file can cost an unexpected
amount of memory or time. Pillow is imported at the first use. To install it, use the extra ``images``.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.immutable import immutable

__all__ = ["NEEDS_PILLOW", "BadImage", "ImageFormat", "ImageSize", "decode_images", "encode_images"]
__all__ += ["has_pillow", "image_size", "jpeg_size"]

NEEDS_PILLOW = "images need Pillow: pip install 'rl4sys-zmq[images]'"
MIN_SIDE, MAX_SIDE = 8, 65_500
"""The smallest and the largest height or width of an image, in pixels. The largest is the limit of JPEG."""
PNG_LEVEL = 1
"""The zlib compression level of PNG. On rendered frames, level 6 takes several times as long and saves only a few percent."""

_LENGTH = struct.Struct("<I")
_PNG_BEGIN = struct.Struct(">8sI4sIIBBBBBI")
_PNG_CHUNK = struct.Struct(">I4s")
_PNG_COLOUR = {1: 0, 3: 2}
_JPEG_SEGMENT = struct.Struct(">BBH")
_JPEG_FRAME = struct.Struct(">BHHB")
_SOF0, _SOS = 0xC0, 0xDA
_JPEG_OTHERS = {0xC4, 0xDB, 0xDD, 0xE0, 0xEE, 0xFE}
"""The markers of the other parts that a JPEG file may have: tables, restart interval, JFIF, Adobe, comment."""

ImageSize = tuple[int, int, int]
"""The size of an image: height and width in pixels, and 1 (grey) or 3 (red, green, blue) channels."""


class BadImage(RL4SysError):
    """Bytes that cannot be decoded to the expected images."""


@immutable
class ImageFormat:
    """The file format for encoding images.

    Attributes:
        format: ``png`` (lossless) or ``jpeg`` (lossy).
        quality: The quality of JPEG, from 1 to 100. PNG ignores it.
    """

    format: str
    quality: int = 90


@functools.cache
def has_pillow() -> bool:
    """Return True if Pillow can be imported. The first call imports it."""
    try:
        from PIL import Image, JpegImagePlugin, PngImagePlugin  # noqa: F401
    except ImportError:
        return False
    return True


def image_size(shape: Sequence[int]) -> ImageSize | None:
    """Return the size of one image in an array of this shape, or None if the shape is not one of images.

    The last dimensions are those of one image: ``[..., height, width, 1 or 3]``, else ``[..., height, width]``. Height and
    width must be 8 to 65,500 pixels. The product of all earlier dimensions is the number of images.
    """
    if len(shape) > 2 and shape[-1] in (1, 3):
        height, width, channels = shape[-3:]
    elif len(shape) > 1:
        (height, width), channels = shape[-2:], 1
    else:
        return None
    return (height, width, channels) if MIN_SIDE <= min(height, width) <= max(height, width) <= MAX_SIDE else None


def encode_images(pixels: NDArray[np.uint8], size: ImageSize, codec: ImageFormat) -> bytes:
    """Return all images of an array as files, one after the other, each preceded by its length.

    Args:
        pixels: The array. Its last dimensions are those of one image.
        size: The size of each image.
        codec: The format of the files.
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
    """Decode the result of `encode_images` to the array of pixels.

    In addition to the result, decoding needs memory for one image (four bytes per pixel if it has three channels) and for a
    copy of that image.

    Args:
        files: The result of `encode_images`, or untrusted bytes.
        shape: The shape of the array to return. Its last dimensions must be those of one image.
        size: The size of each image.
        form: The file format, ``png`` or ``jpeg``.

    Raises:
        BadImage: If a file is malformed or has another size or format, or if there are more or fewer files than images.
    """
    height, width, channels = size
    count = prod(shape) // prod(size)
    pixels = np.empty((count, *_array_shape(size)), np.uint8)
    view, at = memoryview(files), 0
    for place in range(count):
        try:
            file = _file_at(view, at)
            if form == "png":
                _check_png(file, size)
            elif (found := jpeg_size(file)) != size:
                raise BadImage(f"its frame is {found}; expected {size}")
            pixels[place] = _load(file, form, "RGB" if channels == 3 else "L", (width, height))
        except BadImage as exc:
            raise BadImage(f"image {place + 1} of {count}, {form}: {exc}") from exc
        at += _LENGTH.size + len(file)
    if at != len(files):
        raise BadImage(f"{len(files) - at} bytes follow the last of {count} images")
    return pixels.reshape(shape)


def _array_shape(size: ImageSize) -> tuple[int, ...]:
    """Return the shape of the array of one image for Pillow, in which grey images have no channel dimension."""
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
                raise BadImage(f"it is {image.format} {image.mode} of {image.size}; expected {mode} of {side}")
            return np.asarray(image)
    except (BadImage, MemoryError):
        raise
    except Exception as exc:  # Pillow's parsers raise nearly anything
        raise BadImage(f"it cannot be decoded: {exc!a}"[:200]) from exc


def _check_png(file: memoryview, size: ImageSize) -> None:
    """Raise BadImage if a file is not a PNG of the given size, or if it contains anything but pixels.

    Chunks of text or colour profiles are refused, because they can decompress to a large size. Pillow would fill missing rows
    with black, so this function checks the number of bytes of all rows.
    """
    height, width, channels = size
    if len(file) < _PNG_BEGIN.size:
        raise BadImage(f"{len(file)} bytes are too short for a PNG")
    wanted = b"\x89PNG\r\n\x1a\n", 13, b"IHDR", width, height, 8, _PNG_COLOUR[channels], 0, 0, 0
    found = _PNG_BEGIN.unpack_from(file)[:-1]
    if found != wanted:
        raise BadImage(f"it begins with {found}; expected {wanted}")
    rows, missing = zlib.decompressobj(), height * (1 + width * channels)
    at, kind = _PNG_BEGIN.size, b""
    while kind != b"IEND":
        if at + _PNG_CHUNK.size > len(file):
            raise BadImage("it is cut short")
        length, kind = _PNG_CHUNK.unpack_from(file, at)
        if kind not in (b"IDAT", b"IEND"):
            raise BadImage(f"it has an unexpected chunk {kind!r}")
        at += _PNG_CHUNK.size + length + 4
        if kind == b"IDAT" and missing >= 0:
            try:
                missing -= len(rows.decompress(file[at - length - 4 : at - 4], missing + 1))
            except zlib.error as exc:
                raise BadImage(f"its rows cannot be decompressed: {exc}") from exc
    if at != len(file):
        raise BadImage(f"its chunks take {at} bytes, but it has {len(file)}")
    if missing or not rows.eof:
        raise BadImage("it has too few or too many rows")


def jpeg_size(file: memoryview) -> ImageSize:
    """Return the size of the image in an untrusted file.

    Raises:
        BadImage: If the file is not a baseline JPEG of 8 bits with a single scan. Further scans would cost time.
    """
    if bytes(file[:2]) != b"\xff\xd8":
        raise BadImage("it is not a JPEG")
    at, frames = 2, list[ImageSize]()
    while True:
        if at + 16 > len(file):
            raise BadImage("it is cut short")
        begin, marker, length = _JPEG_SEGMENT.unpack_from(file, at)
        if begin != 0xFF or length < 2:
            raise BadImage(f"it has no segment at byte {at}")
        if marker == _SOS:
            if len(frames) != 1 or file[at + 4] != frames[0][2]:
                raise BadImage(f"it has a scan of {file[at + 4]} components in the frames {frames}; expected all in one")
            return frames[0]
        if marker == _SOF0:
            bits, height, width, channels = _JPEG_FRAME.unpack_from(file, at + 4)
            if bits != 8 or frames:
                raise BadImage(f"its frame has {bits} bits and follows {len(frames)} others; expected one of 8 bits")
            frames.append((height, width, channels))
        elif marker not in _JPEG_OTHERS:
            raise BadImage(f"it has an unexpected segment {marker:#x}")
        at += 2 + length
