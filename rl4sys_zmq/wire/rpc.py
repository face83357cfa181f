"""The messages of services: a call, its reply, and a notice to everybody who subscribed.

Each is the 48-byte prefix (with the checksum of all of it), a msgpack list of fixed fields that ends with the payload's
skeleton, and the payload's frames (`rl4sys_zmq.wire.trees`). `Call.number` and `Publication.number` travel in the prefix as
``seq``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack

from rl4sys_zmq.errors import CallRefusal, PayloadError, ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.prefix import PREFIX_BYTES, pack_prefix, read_prefix, seal
from rl4sys_zmq.wire.trees import Tree, pack_tree, unpack_tree
from rl4sys_zmq.wire.values import MAX_HEADER_BYTES, unpack_plain

__all__ = [
    "Call",
    "Publication",
    "Reply",
    "check_size",
    "check_topic",
    "decode_call",
    "encode_call",
    "encode_publication",
    "encode_reply",
    "is_name",
]

CALL, REPLY, NOTICE = 65, 66, 67
ANSWERED, FAILED = "", "failed"
"""The codes of a reply besides those of `CallRefusal`."""

_CODES = frozenset({ANSWERED, FAILED, *CallRefusal})
MAX_NAME = 256
_INT = {int}


class Call(NamedTuple):
    """One question.

    Attributes:
        number: counts the calls of a session, from 0. The same number is the same call, sent again.
        session: a random number of the caller's connection.
        acked: the caller has the replies of all numbers below.
        timeout_ms: how long it goes on waiting, from when it sent this; 0: not at all.
        once: it must not run twice: a session that the server does not know is refused.
        method: what is called.
        payload: a tree.
    """

    number: int
    session: int
    acked: int
    timeout_ms: int
    once: bool
    method: str
    payload: Tree


class Reply(NamedTuple):
    """The answer to the call of the same number.

    Attributes:
        number: the call's.
        session: the call's.
        server: a random number of the server's life.
        code: empty when `payload` is the answer, ``failed`` when the callback raised, else a `CallRefusal`.
        detail: what went wrong: for ``failed`` the exception's class and text, parted by a line break.
        payload: a tree; None with a code.
    """

    number: int
    session: int
    server: int
    code: str
    detail: str
    payload: Tree


class Publication(NamedTuple):
    """What a server tells all subscribers of a topic.

    Attributes:
        number: counts the notices of this topic in this life of the server, from 1; 0 in one that only says `latest`.
        server: a random number of the server's life.
        latest: the newest number of the topic.
        topic: its name.
        payload: a tree.
    """

    number: int
    server: int
    latest: int
    topic: str
    payload: Tree


def encode_call(call: Call) -> list[Frame]:
    """The frames of a call. Its large arrays are not copied: they must not change until the call is over.

    Raises:
        PayloadError: when the payload can't travel.
    """
    if not is_name(call.method):
        raise PayloadError("method", f"{call.method!r:.60} is no name: 1 to {MAX_NAME} characters")
    skeleton, body = pack_tree(call.payload)
    fields = [call.session, call.acked, call.timeout_ms, call.once, call.method, skeleton]
    return _frames(CALL, call.number, fields, body)


def encode_reply(reply: Reply) -> list[Frame]:
    """The frames of a reply. Everything is copied: it may be sent again when the callback has gone on with its arrays.

    Raises:
        PayloadError: when the payload can't travel.
    """
    skeleton, body = pack_tree(reply.payload, copy=True)
    return _frames(REPLY, reply.number, [reply.session, reply.server, reply.code, reply.detail, skeleton], body)


def encode_publication(publication: Publication) -> list[Frame]:
    """The frames of a notice. Everything is copied: newcomers get it later.

    Raises:
        PayloadError: when the payload can't travel.
    """
    check_topic(publication.topic)
    skeleton, body = pack_tree(publication.payload, copy=True)
    return _frames(NOTICE, publication.number, [publication.server, publication.latest, publication.topic, skeleton], body)


def check_topic(topic: object) -> None:
    """Raises PayloadError for what cannot be the topic of a notice. A zero byte parts it from the channel on the wire."""
    if not is_name(topic) or "\0" in str(topic):
        raise PayloadError("topic", f"{topic!r:.60} is no name: 1 to {MAX_NAME} characters, no zero byte")


def check_size(frames: Sequence[Frame], limit: int) -> None:
    """Raises PayloadError when one of a message's frames has more than `limit` bytes: whoever receives it would hang up."""
    if len(frames) == 1 and len(frames[0]) <= limit:
        return
    largest = max([f.nbytes if isinstance(f, memoryview) else len(f) for f in frames])
    if largest > limit:
        raise PayloadError("payload", f"a part of {largest} bytes; the limit is {limit}: send it in pieces, or coded")


