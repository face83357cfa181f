"""The messages of services: a call, its reply, and a publication to all subscribers of a topic.

The first frame has the prefix, with the number of the call, reply or publication as ``seq``, and a msgpack list of fields. The
last field is the *skeleton* of the payload, whose large parts are in the other frames (`rl4sys_zmq.wire.trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from rl4sys_zmq.errors import CallRefusalReason, PayloadError, ProtocolError, RefusalReason
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.frames import MAX_HEADER_BYTES, PREFIX_BYTES, pack_frames, read_prefix, unpack_plain
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.trees import pack_tree, unpack_tree

CALL, REPLY, PUBLICATION = 65, 66, 67
ANSWERED, FAILED = "", "failed"
"""The values of `Reply.code` in addition to those of `CallRefusalReason`."""

_CODES = frozenset({ANSWERED, FAILED, *CallRefusalReason})
MAX_NAME = 256


class Call(NamedTuple):
    """One request to a service.

    Attributes:
        number: Number of the call in its session, from 0. It stays the same if the call is sent again.
        session: Random number that identifies the caller's session.
        acked: The caller has received the replies to all calls with a lower number.
        timeout_ms: Time that the caller still waits for the reply, from this sending on; 0: it does not wait.
        once: True if the call must not run twice. A server that does not know the session refuses it.
    """

    number: int
    session: int
    acked: int
    timeout_ms: int
    once: bool
    method: str
    payload: Tree


class Reply(NamedTuple):
    """The reply of a service to the call of the same number and session.

    Attributes:
        server: Random number of this start of the server.
        code: Empty if `payload` is the result, ``failed`` if the callback raised, else a `CallRefusalReason`.
        detail: Description of the error. For ``failed`` it is the exception's class and text, separated by a line break.
        payload: The result; None if `code` is not empty.
    """

    number: int
    session: int
    server: int
    code: str
    detail: str
    payload: Tree


class Publication(NamedTuple):
    """A message of a service to all subscribers of a topic.

    Attributes:
        number: Number of the publication in its topic, from 1 since the server's start; 0 for a message without payload, which
            only reports `latest`.
        server: Random number of this start of the server.
        latest: Number of the topic's newest publication.
    """

    number: int
    server: int
    latest: int
    topic: str
    payload: Tree


def encode_call(call: Call) -> list[Frame]:
    """Return the frames of a call. Large arrays are not copied, so they must not change until the call has returned."""
    if not is_name(call.method):
        raise PayloadError("method", f"{call.method!r:.60} is not a valid name; expected 1 to {MAX_NAME} characters")
    return _frames(CALL, call, copy=False)


def encode_reply(reply: Reply) -> list[Frame]:
    """Return the frames of a reply, with copies of all arrays, because the server can send the reply again."""
    return _frames(REPLY, reply, copy=True)


def encode_publication(publication: Publication) -> list[Frame]:
    """Return the frames of a publication, with copies of all arrays, because later subscribers get the publication too."""
    check_topic(publication.topic)
    return _frames(PUBLICATION, publication, copy=True)


def check_topic(topic: object) -> None:
    """Raise `PayloadError` if a topic is not a valid name (`is_name`), or has a zero byte, which marks the end of a topic."""
    if not is_name(topic) or "\0" in str(topic):
        raise PayloadError("topic", f"{topic!r:.60} is not a valid name; expected 1 to {MAX_NAME} characters and no zero byte")


def check_size(frames: Sequence[Frame], limit: int) -> None:
    """Raise `PayloadError` if a frame has more than `limit` bytes. The receiver would close the connection at such a frame."""
    if len(frames) == 1 and len(frames[0]) <= limit:
        return
    largest = max([f.nbytes if isinstance(f, memoryview) else len(f) for f in frames])
    if largest > limit:
        raise PayloadError("payload", f"a part of {largest} bytes; the limit is {limit}. Send it in smaller parts, or compressed")


def is_name(value: object) -> bool:
    """Return True for a valid name of a method or topic: 1 to 256 characters that UTF-8 can encode."""
    if type(value) is not str or not 0 < len(value) <= MAX_NAME:
        return False
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def decode_call(frames: Sequence[Frame]) -> Call | Reply | Publication:
    """Return the call, reply or publication in frames that can come from an untrusted peer."""
    if not frames:
        raise ProtocolError(RefusalReason.FRAMES, "a message without frames")
    kind, number, _, _ = read_prefix(frames)
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(RefusalReason.KIND, f"message kind {kind} is not a call, reply or publication")
    cls, types = known
    fields = unpack_plain(frames[0][PREFIX_BYTES:])
    if type(fields) is not list or tuple(map(type, fields[:-1])) != types:
        raise ProtocolError(RefusalReason.MALFORMED, f"a message of kind {kind} does not have its {len(types) + 1} fields")
    *values, skeleton = fields
    if min(values[: types.count(int)]) < 0 or not (values[2] in _CODES if cls is Reply else is_name(values[-1])):
        raise ProtocolError(RefusalReason.MALFORMED, f"a field of a message of kind {kind} is invalid")
    message: Call | Reply | Publication = cls(number, *values, unpack_tree(skeleton, frames[1:]))
    return message


_KINDS: dict[int, tuple[Any, tuple[type, ...]]] = {
    CALL: (Call, (int, int, int, bool, str)),
    REPLY: (Reply, (int, int, str, str)),
    PUBLICATION: (Publication, (int, int, str)),
}
"""The class of each kind, and the types of its fields between the number and the payload."""


def _frames(kind: int, message: Call | Reply | Publication, *, copy: bool) -> list[Frame]:
    number, *fields, payload = message
    skeleton, body = pack_tree(payload, copy=copy)
    try:
        header: bytes = msgpack.packb([*fields, skeleton])
    except (ValueError, UnicodeEncodeError) as exc:  # a lone surrogate, or lists nested too deep
        raise PayloadError("payload", f"the value cannot travel: {exc}") from exc
    if len(header) > MAX_HEADER_BYTES:
        raise PayloadError("payload", f"the keys and small values need {len(header)} bytes; the limit is {MAX_HEADER_BYTES}")
    return pack_frames(kind, header, body, number)
