"""Columns of images in a message: they are read unchanged, and no pixel is decoded where sizes are enough."""

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import segment_with

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import ImageFormat, has_pillow
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, decode, encode, join_submit, pack_segment, read_submit, with_images
from rl4sys_zmq.wire.coding import MAX_IMAGE_BYTES, MAX_PLAIN_BYTES, EncodedImages, is_shorter

pytest.importorskip("PIL")

ROW = (64, 64, 3)
SCHEMA = SegmentSchema(BoxSpace(ROW, "|u1", 0.0, 255.0), DiscreteSpace(4), 1000)
PNG, JPEG = ImageFormat("png"), ImageFormat("jpeg")


def segment(steps: int = 8, *, row: Any = ROW, seed: int = 0, masks: bool = False) -> Segment:
    """Return a segment of slow waves: 8 steps take 108 KiB, 4 less than a large column has."""
    waves = np.sin(np.arange(np.prod(row)) / 70 + np.arange(steps + 1)[:, None] + seed)
    return segment_with(
        steps,
        "truncated",
        observations=(127 + 100 * waves).astype(np.uint8).reshape(steps + 1, *row),
        actions=np.arange(steps) % 4,
        rewards=np.full(steps, seed, np.float32),
        versions=np.full(steps, 7, np.uint64),
        masks=np.ones((steps + 1, 4), np.bool_) if masks else None,
        segment_index=seed,
        episode_return=1.5,
        episode_length=steps,
    )


def submit(segments: Any, codec: Any = PNG, *, coded: bool = False) -> Any:
    return join_submit(5, 9, [with_images(pack_segment(s), codec) for s in segments], coded=coded)


def forged(message: Any, frame: int, files: bytes) -> Any:
    """Return the message with other files in place of those of one frame."""
    codings = [list(numbers) for numbers in message.codings]
    codings[frame][0] = len(files)
    body = list(message.body)
    body[frame] = files
    return dataclasses.replace(message, body=tuple(body), codings=codings, digests=())


def same(a: Segment, b: Segment, *names: str) -> None:
    for name in names or ("observations", "actions", "rewards", "log_probs", "versions", "masks"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


shapes = st.sampled_from([(64, 64), (64, 64, 1), (64, 64, 3), (4, 32, 32), (2, 32, 32, 3)])


@settings(max_examples=40)
@given(shapes, st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=4), st.booleans())
def test_png_arrives_as_it_was(row: Any, given_segments: Any, coded: bool) -> None:
    sent = [segment(steps, row=row, seed=n, masks=masks) for n, (steps, masks) in enumerate(given_segments)]
    message = submit(sent, coded=coded)
    plain = join_submit(5, 9, [pack_segment(s) for s in sent])
    assert (message.heads, message.layouts) == (plain.heads, plain.layouts)
    received: Any = decode([bytes(frame) for frame in encode(message)])
    for got, was in zip(read_submit(received), sent, strict=True):
        assert isinstance(got, Segment) and not got.observations.flags.writeable
        same(got, was)


def test_jpeg_is_shorter_still_and_changes_only_pixels() -> None:
    sent = [segment(seed=1), segment(30, seed=2)]
    message = submit(sent, JPEG)
    assert sum(map(len, message.body)) < 0.6 * sum(map(len, submit(sent).body)) < 0.6 * sum(s.observations.nbytes for s in sent)
    for got, was in zip(read_submit(message), sent, strict=True):
        assert isinstance(got, Segment)
        same(got, was, "actions", "rewards", "log_probs", "versions")
        assert np.abs(got.observations.astype(int) - was.observations).mean() < 10.0
    assert SegmentBatchReader(message).checks == SegmentBatchReader(join_submit(5, 9, [pack_segment(s) for s in sent])).checks


