"""Compressed bodies: the same segments in fewer bytes. Invalid bodies cost no more than a refusal."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import segment_with

from rl4sys_zmq import zstd
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.batch import read_submit
from rl4sys_zmq.wire.coding import FREE_BYTES, plain_body
from rl4sys_zmq.wire.messages import Submit


def segment(steps: int, *, pixels: int = 0, seed: int = 0, masks: bool = False, mixed: bool = False) -> Segment:
    """Return a random walk, as observations often are, or images that are mostly sky."""
    rng = np.random.default_rng(seed)
    if pixels:
        obs = np.full((steps, pixels, pixels, 3), 135, np.uint8)
        obs[:, : pixels // 8] = rng.integers(0, 256, (steps, pixels // 8, pixels, 3), dtype=np.uint8)
    else:
        obs = np.cumsum(rng.normal(0.0, 0.01, (steps, 8)), axis=0).astype(np.float32)
    versions = np.full(steps, 7, np.uint64)
    versions[steps // 2 :] += np.uint64(mixed)
    return segment_with(
        steps,
        observations=obs,
        actions=rng.integers(0, 4, steps),
        rewards=rng.standard_normal(steps).astype(np.float32),
        log_probs=np.full(steps, -1.386, np.float32),
        versions=versions,
        masks=np.ones((steps, 4), np.bool_) if masks else None,
        episode_return=1.5,
        episode_length=steps,
    )


def submit(segments: list[Segment], *, coded: bool = True) -> Submit:
    return join_submit(5, 9, [pack_segment(s) for s in segments], coded=coded)


def code_of(message: Submit) -> RefusalReason:
    with pytest.raises(ProtocolError) as caught:
        plain_body(message)
    return caught.value.code


segments = st.builds(
    segment,
    st.integers(1, 300),
    pixels=st.sampled_from([0, 0, 0, 8, 32]),
    seed=st.integers(0, 5),
    masks=st.booleans(),
    mixed=st.booleans(),
)


@given(st.lists(segments, min_size=1, max_size=6))
def test_what_was_coded_is_read_as_it_was(given_segments: Any) -> None:
    plain, coded = submit(given_segments, coded=False), submit(given_segments)
    assert (coded.heads, coded.layouts, coded.count) == (plain.heads, plain.layouts, plain.count)
    body: Any = plain_body(coded)
    assert [bytes(f) for f in body] == [bytes(f) for f in plain.body]
    assert sum(map(len, coded.body)) <= sum(map(len, plain.body))
    received: Any = decode([bytes(f) for f in encode(coded)])
    for got, sent in zip(read_submit(received), given_segments, strict=True):
        assert isinstance(got, Segment)
        for name in ("observations", "actions", "rewards", "log_probs", "versions", "masks"):
            np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))


def test_it_is_shorter_or_not_coded_at_all() -> None:
    walk = [segment(200, seed=n) for n in range(8)]
    plain, coded = submit(walk, coded=False), submit(walk)
    assert coded.codings and sum(map(len, coded.body)) < 0.75 * sum(map(len, plain.body))
    image = segment(100, pixels=32)
    assert len(submit([image]).body[1]) < 0.3 * image.observations.nbytes
    random_bytes = np.random.default_rng(1).bytes(200 * 32)
    noise = dataclasses.replace(walk[0], observations=np.frombuffer(random_bytes, np.uint8).reshape(200, 32))
    assert not submit([noise] * 1, coded=True).codings or len(submit([noise]).body[0]) < len(submit([noise], coded=False).body[0])
    assert not submit([segment(1)]).codings  # too small for a gain


def test_zeros_do_not_promise_more_than_a_learner_believes() -> None:
    empty = dataclasses.replace(segment(40), observations=np.zeros((40, 256, 256, 1), np.uint8))
    coded = submit([empty])
    assert empty.observations.nbytes > FREE_BYTES
    assert not coded.codings
    assert read_submit(coded)


@given(st.data())
def test_codings_from_a_stranger_cost_a_refusal(data: Any) -> None:
    message = submit([segment(120), segment(80, pixels=32)])
    numbers: st.SearchStrategy[Any] = st.one_of(st.integers(-2, 300), st.integers(0, 1 << 63), st.none(), st.just([]))
    codings = [list(frame) for frame in message.codings]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from(codings))
        change = data.draw(st.sampled_from(["set", "drop", "add"]))
        if change == "set" and frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(numbers)
        elif change == "drop" and frame:
            frame.pop(data.draw(st.integers(0, len(frame) - 1)))
        else:
            frame.append(data.draw(numbers))
    forged = dataclasses.replace(message, codings=codings)
    try:
        read_submit(forged)
    except ProtocolError as exc:
        assert exc.code in (RefusalReason.MALFORMED, RefusalReason.TOO_LARGE, RefusalReason.SHAPE)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_damaged_bytes_cost_a_refusal_or_a_value(at: int, bits: int) -> None:
    message = submit([segment(200)])
    body = bytearray(message.body[0])
    body[at % len(body)] ^= bits
    try:
        plain = plain_body(dataclasses.replace(message, body=(bytes(body),)))
    except ProtocolError as exc:
        assert exc.code is RefusalReason.MALFORMED
    else:
        assert sum(map(len, plain)) == sum(size for size in message.codings[0][1::3])


def test_bombs_are_not_lit() -> None:
    message = submit([segment(200)])
    zeros = zstd.compress(bytes(32 << 20))

    def forged(body: Any, *numbers: Any) -> Any:
        return dataclasses.replace(message, body=(body,), codings=[list(numbers)])

    assert code_of(forged(zeros, len(zeros), 32 << 20, 1)) is RefusalReason.TOO_LARGE
    assert code_of(forged(zeros, len(zeros), 1 << 62, 1)) is RefusalReason.TOO_LARGE
    assert code_of(forged(zeros, len(zeros), 1000, 1)) is RefusalReason.MALFORMED
    assert code_of(forged(zeros, len(zeros), 1000, 3)) is RefusalReason.MALFORMED
    assert code_of(forged(zeros, len(zeros), 1000, 0)) is RefusalReason.MALFORMED
    assert code_of(dataclasses.replace(message, codings=[[], []])) is RefusalReason.MALFORMED
    assert code_of(dataclasses.replace(message, codings=["no"])) is RefusalReason.MALFORMED


def test_a_frame_expands_to_what_it_should_or_not_at_all() -> None:
    frame = zstd.compress(b"x" * 1000)
    assert zstd.expand(frame, 1000) == b"x" * 1000
    for wrong in (999, 1001, 0):
        with pytest.raises(zstd.DecompressionError):
            zstd.expand(frame, wrong)
    for broken in (b"", frame[:-1], frame + b"x", b"nonsense"):
        with pytest.raises(zstd.DecompressionError):
            zstd.expand(broken, 1000)
