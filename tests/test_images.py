"""Images as files: coded images are decoded again, and invalid files are refused before Pillow decodes them."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.images import BadImage, ImageFormat, decode_images, encode_images, image_size

Image = pytest.importorskip("PIL.Image")

PNG, JPEG = ImageFormat("png"), ImageFormat("jpeg", 90)
SIDES = st.integers(8, 40)
SHAPES = st.one_of(
    st.tuples(SIDES, SIDES),
    st.tuples(SIDES, SIDES, st.sampled_from([1, 3])),
    st.tuples(st.integers(1, 5), SIDES, SIDES),
    st.tuples(st.integers(1, 2), st.integers(1, 3), SIDES, SIDES, st.sampled_from([1, 3])),
)


def size_of(shape: Any) -> Any:
    size = image_size(shape)
    assert size is not None
    return size


def smooth(shape: Any, seed: int = 0) -> Any:
    """Return slow waves over all images, like those of a sky."""
    height, width, channels = size_of(shape)
    count = int(np.prod(shape)) // (height * width * channels)
    n, y, x, c = np.ogrid[:count, :height, :width, :channels]
    return (127 + 100 * np.sin((y + 2 * x) / 30 + n + c / 3 + seed)).astype(np.uint8).reshape(shape)


def file_of(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def saved(image: Any, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def refused(files: bytes, shape: tuple[Any, ...] = (16, 24, 3), form: str = "png") -> str:
    with pytest.raises(BadImage) as caught:
        decode_images(files, shape, size_of(shape), form)
    return str(caught.value)


@given(SHAPES, st.integers(0, 99), st.booleans())
def test_png_gives_back_each_pixel(shape: Any, seed: int, noisy: bool) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8) if noisy else smooth(shape, seed)
    back = decode_images(encode_images(pixels, size_of(shape), PNG), shape, size_of(shape), "png")
    np.testing.assert_array_equal(back, pixels)


@given(SHAPES, st.integers(0, 99))
def test_jpeg_gives_back_nearly_the_same(shape: Any, seed: int) -> None:
    pixels = smooth(shape, seed)
    back = decode_images(encode_images(pixels, size_of(shape), JPEG), shape, size_of(shape), "jpeg")
    assert back.shape == shape and back.dtype == np.uint8
    assert np.abs(back.astype(int) - pixels).mean() < 6.0


@pytest.mark.parametrize("quality", [1, 50, 100])
def test_any_quality_can_be_written_and_read(quality: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 200, 120, 3), dtype=np.uint8)
    files = encode_images(noise, (200, 120, 3), ImageFormat("jpeg", quality))
    assert decode_images(files, noise.shape, (200, 120, 3), "jpeg").shape == noise.shape


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((84, 84), (84, 84, 1)),
        ((84, 84, 1), (84, 84, 1)),
        ((84, 96, 3), (84, 96, 3)),
        ((4, 84, 84), (84, 84, 1)),
        ((2, 3, 84, 84, 3), (84, 84, 3)),
        ((3, 84, 84), (84, 84, 1)),
        ((84, 84, 4), None),
        ((84, 3), None),
        ((4, 84, 7, 3), None),
        ((70_000, 8), None),
        ((84,), None),
        ((), None),
    ],
)
def test_which_shapes_hold_images(shape: tuple[Any, ...], size: tuple[Any, ...] | None) -> None:
    assert image_size(shape) == size


def test_bytes_that_are_not_these_images() -> None:
    good = encode_images(smooth((16, 24, 3)), (16, 24, 3), PNG)
    grey, other = smooth((16, 24)), smooth((24, 16, 3))
    assert "missing" in refused(b"")
    assert "missing" in refused(good, (2, 16, 24, 3))
    assert "follow" in refused(good + b"x")
    assert "beyond" in refused(good[:-1])
    assert "too short for a PNG" in refused(file_of(b"nonsense"))
    for wrong in (other, grey):
        assert "begins with" in refused(encode_images(wrong, size_of(wrong.shape), PNG))
    assert "begins with" in refused(encode_images(smooth((16, 24, 3)), (16, 24, 3), JPEG))
    assert "not a JPEG" in refused(good, form="jpeg")
    assert "frame is" in refused(encode_images(other, (24, 16, 3), JPEG), form="jpeg")
    assert "frame is" in refused(encode_images(grey, (16, 24, 1), JPEG), form="jpeg")
    palette = saved(Image.fromarray(smooth((16, 24, 3))).quantize(), "PNG")
    assert "begins with" in refused(file_of(palette))


def test_what_costs_more_than_its_pixels_is_never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.fromarray(smooth((16, 24, 3)))
    png = saved(image, "PNG")
    text = b"zTXtkey\0\0" + zlib.compress(bytes(1 << 20))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    progressive, jpeg = saved(image, "JPEG", progressive=True), saved(image, "JPEG")
    exif = jpeg[:2] + b"\xff\xe1\x00\x08Exif\0\0" + jpeg[2:]
    scan = jpeg.index(b"\xff\xda")
    one_component = jpeg[:scan] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + jpeg[scan + 14 :]
    huge = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBBI", 13, b"IHDR", 1 << 31, 1 << 31, 8, 2, 0, 0, 0, 0) + png[33:]

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Image, "open", never)
    assert "chunk b'zTXt'" in refused(file_of(png[:33] + chunk + png[33:]))
    assert "begins with" in refused(file_of(huge))
    assert "segment 0xc2" in refused(file_of(progressive), form="jpeg")
    assert "segment 0xe1" in refused(file_of(exif), form="jpeg")
    assert "scan of 1" in refused(file_of(one_component), form="jpeg")


def test_half_a_jpeg_is_none() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    jpeg = encode_images(pixels, (64, 64, 3), JPEG)[4:]
    assert "cannot be decoded" in refused(file_of(jpeg[: len(jpeg) // 2]), (64, 64, 3), "jpeg")
    assert "cut short" in refused(file_of(jpeg[:200]), (64, 64, 3), "jpeg")


def test_too_few_and_too_many_compressed_rows() -> None:
    def png(rows: bytes) -> bytes:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        head = chunk(b"IHDR", struct.pack(">IIBBBBB", 24, 16, 8, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")

    row = bytes(1 + 24 * 3)
    assert not decode_images(file_of(png(row * 16)), (16, 24, 3), (16, 24, 3), "png").any()
    assert "too few" in refused(file_of(png(row * 3)))
    assert "too many" in refused(file_of(png(row * 100_000)))


@given(st.sampled_from(["png", "jpeg"]), st.data())
def test_damaged_files_are_refused_or_are_images(form: Any, data: Any) -> None:
    shape = (2, 16, 24, 3)
    files = bytearray(encode_images(smooth(shape), (16, 24, 3), ImageFormat(form)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(files) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "double"])):
            case "flip":
                files[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del files[at : at + data.draw(st.integers(1, 9))]
            case _:
                files[at:at] = files[at : at + 40]
        if not files:
            break
    try:
        pixels = decode_images(bytes(files), shape, (16, 24, 3), form)
    except BadImage:
        return
    assert pixels.shape == shape and pixels.dtype == np.uint8
