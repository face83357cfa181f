"""Messages to frames and back. Everything that is not exactly a message is refused."""

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgpack
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire import thread_messages as t
from rl4sys_zmq.wire.codec import decode_as, kinds_of
from rl4sys_zmq.wire.frames import MAX_BODY_FRAMES, PREFIX_BYTES, WRAPPERS, checksum, pack_frames
from rl4sys_zmq.wire.thread_messages import decode_thread_message

from .conftest import refusal

KINDS = (*get_args(m.Message), *get_args(t.ThreadMessage))
CLASSES = kinds_of(m.Message) | kinds_of(t.ThreadMessage)
Samples = dict[str, m.Message | t.ThreadMessage]
GOLDEN = Path(__file__).with_name("golden.json")
MAX_COUNT = 2**63 - 1
NOT_SENT = ("batch", "checked", "digests", "joined")

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
trees = st.recursive(
    scalars | st.binary(max_size=20),
    lambda t: st.lists(t, max_size=4) | st.dictionaries(st.text(max_size=8), t, max_size=4),
    max_leaves=10,
)
counts = st.integers(0, MAX_COUNT) | st.integers(0, 100)
hashes = st.integers(0, 2**64 - 1)
frames = st.lists(st.binary(max_size=100), max_size=5).map(tuple)


def field_strategy(cls: type, f: dataclasses.Field[Any]) -> Any:
    hint = get_type_hints(cls)[f.name]
    if f.name == "body":
        return frames
    if f.name == "count":
        return st.integers(0, 2**32 - 1)
    if hint is int:
        return hashes if f.name in ("digest", "seed") else (counts | st.just(-1)) if f.name == "max_policy_lag" else counts
    return {
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(max_size=40),
        bytes: st.binary(min_size=8, max_size=8),
        m.AnyBytes: st.binary(max_size=100),
        list[Any]: st.lists(trees, max_size=4),
        dict[str, Any]: st.dictionaries(st.text(max_size=8), trees, max_size=4),
    }[hint]


def strategy(cls: Any) -> Any:
    return st.builds(cls, **{f.name: field_strategy(cls, f) for f in dataclasses.fields(cls) if f.name not in NOT_SENT})


def signed(data: bytes | bytearray, body: tuple[Any, ...] = ()) -> list[bytes]:
    """Return frames of which the first has a correct checksum."""
    out = bytearray(data)
    struct.pack_into("<Q", out, 40, checksum(bytes(out), body))
    return [bytes(out), *body]


def with_header(message: Any, header: Any, body: Any = None) -> list[Any]:
    """Return the message with another header. Everything else is valid."""
    data = header if isinstance(header, bytes) else msgpack.packb(header, use_bin_type=True)
    body = tuple(getattr(message, "body", ())) if body is None else body
    seq, count = getattr(message, "first_seq", 0), getattr(message, "count", 0)
    if not isinstance(message, m.Submit):
        seq = count = 0
    return pack_frames(message.KIND, data, body, seq, count)


def header_of(message: Any) -> dict[str, Any]:
    header: dict[str, Any] = msgpack.unpackb(bytes(encode(message)[0])[PREFIX_BYTES:], strict_map_key=False)
    return header


def read(frames: Any, *, max_bytes: int = 1 << 32, verify: bool = True) -> Any:
    """Decode a message of any kind."""
    return decode_as(CLASSES, frames, max_bytes, verify)


def code_of(frames: Any, **kwargs: Any) -> RefusalReason:
    with pytest.raises(ProtocolError) as caught:
        read(frames, **kwargs)
    return caught.value.code


@pytest.mark.parametrize("cls", KINDS, ids=lambda c: c.__name__)
def test_every_message_comes_back_as_it_went(cls: type[Any]) -> None:
    @settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    @given(strategy(cls))
    def there_and_back(message: Any) -> None:
        frames = encode(message)
        assert read(frames) == message
        assert read([memoryview(f) for f in frames]) == message

    there_and_back()


def test_kinds_are_distinct_and_all_have_a_sample(samples: Samples) -> None:
    assert len({cls.KIND for cls in KINDS}) == len(KINDS) == len(samples)
    assert [type(s) for s in samples.values()] == list(KINDS)


def test_golden_vectors(samples: Samples) -> None:
    """The bytes on the wire are fixed. A change here is a new version of the protocol."""
    golden = json.loads(GOLDEN.read_text())
    assert set(golden) == set(samples)
    for name, message in samples.items():
        assert [bytes(f).hex() for f in encode(message)] == golden[name]["frames"], name
        assert read([bytes.fromhex(f) for f in golden[name]["frames"]]) == message
        assert golden[name]["kind"] == message.KIND


