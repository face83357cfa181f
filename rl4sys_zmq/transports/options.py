"""The ZeroMQ socket options of each type of socket. They are set before the socket binds or connects, as libzmq requires.

These options are never set:

- IDENTITY: any peer can claim any identity.
- CONFLATE: it keeps only the last frame of a message.
- IMMEDIATE: it discards the queue on a disconnect.
- XPUB_NODROP: one slow subscriber stalls all others.
- HEARTBEAT_IVL: libzmq 4.3.5 aborts the process if a ping arrives or times out on a connection that is not being read because
  its queue is full (libzmq issues 3937 and 4767). The library's messages include heartbeats.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.liveness import RECONNECT_MAX_MS, RECONNECT_MS
from rl4sys_zmq.resource import with_descriptor
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import context

# It limits what an actor can send to a learner.
ROUTER_MAX_FRAME_BYTES = 4 * 1024 * 1024

# All weights of a large policy fit.
MAX_FRAME_BYTES = 256 * 1024 * 1024

Options = Mapping[int, int]

Secure = Callable[["zmq.Socket[bytes]"], None]
"""A function that sets the security options (CURVE, ZAP) of a socket. It is called before the socket binds or connects."""

_COMMON: Options = {
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 3_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}

_rng = random.SystemRandom()  # the global generator would give a forked actor the numbers of its parent

_BOUND: dict[str, Options] = {"router": {zmq.ROUTER_MANDATORY: 1}, "xpub": {zmq.XPUB_VERBOSER: 1}}


def configured(role: str, address: Address, options: Options, *, dials: bool, secure: Secure | None) -> zmq.Socket[bytes]:
    """Return a new ZeroMQ socket with all options set, to be bound or, if it `dials`, connected. `options` override the common
    ones.
    """
    try:
        raw = with_descriptor(lambda: context().socket(zmq.SocketType[role.upper()]))
    except zmq.ZMQError as exc:
        raise TransportError(f"cannot create a {role}: {exc.strerror}; raise the limit of open files with ulimit -n") from exc
    try:
        end: Options = _reconnect_options() if dials else {zmq.BACKLOG: 512}
        for option, value in {**_COMMON, **end, **_BOUND.get(role, {}), **options}.items():
            raw.setsockopt(option, value)
        if address.is_v6:
            raw.setsockopt(zmq.IPV6, 1)
        if secure is not None:
            secure(raw)
    except BaseException:
        raw.close(linger=0)
        raise
    return raw


def _reconnect_options() -> Options:
    # libzmq does not vary its intervals at random if ``RECONNECT_IVL_MAX`` is set. With equal options, all actors of a restarted
    # learner would try to reconnect at the same moments.
    return {
        zmq.CONNECT_TIMEOUT: 3_000,
        zmq.RECONNECT_IVL: _rng.randint(*RECONNECT_MS),
        zmq.RECONNECT_IVL_MAX: _rng.randint(*RECONNECT_MAX_MS),
    }