def is_name(value: object) -> bool:
    """Whether a method or a topic can be called so: by 1 to `MAX_NAME` characters of UTF-8."""
    if type(value) is not str or not 0 < len(value) <= MAX_NAME:
        return False
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def decode_call(frames: Sequence[Frame]) -> Call | Reply | Publication:
    """Reads one of the three from bytes that nobody vouches for.

    Raises:
        ProtocolError: with the code of the first rule that is broken; no other exception.
    """
    if not frames:
        raise ProtocolError(Refusal.FRAMES, "a message without frames")
    kind, _, _, _, number, _, _, _ = read_prefix(frames)
    read = _READERS.get(kind)
    if read is None:
        raise ProtocolError(Refusal.KIND, f"message kind {kind} is no call, reply or notice")
    fields = unpack_plain(frames[0][PREFIX_BYTES:])
    size, reader = read
    if type(fields) is not list or len(fields) != size:
        raise ProtocolError(Refusal.MALFORMED, f"a message of kind {kind} without its {size} fields")
    return reader(number, fields, frames[1:])


def _read_call(number: int, fields: list[Any], body: Sequence[Frame]) -> Call:
    session, acked, timeout_ms, once, method, skeleton = fields
    if not (_counts(session, acked, timeout_ms) and type(once) is bool and is_name(method)):
        raise ProtocolError(Refusal.MALFORMED, "a call with a field of another kind")
    return Call(number, session, acked, timeout_ms, once, method, unpack_tree(skeleton, body))


def _read_reply(number: int, fields: list[Any], body: Sequence[Frame]) -> Reply:
    session, server, code, detail, skeleton = fields
    if not (_counts(session, server) and type(code) is str and code in _CODES and type(detail) is str):
        raise ProtocolError(Refusal.MALFORMED, "a reply with a field of another kind")
    return Reply(number, session, server, code, detail, unpack_tree(skeleton, body))


def _read_publication(number: int, fields: list[Any], body: Sequence[Frame]) -> Publication:
    server, latest, topic, skeleton = fields
    if not (_counts(server, latest) and is_name(topic)):
        raise ProtocolError(Refusal.MALFORMED, "a notice with a field of another kind")
    return Publication(number, server, latest, topic, unpack_tree(skeleton, body))


_ColumnReader = Callable[[int, list[Any], Sequence[Frame]], Call | Reply | Publication]
_READERS: dict[int, tuple[int, _ColumnReader]] = {CALL: (6, _read_call), REPLY: (5, _read_reply), NOTICE: (4, _read_publication)}


def _frames(kind: int, number: int, fields: list[Any], body: list[Frame]) -> list[Frame]:
    try:
        header: bytes = msgpack.packb(fields)
    except (ValueError, UnicodeEncodeError) as exc:  # a lone surrogate, or lists too deep
        raise PayloadError("payload", f"not a value that can travel: {exc}") from exc
    if len(header) > MAX_HEADER_BYTES:
        raise PayloadError("payload", f"{len(header)} bytes of keys and small values; the limit is {MAX_HEADER_BYTES}")
    size = sum([f.nbytes if isinstance(f, memoryview) else len(f) for f in body]) if body else 0
    return [seal(pack_prefix(kind, len(body), len(header), size, number), header, body), *body]


def _counts(*values: Any) -> bool:
    """Whether all are numbers from 0 on; msgpack has none beyond 64 bits."""
    return set(map(type, values)) == _INT and min(values) >= 0
