"""Encoding and decoding of images in payloads, and of single images in OpenCV's order."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, PayloadError, ProtocolError, RefusalReason
from rl4sys_zmq.images import NEEDS_PILLOW, BadImage, ImageFormat, decode_images, encode_images, has_pillow, image_size, jpeg_size
from rl4sys_zmq.values.spaces import MAX_DIMENSIONS
from rl4sys_zmq.values.trees import Tree

MAX_PIXEL_BYTES = 256 * 1024 * 1024
"""Largest size of all decoded images of one payload, in bytes."""

_LENGTH_BYTES = 4
"""The size of the length before each file of `encode_images`."""


def mat_to_jpeg(img: NDArray[np.uint8]) -> bytes:
    """Encode an image as a JPEG file of quality 95, as agentlace does. `ActionConfig.image_codecs` encodes images in payloads.

    Args:
        img: uint8 ``[height, width, 3]`` in OpenCV's order (blue, green, red), or ``[height, width]`` or ``[height, width, 1]``.

    Raises:
        PayloadError: If the array is not an image, or is smaller than 8 pixels in height or width.
        ConfigError: If Pillow is not installed.
    """
    _require_pillow()
    image = np.asarray(img)
    size = image_size(image.shape)
    if image.dtype != np.uint8 or size is None or prod(size) != image.size:
        raise PayloadError("img", f"{image.dtype} of shape {list(image.shape)} is not one image of uint8 with 1 or 3 channels")
    return encode_images(image.reshape(size)[:, :, ::-1], size, ImageFormat("jpeg", 95))[_LENGTH_BYTES:]


def jpeg_to_mat(buf: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG file of `mat_to_jpeg` or of OpenCV. The bytes can come from an untrusted peer.

    Args:
        buf: A baseline JPEG file in grey or colour.

    Returns:
        A new array, uint8 ``[height, width, 3]`` in OpenCV's order (blue, green, red). Grey is repeated three times.

    Raises:
        ProtocolError: If the bytes are not a baseline JPEG file, or the image is larger than `MAX_PIXEL_BYTES`.
        ConfigError: If Pillow is not installed.
    """
    _require_pillow()
    try:
        file = bytes(memoryview(buf))
        size = jpeg_size(memoryview(file))
        if image_size(size) != size or prod(size) > MAX_PIXEL_BYTES:
            raise BadImage(f"height, width and channels are {size}, which is invalid or too large")
        pixels = decode_images(len(file).to_bytes(_LENGTH_BYTES, "little") + file, size, size, "jpeg")
    except (BadImage, TypeError, OverflowError) as exc:
        raise ProtocolError(RefusalReason.MALFORMED, f"buf cannot be decoded: {exc}") from exc
    return np.ascontiguousarray(np.broadcast_to(pixels[:, :, ::-1], (*size[:2], 3)))


def _require_pillow() -> None:
    if not has_pillow():
        raise ConfigError(NEEDS_PILLOW, key="img")


def code_images(values: Tree, codecs: Mapping[str, ImageFormat]) -> tuple[Tree, dict[str, Tree]]:
    """Encode the images under the keys that have a codec. Return the other values, and the encoded images by key."""
    if not isinstance(values, dict) or not codecs:
        return values, {}
    plain, images, total = dict(values), {}, 0
    for key, codec in codecs.items():
        array = values.get(key)
        if not isinstance(array, np.ndarray):
            continue
        path = f"payload[{key!r}]"
        size = image_size(array.shape)
        if array.dtype != np.uint8 or size is None or not array.size:
            raise PayloadError(
                path,
                f"{array.dtype} of shape {list(array.shape)} cannot become {codec.format}: images are uint8, "
                "[..., height, width, 1 or 3] or [..., height, width], with 8 pixels or more in height and width",
            )
        total += array.nbytes
        if total > MAX_PIXEL_BYTES:
            raise PayloadError(path, f"{total} bytes of images; the limit is {MAX_PIXEL_BYTES}")
        plain[key], images[key] = None, [codec.format, list(array.shape), encode_images(array, size, codec)]
    return plain, images


def read_images(images: Tree) -> dict[str, Tree]:
    """Decode images that `code_images` has encoded, and return them by key. The bytes can come from an untrusted peer."""
    if not isinstance(images, dict):
        raise ProtocolError(RefusalReason.MALFORMED, "the images are not a dict")
    if images and not has_pillow():
        raise ProtocolError(RefusalReason.FEATURE, NEEDS_PILLOW)
    out, total = {}, 0
    for key, coded in images.items():
        match coded:
            case ["png" | "jpeg" as form, [*shape], bytes() as files] if _is_shape(shape):
                total += prod(shape)
            case _:
                raise ProtocolError(RefusalReason.MALFORMED, f"{key!r:.60} is not an encoded image")
        size = image_size(shape)
        if size is None or total > MAX_PIXEL_BYTES:
            raise ProtocolError(RefusalReason.SHAPE, f"{key!r:.60}: images of shape {shape!r:.60} are invalid or too large")
        try:
            out[key] = decode_images(files, shape, size, form)
        except BadImage as exc:
            raise ProtocolError(RefusalReason.MALFORMED, f"{key!r:.60}: {exc}") from exc
    return out


def _is_shape(shape: list[Tree]) -> bool:
    return len(shape) <= MAX_DIMENSIONS and all(type(n) is int and n > 0 for n in shape)
