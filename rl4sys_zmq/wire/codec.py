"""Encoding and decoding of messages, with a check of every field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from rl4sys_zmq import native
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.wire.frames import HEADER, MINOR, PREFIX_BYTES, HeaderLimits, pack_frames, pack_header, read_prefix, unpack_header
from rl4sys_zmq.wire.messages import AnyBytes, Frame, Message, Submit

if TYPE_CHECKING:
    from rl4sys_zmq.wire.thread_messages import ThreadMessage

M = TypeVar("M")

_IN_PREFIX = ("first_seq", "count")
"""Fields of `Submit` that are in the prefix, so that the receiver can read them without decoding the header."""

_NO_VALUES = ("batch", "body", "checked", "digests", "joined")
_U64 = 1 << 64
MAX_COUNT = (1 << 63) - 1
"""The largest integer in a message, except for hashes. The sum of two such integers fits in 64 bits."""
_UNBOUNDED = {"digest", "seed"}
Checker = Callable[[Any], bool]

_CHECKERS: dict[object, Checker] = {
    int: lambda v: type(v) is int and 0 <= v < _U64,
    float: lambda v: type(v) in (int, float) and math.isfinite(v),
    bool: lambda v: type(v) is bool,
    str: lambda v: type(v) is str,
    bytes: lambda v: type(v) is bytes and len(v) == 8,
    AnyBytes: lambda v: type(v) is bytes,
    list[Any]: lambda v: type(v) is list,
    dict[str, Any]: lambda v: type(v) is dict,
}
_SIGNED = {"max_policy_lag", "pacing_lag", "since"}


@immutable
class _FieldRule:
    name: str
    check: Checker
    required: bool


@immutable
class _MessageFields:
    header: tuple[_FieldRule, ...]
    body: bool
    limits: HeaderLimits


_FIELDS: dict[type[Any], _MessageFields] = {}


def _fields_of(cls: type[Any]) -> _MessageFields:
    known = _FIELDS.get(cls)
    if known is not None:
        return known
    hints = get_type_hints(cls)
    header = []
    for f in fields(cls):
        if f.name in _NO_VALUES or (cls is Submit and f.name in _IN_PREFIX):
            continue
        check = (lambda v: type(v) is int and -1 <= v < _U64) if f.name in _SIGNED else _CHECKERS[hints[f.name]]
        header.append(_FieldRule(f.name, check, f.default is MISSING and f.default_factory is MISSING))
    known = _FIELDS[cls] = _MessageFields(tuple(header), "body" in hints, getattr(cls, "LIMITS", HEADER))
    return known


def kinds_of(union: object) -> dict[int, type[Any]]:
    """Return the classes of a union of messages, by the number of each class (``KIND``)."""
    return {cls.KIND: cls for cls in get_args(union)}


_KINDS: dict[int, type[Message]] = kinds_of(Message)


def encode(message: Message | ThreadMessage) -> list[Frame]:
    """Return the frames to send for a message: prefix and msgpack header in the first, then the frames of its body.

    Raises:
        ProtocolError: If a field has a value that messages cannot contain.
    """
    shape = _fields_of(type(message))
    packed = pack_header({f.name: getattr(message, f.name) for f in shape.header}, shape.limits)
    body: tuple[Frame, ...] = message.body if shape.body else ()  # type: ignore[union-attr]
    if isinstance(message, Submit):
        return pack_frames(message.KIND, packed, body, message.first_seq, message.count, message.digests)
    return pack_frames(message.KIND, packed, body)


def decode(frames: Sequence[Frame], *, max_bytes: int = 1 << 32, verify: bool = True) -> Message:
    """Decode and check a message, which can come from an untrusted peer.

    Args:
        frames: All frames of the message.
        max_bytes: A larger message is refused before anything is read.
        verify: False if this process has already checked the checksum.

    Raises:
        ProtocolError: If the message is invalid. No other exception is raised.
    """
    if len(frames) == 2 and (compiled := native.load()) is not None:  # perhaps the usual form of a `Submit`
        read = compiled.read_submit(frames, max_bytes, verify)
        if read is not None:
            first_seq, count, want_steps, layout, heads, steps, checks = read
            return Submit(first_seq, count, want_steps, [layout], heads, (frames[1],), [], (), (steps, checks))
    return decode_as(_KINDS, frames, max_bytes, verify)


def decode_as(kinds: Mapping[int, type[M]], frames: Sequence[Frame], max_bytes: int, verify: bool) -> M:
    """Decode and check a message of one of the classes in `kinds`. Arguments and errors are those of `decode`."""
    if not frames:
        raise ProtocolError(RefusalReason.FRAMES, "the message has no frames")
    total = sum(len(f) for f in frames)
    if total > max_bytes:
        raise ProtocolError(RefusalReason.TOO_LARGE, f"the message has {total} bytes; the limit is {max_bytes}")
    kind, seq, count, minor = read_prefix(frames, verify=verify)
    cls = kinds.get(kind)
    if cls is None:
        raise ProtocolError(RefusalReason.KIND, f"message kind {kind} is unknown")
    shape = _fields_of(cls)
    if not shape.body and len(frames) > 1:
        raise ProtocolError(RefusalReason.FRAMES, f"{cls.__name__} has no body, but {len(frames) - 1} body frames were received")
    values = _fields(cls.__name__, shape, unpack_header(memoryview(frames[0])[PREFIX_BYTES:], shape.limits), minor)
    if cls is Submit:
        if seq > MAX_COUNT:
            raise ProtocolError(RefusalReason.RANGE, f"sequence number {seq}; the limit is {MAX_COUNT}")
        values.update(first_seq=seq, count=count)
    if shape.body:
        values["body"] = tuple(frames[1:])
    return cls(**values)


def _fields(name: str, shape: _MessageFields, header: Any, minor: int) -> dict[str, Any]:
    if type(header) is not dict:
        raise ProtocolError(RefusalReason.MALFORMED, f"the header of {name} is not a map")
    values: dict[str, Any] = {}
    for f in shape.header:
        if f.name not in header:
            if f.required:
                raise ProtocolError(RefusalReason.MALFORMED, f"{name} lacks {f.name!r}")
            continue
        value = header[f.name]
        if not f.check(value):
            raise ProtocolError(RefusalReason.MALFORMED, f"{name}.{f.name} is {value!r:.80}")
        if type(value) is int and value > MAX_COUNT and f.name not in _UNBOUNDED:
            raise ProtocolError(RefusalReason.RANGE, f"{name}.{f.name} is {value}; the limit is {MAX_COUNT}")
        values[f.name] = value
    if len(values) != len(header) and minor <= MINOR:
        unknown = sorted(set(header) - {f.name for f in shape.header})
        raise ProtocolError(RefusalReason.MALFORMED, f"{name} has the unknown key {unknown[0]!r:.80}")
    return values
