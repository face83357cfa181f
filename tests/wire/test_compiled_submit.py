"""The compiled reader of a `Submit` accepts what the Python decoder accepts, and both read the same."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import native
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire.codec import decode_as, kinds_of

from .conftest import BOX, TWO, segment
from .test_fuzz import MAX_BYTES, MUTATIONS, Mutator

COMPILED = native.load()
KINDS = kinds_of(m.Message)
needs_extension = pytest.mark.skipif(COMPILED is None, reason=native.reason())


@pytest.fixture(params=["pure", pytest.param("compiled", marks=needs_extension)])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(native, "load", lambda: COMPILED if request.param == "compiled" else None)
    yield request.param


def received(first_seq: int, *steps: int, **options: Any) -> list[bytes]:
    packed = [pack_segment(segment(count, **options)) for count in steps]
    return [bytes(frame) for frame in encode(join_submit(first_seq, 99, packed))]


def simple_by_python(frames: list[bytes]) -> m.Submit | None:
    """Return the message that the frames stand for, if the compiled reader must accept it."""
    try:
        message = decode_as(KINDS, frames, MAX_BYTES, True)
        if len(frames) != 2 or not isinstance(message, m.Submit) or message.codings or len(message.layouts) != 1:
            return None
        batch = SegmentBatchReader(message)
        return None if batch.errors() or not all(batch.steps) else message
    except ProtocolError:
        return None


@needs_extension
def test_changed_messages_are_accepted_by_both_or_by_none(seed: int, samples: dict[str, Any]) -> None:
    assert COMPILED is not None
    mutator = Mutator(seed, {name: sample for name, sample in samples.items() if name in ("Submit", "Welcome", "ThreadReady")})
    mutator.submits += [received(7, 2, 3), received(0, 4, masks=True)] * 4
    accepted = 0
    for _ in range(MUTATIONS):
        frames = mutator.mutate()
        expected = simple_by_python(frames)
        read = COMPILED.read_submit(frames, MAX_BYTES, True)
        assert (read is None) is (expected is None), frames
        if expected is not None:
            first_seq, count, want_steps, layout, heads, steps, checks = read
            assert m.Submit(first_seq, count, want_steps, [layout], heads, (frames[1],)) == expected
            batch = SegmentBatchReader(expected)
            assert (steps, checks) == (batch.steps, batch.checks)
            accepted += 1
    assert accepted > MUTATIONS / 100


def test_a_limit_on_bytes_and_a_false_checksum_are_kept(form: str) -> None:
    frames = received(0, 2)
    decode(frames, max_bytes=sum(map(len, frames)))
    with pytest.raises(ProtocolError, match="limit"):
        decode(frames, max_bytes=sum(map(len, frames)) - 1)
    frames[1] = bytes([frames[1][0] ^ 1]) + frames[1][1:]
    with pytest.raises(ProtocolError, match="checksum"):
        decode(frames)
    decode(frames, verify=False)


def test_segments_of_joined_messages_are_those_of_each(form: str) -> None:
    messages = [decode(received(first, *steps)) for first, steps in [(3, (2,)), (4, (5, 1)), (6, (3,))]]
    batches = [SegmentBatchReader(one) for one in messages if isinstance(one, m.Submit)]
    assert [batch.is_simple for batch in batches] == [True] * 3
    joined = SegmentBatchReader.join(batches)
    assert (joined.first_seq, joined.steps) == (3, [2, 5, 1, 3])
    assert joined.checks == [check for batch in batches for check in batch.checks]
    schema = SegmentSchema(BOX, TWO, 8)
    for batch in (joined, *batches):
        batch.schema = schema
        assert not batch.errors(schema)
    for got, wanted in zip(joined.segments(), (one for batch in batches for one in batch.segments()), strict=True):
        for field in fields(got):
            np.testing.assert_equal(getattr(got, field.name), getattr(wanted, field.name))
        assert not got.rewards.flags.writeable
    alone = replace(joined.alone(2), want_steps=99)
    assert [bytes(frame) for frame in encode(alone)] == received(5, 1)


def test_a_segment_that_does_not_fit_is_refused_alone(form: str) -> None:
    batch = SegmentBatchReader(decode(received(0, 2, 9, 2)))  # type: ignore[arg-type]
    assert list(batch.errors(SegmentSchema(BOX, TWO, 8))) == [1]
    assert list(batch.errors(SegmentSchema(TWO, TWO, 8))) == [0, 1, 2]
