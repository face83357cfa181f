"""The three messages of services are equal after encoding and decoding."""

import os
import random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import CallRefusalReason, PayloadError, ProtocolError, RefusalReason
from rl4sys_zmq.wire.frames import PREFIX_BYTES, pack_frames, read_prefix
from rl4sys_zmq.wire.rpc import Call, Publication, Reply, check_size, decode_call, encode_call, encode_publication, encode_reply

from .strategies import TREES, assert_same

MUTATIONS = int(os.environ.get("RL4SYS_MUTATIONS", "20000"))
PAYLOAD = {
    "image": np.arange(70_000, dtype=np.uint8).reshape(100, 700),
    "state": (np.arange(6, dtype=">f4"), [1, -2, 3.5, None, True], b"raw" * 1000),
    "text": "ü" * 3000,
    "scalar": np.float32(2.5),
}
MESSAGES = {
    "call": encode_call(Call(7, 1 << 62, 5, 10_000, True, "act", PAYLOAD)),
    "reply": encode_reply(Reply(7, 1 << 62, 3, "", "", PAYLOAD)),
    "refusal": encode_reply(Reply(7, 1 << 62, 3, CallRefusalReason.BUSY, "later", None)),
    "publication": encode_publication(Publication(9, 3, 9, "obs", PAYLOAD)),
}
NUMBERS = st.integers(0, (1 << 63) - 1)
NAMES = st.text(min_size=1, max_size=20)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(0, 1 << 40), st.booleans(), NAMES, TREES)
def test_calls_come_back(number: Any, session: Any, acked: Any, timeout_ms: int, once: bool, method: Any, payload: Any) -> None:
    back = decode_call(encode_call(Call(number, session, acked, timeout_ms, once, method, payload)))
    assert isinstance(back, Call)
    assert (back.number, back.session, back.acked, back.timeout_ms) == (number, session, acked, timeout_ms)
    assert (back.once, back.method) == (once, method)
    assert_same(payload, back.payload)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "failed", *CallRefusalReason]), st.text(max_size=50), TREES)
def test_replies_come_back(number: Any, session: Any, server: Any, code: Any, detail: str, payload: Any) -> None:
    back = decode_call(encode_reply(Reply(number, session, server, code, detail, payload)))
    assert isinstance(back, Reply)
    assert (back.number, back.session, back.server, back.code, back.detail) == (number, session, server, code, detail)
    assert_same(payload, back.payload)


@given(NUMBERS, NUMBERS, NUMBERS, NAMES.filter(lambda name: "\0" not in name), TREES)
def test_notices_come_back(number: Any, server: Any, latest: Any, topic: Any, payload: Any) -> None:
    back = decode_call(encode_publication(Publication(number, server, latest, topic, payload)))
    assert isinstance(back, Publication)
    assert (back.number, back.server, back.latest, back.topic) == (number, server, latest, topic)
    assert_same(payload, back.payload)


def read(frames: Any) -> str:
    """Return the error code of a message, or an empty string if it can be decoded. Any other exception is a fault."""
    try:
        decode_call(frames)
    except ProtocolError as exc:
        return exc.code
    return ""


def forged(frames: Any, fields: bytes) -> list[Any]:
    """Return the same message with other fields and a correct checksum."""
    kind, number, *_ = read_prefix(frames)
    return pack_frames(kind, fields, frames[1:], number)


@pytest.mark.parametrize("kind", MESSAGES)
def test_changed_fields_under_a_right_checksum_are_read_or_refused(kind: str, seed: int) -> None:
    """Messages of a peer that knows the protocol: only bytes of the header differ, and the checksum is correct."""
    rng = random.Random(seed)
    frames = [bytes(f) for f in MESSAGES[kind]]
    fields, seen = frames[0][PREFIX_BYTES:], set()
    for _ in range(MUTATIONS // 10):
        bad = bytearray(fields)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        if rng.random() < 0.2:
            del bad[rng.randrange(len(bad)) :]
        seen.add(read(forged(frames, bytes(bad))))
    assert seen <= {"", RefusalReason.MALFORMED, RefusalReason.SHAPE, RefusalReason.DTYPE, RefusalReason.TOO_LARGE}
    assert RefusalReason.MALFORMED in seen


ODD: list[Any] = [None, True, -1, 1 << 64, 1.5, "", "x" * 300, b"x", [], {}]


@pytest.mark.parametrize("kind", MESSAGES)
def test_each_field_of_another_kind_is_refused(kind: str) -> None:
    frames = [bytes(f) for f in MESSAGES[kind]]
    fields = msgpack.unpackb(frames[0][PREFIX_BYTES:], strict_map_key=False)
    for place in range(len(fields) - 1):
        refused = 0
        for odd in ODD:
            try:
                header = msgpack.packb([*fields[:place], odd, *fields[place + 1 :]])
            except OverflowError:
                continue
            code = read(forged(frames, header))
            assert code in ("", RefusalReason.MALFORMED)
            refused += code != ""
        assert refused >= len(ODD) - 4
    assert read(forged(frames, msgpack.packb(fields[:-1]))) == RefusalReason.MALFORMED
    assert read(forged(frames, msgpack.packb({"a": 1}))) == RefusalReason.MALFORMED
    assert read([]) == RefusalReason.FRAMES


def test_what_the_other_side_would_refuse_is_not_written() -> None:
    for method in ("", "x" * 300):
        with pytest.raises(PayloadError, match="method"):
            encode_call(Call(0, 1, 0, 1, False, method, None))
        with pytest.raises(PayloadError, match="topic"):
            encode_publication(Publication(0, 1, 0, method, None))
    with pytest.raises(PayloadError, match="limit"):
        encode_call(Call(0, 1, 0, 1, False, "m", {f"{i}-{'k' * 30}": i for i in range(40_000)}))
    with pytest.raises(PayloadError, match="limit is 1000"):
        check_size(encode_call(Call(0, 1, 0, 1, False, "m", np.zeros(5000))), 1000)
