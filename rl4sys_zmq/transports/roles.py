"""The six roles, each with the options that make it safe. All options are set before the socket is bound or dials.

Never set: IDENTITY (any client may claim one), CONFLATE (keeps only the last frame of a message), IMMEDIATE (discards the
queue on a disconnect), XPUB_NODROP (one slow subscriber stalls all).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.binding import bind as bind_raw
from rl4sys_zmq.transports.binding import dial
from rl4sys_zmq.transports.context import context
from rl4sys_zmq.transports.sockets import Frames, Socket

__all__ = [
    "MAX_FRAME_BYTES",
    "ROUTER_MAX_FRAME_BYTES",
    "Secure",
    "dealer",
    "pull",
    "push",
    "read_subscription",
    "router",
    "sub",
    "xpub",
]

ROUTER_MAX_FRAME_BYTES = 4 * 1024 * 1024
"""The largest frame that an actor may send to a learner."""

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""The largest frame elsewhere: a snapshot of weights."""

Options = Mapping[int, int]

_NOTICE_MAX_BYTES = 4096  # an xpub receives nothing but topics, and the handshake

Secure = Callable[["zmq.Socket[bytes]"], None]
"""Sets security options (CURVE, ZAP) on a socket that is neither bound nor dialling yet."""

_COMMON: Options = {
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 3_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 6_000,
    zmq.HEARTBEAT_TTL: 10_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}
_RECONNECT_MS = (50, 500)
_RECONNECT_MAX_MS = (2_000, 4_000)  # an actor is back within 5 s of a healed network

_dice = random.SystemRandom()  # not the global generator: a forked actor would draw its parent's numbers


def router(
    bind: Address | str,
    *,
    send_hwm: int = 64,
    recv_hwm: int = 64,
    max_frame_bytes: int = ROUTER_MAX_FRAME_BYTES,
    secure: Secure | None = None,
) -> Socket:
    """A bound router: hears every dealer, and answers one by the routing id that leads each message.

    Args:
        bind: where to listen.
        send_hwm: messages queued for one peer before `Sent.FULL`. Over inproc the two sides' marks add up.
        recv_hwm: messages queued from one peer before its own queue fills.
        max_frame_bytes: a tcp or ipc peer that sends a larger frame loses it and its connection; inproc has no limit.
        secure: sets security options first.

    Raises:
        AddressInUse: when somebody else binds the address.
        TransportError: when it cannot be bound.
    """
    options: Options = {
        zmq.SNDHWM: send_hwm,
        zmq.RCVHWM: recv_hwm,
        zmq.MAXMSGSIZE: max_frame_bytes,
        zmq.ROUTER_MANDATORY: 1,
        zmq.BACKLOG: 512,
    }
    return _make(zmq.ROUTER, "router", options, bind=bind, secure=secure)


def dealer(
    connect: Address | str,
    *,
    send_hwm: int = 64,
    recv_hwm: int = 64,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    secure: Secure | None = None,
) -> Socket:
    """A dialling dealer: talks to one router, redials for ever; the router need not be there yet.

    Raises:
        TransportError: when nobody can ever listen at the address.
    """
    options: Options = {zmq.SNDHWM: send_hwm, zmq.RCVHWM: recv_hwm, zmq.MAXMSGSIZE: max_frame_bytes}
    return _make(zmq.DEALER, "dealer", options, connect=connect, secure=secure)


def xpub(bind: Address | str, *, send_hwm: int = 4, secure: Secure | None = None) -> Socket:
    """A bound publisher that sees every subscription come and go (read them with `recv` and `read_subscription`).

    Args:
        bind: where to listen.
        send_hwm: messages queued for one subscriber; beyond that *it* loses messages, silently, and nobody else does. With
            large messages this bounds memory: it counts messages, not bytes.
        secure: sets security options first.

    Raises:
        AddressInUse: when somebody else binds the address.
        TransportError: when it cannot be bound.
    """
    options: Options = {zmq.SNDHWM: send_hwm, zmq.MAXMSGSIZE: _NOTICE_MAX_BYTES, zmq.XPUB_VERBOSER: 1, zmq.BACKLOG: 512}
    return _make(zmq.XPUB, "xpub", options, bind=bind, secure=secure)


