"""Images under some keys are sent as files, in both directions. Invalid files are refused."""

import io
import sys
from typing import Any

import numpy as np
import pytest
from kit import raising, until

from rl4sys_zmq.errors import CallFailed, ConfigError, PayloadError, ProtocolError, RefusalReason
from rl4sys_zmq.images import ImageFormat, has_pillow
from rl4sys_zmq.serving import ActionClient, ActionConfig, ActionServer, config, jpeg_to_mat, mat_to_jpeg
from rl4sys_zmq.serving import image_coding as p
from rl4sys_zmq.testing.check_transport import TransportUnderTest

pytest.importorskip("PIL")

WAIT_S = 20.0
PNG, JPEG = ImageFormat("png"), ImageFormat("jpeg", 80)


def gradient(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a smooth image, which JPEG changes little."""
    count = int(np.prod(shape))
    return (np.arange(count) * 200 // count).astype(np.uint8).reshape(shape)


def test_images_travel_coded_both_ways_and_published(transport: TransportUnderTest) -> None:
    frame, mask = gradient(48, 64, 3), gradient(2, 16, 16)
    seen: list[dict[str, Any]] = []

    def act(key: str, payload: dict[str, Any]) -> dict[str, Any]:
        payload["cam"][0, 0] = 0  # the array belongs to the callback, and is writeable
        seen.append(payload)
        return {"cam": payload["cam"], "mask": None}

    config = ActionConfig(
        transport.address(),
        ["show"],
        ["cam", "mask", "speed"],
        transport.address(),
        image_codecs={"cam": "jpeg:80", "mask": PNG},
        timeout_s=WAIT_S,
    )
    with ActionServer(config, lambda keys: {"cam": frame, "mask": mask, "speed": 2.5}, act) as server:
        server.start(threaded=True)
        with ActionClient(server.address, config) as client:
            obs = client.obs()
            assert list(obs) == ["cam", "mask", "speed"]
            assert (obs["mask"] == mask).all()
            assert obs["speed"] == 2.5
            assert not (obs["cam"] == frame).all()  # JPEG is lossy
            assert np.abs(obs["cam"].astype(int) - frame).mean() < 4
            answer = client.act("show", {"cam": frame, "note": "x"})
            assert seen[0]["note"] == "x"
            assert seen[0]["cam"].shape == answer["cam"].shape == frame.shape
            assert answer["mask"] is None  # a value that is not an array is sent unchanged
            client.register_obs_callback(seen.append)
            server.publish_obs({"cam": frame, "free": [1]})
            until(lambda: len(seen) == 2, "the observation")
            assert (seen[1]["cam"].shape, seen[1]["free"]) == (frame.shape, [1])
            with raising(PayloadError, "cannot become jpeg", path="payload['cam']"):
                client.act("show", {"cam": np.zeros((48, 64, 3), np.float32)})
            with raising(PayloadError, path="payload['free']"):
                server.publish_obs({"cam": frame, "free": object()})


def test_a_callback_whose_image_is_no_image_is_told(transport: TransportUnderTest) -> None:
    config = ActionConfig(transport.address(), [], ["cam"], image_codecs={"cam": "jpeg"}, timeout_s=WAIT_S)
    with ActionServer(config, lambda keys: {"cam": np.zeros((4, 4), np.uint8)}) as server:
        server.start(threaded=True)
        with ActionClient(server.address, config) as client, pytest.raises(CallFailed, match="8 pixels or more"):
            client.obs()


@pytest.mark.parametrize("array", [gradient(8, 8), gradient(8, 9, 1), gradient(3, 8, 8, 3), gradient(2, 2, 8, 8)])
def test_png_is_exact_in_any_shape(array: Any) -> None:
    plain, images = p.code_images({"a": array, "b": 1}, {"a": PNG, "c": PNG})
    assert plain == {"a": None, "b": 1}
    assert (p.read_images(images)["a"] == array).all()


def test_what_is_no_dict_or_has_no_codec_is_left() -> None:
    array = gradient(8, 8)
    for values, codecs in (([array], {"a": PNG}), ({"a": array}, {}), ({"a": "text"}, {"a": PNG})):
        assert p.code_images(values, codecs) == (values, {})


FILES = p.code_images({"a": gradient(8, 8)}, {"a": PNG})[1]["a"][2]
BOMB = p.code_images({"a": np.zeros((4096, 4096), np.uint8)}, {"a": PNG})[1]["a"][2]


@pytest.mark.parametrize(
    "images",
    [
        3,
        {"a": 3},
        {"a": ["png", [8, 8]]},
        {"a": ["gif", [8, 8], FILES]},
        {"a": ["png", [8, -8], FILES]},
        {"a": ["png", [8, 8.0], FILES]},
        {"a": ["png", [True, 8, 8], FILES]},
        {"a": ["png", [1] * 9, FILES]},
        {"a": ["png", [4, 4], FILES]},
        {"a": ["png", [8], FILES]},
        {"a": ["png", [8, 9], FILES]},
        {"a": ["png", [2, 8, 8], FILES]},
        {"a": ["jpeg", [8, 8], FILES]},
        {"a": ["png", [8, 8], FILES[:-3]]},
        {"a": ["png", [8, 8], FILES + b"more"]},
        {"a": ["png", [8, 8], "text"]},
        {"a": ["png", [8, 8], BOMB]},
        {"a": ["png", [65_000, 65_000], FILES]},
        {"a": ["png", [1 << 40, 8, 8], FILES]},
        {"a": ["png", [1 << 20, 8, 8], FILES], "b": ["png", [1 << 22, 8, 8], FILES]},
    ],
)
def test_what_is_no_image_is_refused(images: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        p.read_images(images)
    assert caught.value.code in (RefusalReason.MALFORMED, RefusalReason.SHAPE)


def test_what_would_be_too_much_is_not_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "MAX_PIXEL_BYTES", 100)
    p.code_images({"a": gradient(8, 8)}, {"a": PNG})
    with pytest.raises(PayloadError, match="128 bytes of images; the limit is 100"):
        p.code_images({"a": gradient(8, 8), "b": gradient(8, 8)}, {"a": PNG, "b": JPEG})
    with raising(ProtocolError, code=RefusalReason.SHAPE):
        p.read_images({"a": ["png", [2, 8, 8], FILES]})


def test_a_matrix_is_in_the_order_of_opencv() -> None:
    from PIL import Image

    mat = np.zeros((16, 24, 3), np.uint8)
    mat[:, :12, 0] = 200  # blue on the left half
    mat[:, 12:, 2] = 200  # red on the right half
    coded = mat_to_jpeg(mat)
    assert type(coded) is bytes
    with Image.open(io.BytesIO(coded)) as image:
        pixels = np.asarray(image)  # red, green, blue
        assert image.format == "JPEG" and pixels[8, 2, 2] > 150 and pixels[8, 21, 0] > 150
    again = jpeg_to_mat(coded)
    assert again.shape == mat.shape and again.dtype == np.uint8 and again.flags.writeable and again.flags.c_contiguous
    assert np.abs(again[:, :8].astype(int) - mat[:, :8]).max() < 20 and np.abs(again[:, 16:].astype(int) - mat[:, 16:]).max() < 20


@pytest.mark.parametrize("shape", [(16, 24), (16, 24, 1)])
def test_a_grey_matrix_comes_back_in_three_channels(shape: tuple[int, ...]) -> None:
    grey = gradient(*shape)
    again = jpeg_to_mat(memoryview(bytearray(mat_to_jpeg(grey))))  # type: ignore[arg-type]
    assert again.shape == (16, 24, 3) and again.flags.writeable
    assert (np.abs(again.astype(int) - grey.reshape(16, 24, 1)) < 8).all()


@pytest.mark.parametrize("mat", [np.zeros((16, 24, 3)), gradient(4, 4, 3), gradient(2, 16, 16), gradient(16, 24, 4), None, "x"])
def test_what_is_no_matrix_is_refused(mat: Any) -> None:
    with pytest.raises(PayloadError, match="img"):
        mat_to_jpeg(mat)


def test_bytes_that_are_no_jpeg_are_refused() -> None:
    good = mat_to_jpeg(gradient(64, 64, 3))
    huge = good[: (at := good.index(b"\xff\xc0")) + 5] + b"\xff\x00\xff\x00" + good[at + 9 :]
    small = good[: at + 5] + b"\x00\x00\x00\x40" + good[at + 9 :]
    for bad in (b"", b"nonsense", good[:100], good[: len(good) // 2], huge, small, None, 3, "text"):
        with pytest.raises(ProtocolError, match="cannot be decoded"):
            jpeg_to_mat(bad)  # type: ignore[arg-type]


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for module in (p, config):
        monkeypatch.setattr(module, "has_pillow", has_pillow.__wrapped__)  # it is imported again
    words = r"rl4sys-zmq\[images\]"
    for call in (jpeg_to_mat, mat_to_jpeg):
        with pytest.raises(ConfigError, match=words):
            call(None)  # type: ignore[arg-type]
    with raising(ConfigError, words, key="image_codecs"):
        ActionConfig(0, [], [], image_codecs={"cam": "jpeg"})
    with raising(ProtocolError, words, code=RefusalReason.FEATURE):
        p.read_images({"cam": ["png", [8, 8], b""]})
    ActionConfig(0, [], ["cam"])


def test_an_unknown_codec_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="expected jpeg"):
        ActionConfig(0, [], [], image_codecs={"cam": ImageFormat("jpeg", 101)})