@pytest.mark.parametrize("cls", KINDS, ids=lambda c: c.__name__)
def test_headers_are_strict(cls: Any, samples: Samples) -> None:
    message = samples[cls.__name__]
    header = header_of(message)
    assert read(with_header(message, header)) == message
    assert code_of(with_header(message, {**header, "extra": 1})) is RefusalReason.MALFORMED
    bad: Any
    for bad in ([], None, 3, "text", list(header.items())):
        assert code_of(with_header(message, bad)) is RefusalReason.MALFORMED
    required = {f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING}
    hints = get_type_hints(cls)
    for key in header:
        without = {k: v for k, v in header.items() if k != key}
        if key in required:
            assert code_of(with_header(message, without)) is RefusalReason.MALFORMED, key
        else:
            assert read(with_header(message, without)) == dataclasses.replace(message, **{key: default_of(cls, key)})
        wrong: Any = {
            int: [True, None, "1", 1.0, -2, [1]],
            float: [True, None, "1", float("nan"), float("inf"), -float("inf")],
            bool: [0, 1, None, "true"],
            str: [None, 3, b"text", ["a"]],
            bytes: [None, "12345678", b"1234567", b"123456789"],
            m.AnyBytes: [None, "12345678", 3, []],
            list[Any]: [None, {}, "ab", 3],
            dict[str, Any]: [None, [], "ab", 3],
        }[hints[key]]
        for value in wrong:
            assert code_of(with_header(message, {**header, key: value})) is RefusalReason.MALFORMED, (key, value)
        if hints[key] is int and key not in ("digest", "seed"):
            assert code_of(with_header(message, {**header, key: 2**63})) is RefusalReason.RANGE, key


def default_of(cls: Any, name: str) -> Any:
    (f,) = [f for f in dataclasses.fields(cls) if f.name == name]
    return f.default if f.default is not dataclasses.MISSING else f.default_factory()  # type: ignore[operator]


def test_a_newer_minor_may_add_keys(samples: Samples) -> None:
    message = samples["Heartbeat"]
    first = bytearray(with_header(message, {**header_of(message), "mood": "good"})[0])
    first[5] = 1
    assert read(signed(first)) == message


def test_only_no_limit_is_negative(samples: Samples) -> None:
    message = samples["Welcome"]
    unlimited: Any = read(with_header(message, {**header_of(message), "max_policy_lag": -1}))
    assert unlimited.max_policy_lag == -1
    assert code_of(with_header(message, {**header_of(message), "max_policy_lag": -2})) is RefusalReason.MALFORMED