def test_only_large_images_are_coded() -> None:
    small, noise = segment(4), np.random.default_rng(0).integers(0, 256, (9, *ROW), dtype=np.uint8)
    for odd in (small, dataclasses.replace(segment(), observations=noise), segment(8, row=(4096, 3))):
        packed = pack_segment(odd)
        assert with_images(packed, PNG) is packed
    floats = dataclasses.replace(segment(), observations=np.zeros((9, *ROW), np.float32))
    assert with_images(pack_segment(floats), JPEG).images is None
    packed = with_images(pack_segment(segment()), PNG)
    assert packed.images is not None and with_images(packed, PNG) is packed
    assert not submit([small]).codings


@pytest.mark.parametrize("codec", [PNG, ImageFormat("jpeg", 1)])
@pytest.mark.parametrize("row", [(512, 512), (512, 512, 3)])
def test_a_learner_believes_even_images_of_one_colour(codec: Any, row: tuple[Any, ...]) -> None:
    blank = dataclasses.replace(segment(9, row=row), observations=np.zeros((10, *row), np.uint8))
    message = submit([blank], codec)
    assert message.codings
    assert isinstance(read_submit(message)[0], Segment)


def test_more_than_a_learner_believes_is_not_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_shorter(100, 25_600) and not is_shorter(100, 25_601) and not is_shorter(96, 100)
    monkeypatch.setattr("rl4sys_zmq.wire.segments.MAX_IMAGE_BYTES", 100_000)
    packed = pack_segment(segment())
    assert with_images(packed, PNG) is packed
    assert MAX_IMAGE_BYTES < MAX_PLAIN_BYTES