def sub(
    connect: Address | str, *, recv_hwm: int = 16, max_frame_bytes: int = MAX_FRAME_BYTES, secure: Secure | None = None
) -> Socket:
    """A dialling subscriber, at first to nothing: call `Socket.subscribe`.

    Raises:
        TransportError: when nobody can ever listen at the address.
    """
    return _make(zmq.SUB, "sub", {zmq.RCVHWM: recv_hwm, zmq.MAXMSGSIZE: max_frame_bytes}, connect=connect, secure=secure)


def push(
    *, bind: Address | str | None = None, connect: Address | str | None = None, send_hwm: int = 64, secure: Secure | None = None
) -> Socket:
    """The sending end of a pipeline, bound or dialling. Bound and without a peer it is full at once.

    Raises:
        AddressInUse: when somebody else binds the address.
        TransportError: when it cannot be bound or dialled, or not exactly one of `bind` and `connect` is given.
    """
    return _make(zmq.PUSH, "push", {zmq.SNDHWM: send_hwm}, bind=bind, connect=connect, secure=secure)


def pull(
    *,
    bind: Address | str | None = None,
    connect: Address | str | None = None,
    recv_hwm: int = 64,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    secure: Secure | None = None,
) -> Socket:
    """The receiving end of a pipeline, bound or dialling.

    Raises:
        AddressInUse: when somebody else binds the address.
        TransportError: when it cannot be bound or dialled, or not exactly one of `bind` and `connect` is given.
    """
    options: Options = {zmq.RCVHWM: recv_hwm, zmq.MAXMSGSIZE: max_frame_bytes}
    return _make(zmq.PULL, "pull", options, bind=bind, connect=connect, secure=secure)


def read_subscription(frames: Frames) -> tuple[bool, bytes] | None:
    """What an xpub's message says: (came rather than went, topic prefix); None for anything that is no such notice."""
    if len(frames) != 1 or bytes(frames[0][:1]) not in (b"\0", b"\1"):
        return None
    notice = bytes(frames[0])
    return notice[0] == 1, notice[1:]


def _make(
    kind: int,
    role: str,
    options: Options,
    *,
    bind: Address | str | None = None,
    connect: Address | str | None = None,
    secure: Secure | None = None,
) -> Socket:
    where = bind if bind is not None else connect
    if where is None or (bind is not None and connect is not None):
        raise TransportError(f"a {role} either binds an address or dials one; give exactly one of the two")
    address = Address.parse(where)
    try:
        raw = context().socket(kind)
    except zmq.ZMQError as exc:
        raise TransportError(f"cannot make a {role}: {exc.strerror}; raise the limit of open files with ulimit -n") from exc
    try:
        for option, value in {**_COMMON, **(_redialling() if bind is None else {}), **options}.items():
            raw.setsockopt(option, value)
        if address.is_v6:
            raw.setsockopt(zmq.IPV6, 1)
        if secure is not None:
            secure(raw)
        if bind is None:
            dial(raw, address)
            return Socket(raw, role, address, None)
        binding = bind_raw(raw, address)
        return Socket(raw, role, binding.address, binding)
    except BaseException:
        raw.close(linger=0)
        raise


def _redialling() -> Options:
    """Random per socket: libzmq's back-off doubles without jitter, so equal sockets would redial in one herd."""
    return {
        zmq.CONNECT_TIMEOUT: 3_000,
        zmq.RECONNECT_IVL: _dice.randint(*_RECONNECT_MS),
        zmq.RECONNECT_IVL_MAX: _dice.randint(*_RECONNECT_MAX_MS),
    }