@pytest.mark.parametrize(
    "message",
    [
        m.Heartbeat(2**64),
        m.Heartbeat(-(2**63) - 1),
        m.StatusReply({"x": object()}),
        m.StatusReply({"x": {1, 2}}),
        m.StatusReply({"x": "\ud800"}),
        m.StatusReply({"x": "x" * (1 << 20)}),
        m.WeightsReply((b"",) * (MAX_BODY_FRAMES + 1)),
        m.Submit(-1, 1, 0, [], m.AnyBytes(b""), ()),
        m.Submit(0, 2**32, 0, [], m.AnyBytes(b""), ()),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_cannot_travel_is_refused_before_it_leaves(message: Any) -> None:
    with pytest.raises(ProtocolError):
        encode(message)


def test_the_prefix_is_the_documented_one(samples: Samples) -> None:
    first, *body = encode(samples["Submit"])
    magic, major, minor, kind, count, flags, header, size, seq, items, reserved, check = struct.unpack_from("<4s4B2I2Q2IQ", first)
    assert (magic, major, minor, kind, count, flags, reserved) == (b"R4SZ", 1, 0, 2, len(body), 0, 0)
    assert (header, size, seq, items) == (len(first) - 48, sum(map(len, body)), 7, 2)
    digests = b"".join(xxhash.xxh3_64_intdigest(f).to_bytes(8, "little") for f in body)
    assert check == xxhash.xxh3_64_intdigest(bytes(first[:40]) + bytes(first[48:]) + digests)


@pytest.mark.parametrize(
    ("offset", "form", "value", "code"),
    [
        (0, "<4s", b"R4SX", RefusalReason.MAGIC),
        (4, "<B", 2, RefusalReason.VERSION),
        (4, "<B", 0, RefusalReason.VERSION),
        (6, "<B", 99, RefusalReason.KIND),
        (6, "<B", 0, RefusalReason.KIND),
        (7, "<B", 1, RefusalReason.FRAMES),
        (8, "<I", 1, RefusalReason.FEATURE),
        (8, "<I", 0x8000, RefusalReason.FEATURE),
        (12, "<I", 0, RefusalReason.MALFORMED),
        (12, "<I", 2**32 - 1, RefusalReason.MALFORMED),
        (16, "<Q", 1, RefusalReason.MALFORMED),
        (16, "<Q", 2**64 - 1, RefusalReason.MALFORMED),
        (36, "<I", 1, RefusalReason.MALFORMED),
    ],
)
def test_a_wrong_prefix_is_refused_by_name(samples: Samples, offset: int, form: str, value: bytes | int, code: Any) -> None:
    first = bytearray(encode(samples["Heartbeat"])[0])
    struct.pack_into(form, first, offset, value)
    assert code_of(signed(first)) is code


def test_the_bodies_of_wrappers_are_not_looked_at(samples: Samples) -> None:
    for name in ("DeliverSegments", "PolicyPublished", "QuarantinedSegment"):
        first, *body = encode(samples[name])
        wrapper: Any = samples[name]
        assert first == encode(dataclasses.replace(wrapper, body=tuple(b[::-1] for b in body)))[0]
        assert samples[name].KIND in WRAPPERS
    assert len(WRAPPERS) == 3


def test_what_was_compared_before_need_not_be_compared_again(samples: Samples) -> None:
    first, body = encode(samples["Submit"])
    assert code_of([first, body[::-1]]) is RefusalReason.CHECKSUM
    message: Any = read([first, body[::-1]], verify=False)
    assert message.body == (body[::-1],)


def test_digests_that_are_known_are_not_made_again(samples: Samples) -> None:
    submit: Any = samples["Submit"]
    known = tuple(xxhash.xxh3_64_intdigest(f) for f in submit.body)
    assert encode(dataclasses.replace(submit, digests=known)) == encode(dataclasses.replace(submit, digests=()))
    assert encode(dataclasses.replace(submit, digests=(1,))) != encode(submit)


def test_flags_that_may_be_ignored_are(samples: Samples) -> None:
    first = bytearray(encode(samples["Heartbeat"])[0])
    struct.pack_into("<I", first, 8, 0xFFFF0000)
    assert read(signed(first)) == samples["Heartbeat"]


def test_a_number_that_nobody_can_count_to_is_refused(samples: Samples) -> None:
    head, *body = encode(samples["Submit"])
    first = bytearray(head)
    struct.pack_into("<Q", first, 24, 2**63)
    assert code_of(signed(first, tuple(body))) is RefusalReason.RANGE


def test_frames_and_sizes(samples: Samples) -> None:
    assert code_of([]) is RefusalReason.FRAMES
    for size in range(PREFIX_BYTES):
        assert code_of([bytes(size)]) is RefusalReason.MAGIC
    assert code_of([b""] * 3) is RefusalReason.MAGIC
    first = encode(samples["Heartbeat"])[0]
    assert code_of([first, b"more"]) is RefusalReason.FRAMES
    assert code_of([first], max_bytes=len(first) - 1) is RefusalReason.TOO_LARGE
    assert code_of(with_header(samples["Heartbeat"], header_of(samples["Heartbeat"]), (b"body",))) is RefusalReason.FRAMES
    assert code_of(with_header(samples["Heartbeat"], bytes((1 << 20) + 1))) is RefusalReason.TOO_LARGE


@pytest.mark.parametrize("cls", KINDS, ids=lambda c: c.__name__)
def test_every_single_changed_byte_is_noticed(cls: Any, samples: Samples) -> None:
    frames = [bytes(f) for f in encode(samples[cls.__name__])]
    wrapper = cls in (t.DeliverSegments, t.PolicyPublished, t.QuarantinedSegment)  # their bodies have checksums of their own
    for index, frame in enumerate(frames[:1] if wrapper else frames):
        for position in range(len(frame)):
            for change in (0x01, 0x80, 0xFF):
                bad = bytearray(frame)
                bad[position] ^= change
                code_of([*frames[:index], bytes(bad), *frames[index + 1 :]])
    for cut in range(len(frames[0])):
        code_of([frames[0][:cut], *frames[1:]])
    code_of([frames[0] + b"\0", *frames[1:]])
    if len(frames) > 1:
        code_of(frames[:-1])


@pytest.mark.parametrize("cls", KINDS, ids=lambda c: c.__name__)
def test_each_decoder_reads_the_messages_of_its_peers_only(cls: type[Any], samples: Samples) -> None:
    message = samples[cls.__name__]
    own, other = (decode, decode_thread_message) if cls in get_args(m.Message) else (decode_thread_message, decode)
    assert own(encode(message)) == message
    with refusal(RefusalReason.KIND):
        other(encode(message))


@pytest.mark.parametrize("cls", KINDS, ids=lambda c: c.__name__)
def test_each_message_goes_one_way(cls: type[Any]) -> None:
    directions = [base for base in (m.ToLearner, m.ToActor, t.ToLearnerThread, t.FromLearnerThread) if issubclass(cls, base)]
    assert len(directions) == 1
    assert not hasattr(object.__new__(cls), "__dict__")  # a base without slots would give each message one