def test_sizes_are_all_that_a_gateway_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    message: Any = decode([bytes(frame) for frame in encode(submit([segment(), segment(2), segment(20)]))])

    def never(*args: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(EncodedImages, "decode", never)
    batch = SegmentBatchReader(message)
    assert batch.has_images and batch.errors(SCHEMA) == {}
    assert batch.oldest(1, 0) == [7, 7, 7]
    other = SegmentSchema(BoxSpace((32, 32, 3), "|u1", 0.0, 255.0), DiscreteSpace(4), 1000)
    assert {error.code for error in batch.errors(other).values()} == {RefusalReason.SPEC}
    with pytest.raises(AssertionError, match="decoded"):
        batch.segments()


def test_released_images_are_decoded_again() -> None:
    batch = SegmentBatchReader(submit([segment(seed=n) for n in range(3)], PNG))
    first = [np.array(one.observations) for one in batch.segments()]
    batch.release_images()
    assert not any(group.columns[0].large for group in batch._groups)
    assert encode(batch.alone(1))
    assert all(np.array_equal(a, b.observations) for a, b in zip(first, batch.segments(), strict=True))


def test_what_is_poisoned_is_kept_as_it_came() -> None:
    sent = [segment(seed=n) for n in range(3)]
    message = forged(submit(sent), 2, b"\x10\0\0\0not an image, no")
    batch = SegmentBatchReader(message)
    (place, reason), *rest = batch.decode_images().items()
    assert (place, rest) == (1, []) and reason.startswith("image 1 of 9, png: 16 bytes are too short for a PNG")
    got = batch.segments()
    same(got[0], sent[0])
    same(got[2], sent[2])
    same(got[1], sent[1], "actions", "rewards", "log_probs")
    assert got[1].observations.shape == sent[1].observations.shape and not got[1].observations.any()
    first, second, third = read_submit(message)
    assert isinstance(first, Segment) and isinstance(third, Segment)
    assert isinstance(second, ProtocolError) and second.code is RefusalReason.MALFORMED
    letter: Any = decode([bytes(frame) for frame in encode(batch.alone(1))])
    assert letter.body[1] == message.body[2] and letter.first_seq == 6
    (error,) = read_submit(letter)
    assert isinstance(error, ProtocolError) and reason in str(error)
    assert SegmentBatchReader(letter).checks == batch.checks[1:2]


@pytest.mark.parametrize("codec", [None, PNG])
def test_any_segment_can_be_kept_alone(codec: Any) -> None:
    sent = [segment(2), segment(20, masks=True), segment(2, masks=True), segment(30)]
    packed = [pack_segment(s) if codec is None else with_images(pack_segment(s), codec) for s in sent]
    batch = SegmentBatchReader(join_submit(5, 9, packed, coded=True))
    for place, was in enumerate(sent):
        letter = batch.alone(place)
        kept: Any = decode([bytes(frame) for frame in encode(letter)])
        (got,) = read_submit(kept)
        assert isinstance(got, Segment)
        same(got, was)
        assert bool(letter.codings) == (codec is not None and was.steps > 4)


def refusal(message: Any) -> RefusalReason:
    with pytest.raises(ProtocolError) as caught:
        SegmentBatchReader(message)
    return caught.value.code


def test_images_where_none_can_be() -> None:
    message = submit([segment()])
    files, frame = message.body[1], message.codings[1]

    def numbered(*codings: Any, body: Any = None) -> Any:
        return dataclasses.replace(message, codings=[list(c) for c in codings], body=body or message.body, digests=())

    blob = len(message.body[0])
    as_it_is = [blob, blob, 0]
    assert refusal(numbered([blob, blob, 16], frame)) is RefusalReason.MALFORMED
    assert refusal(numbered(as_it_is, [*frame[:2], 48])) is RefusalReason.MALFORMED
    assert refusal(numbered(as_it_is, [frame[0] - 8, frame[1] - 8, 16, 8, 8, 0])) is RefusalReason.MALFORMED
    assert refusal(numbered(as_it_is, [frame[0], frame[1] + 1, 16])) is RefusalReason.SHAPE
    assert refusal(numbered(as_it_is, [frame[0], 0, 16])) is RefusalReason.SHAPE
    assert refusal(numbered(as_it_is, [frame[0], 1 << 40, 16])) is RefusalReason.TOO_LARGE
    layouts = [message.layouts[0].replace("o|u1:64x64x3", "o|u1:12288")]
    assert refusal(dataclasses.replace(message, layouts=layouts)) is RefusalReason.SHAPE
    layouts = [message.layouts[0].replace("o|u1:64x64x3", "o<f4:32x32x3")]
    assert refusal(dataclasses.replace(message, layouts=layouts)) is RefusalReason.SHAPE
    bomb = forged(message, 1, bytes(files[:100]))
    assert SegmentBatchReader(bomb).decode_images().keys() == {0}


@given(st.data())
def test_codings_from_a_stranger_cost_a_refusal_or_a_segment(data: Any) -> None:
    message = submit([segment(), segment(2), segment(10)], coded=True)
    codings = [list(frame) for frame in message.codings]
    numbers = st.one_of(st.integers(-2, 300), st.integers(0, 1 << 63), st.sampled_from([16, 32, 48]), st.none())
    for _ in range(data.draw(st.integers(1, 3))):
        frame = data.draw(st.sampled_from(codings))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(numbers)
    body = list(message.body)
    if data.draw(st.booleans()):
        files = bytearray(body[1])
        files[data.draw(st.integers(0, len(files) - 1))] ^= data.draw(st.integers(1, 255))
        body[1] = bytes(files)
    try:
        found = read_submit(dataclasses.replace(message, codings=codings, body=tuple(body), digests=()))
    except ProtocolError as exc:
        assert exc.code in (RefusalReason.MALFORMED, RefusalReason.TOO_LARGE, RefusalReason.SHAPE)
    else:
        assert len(found) == 3


def test_without_pillow_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    message = submit([segment()])
    monkeypatch.setitem(sys.modules, "PIL", None)
    has_pillow.cache_clear()
    try:
        batch = SegmentBatchReader(message)
        assert batch.errors(SCHEMA) == {}
        with pytest.raises(ProtocolError, match=r"rl4sys-zmq\[images\]") as caught:
            batch.segments()
    finally:
        has_pillow.cache_clear()
    assert caught.value.code is RefusalReason.FEATURE


def test_who_does_not_code_images_does_not_load_pillow() -> None:
    code = (
        "import sys\nfrom rl4sys_zmq import AgentConfig, RL4SysAgent\n"
        "AgentConfig(client_id='x', compression='zstd')\nsys.exit('PIL' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
