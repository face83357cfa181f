"""The class `Socket`, with a function that creates a ZeroMQ socket of each role with all its options.

The options are set before the socket binds or connects, as libzmq requires. These are never set:

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
from typing import Self

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.liveness import RECONNECT_MAX_MS, RECONNECT_MS
from rl4sys_zmq.resource import with_descriptor
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.binding import SocketBinding, connect_socket
from rl4sys_zmq.transports.context import context
from rl4sys_zmq.transports.frames import MAX_FRAME_BYTES, ROUTER_MAX_FRAME_BYTES
from rl4sys_zmq.transports.monitor import ConnectionEventReader
from rl4sys_zmq.transports.open_socket import OpenSocket
from rl4sys_zmq.transports.peers import SubscriptionControl

_NOTICE_MAX_BYTES = 4096  # an XPUB receives only topics and the handshake, a PUSH only the handshake

# The receive high-water mark of an XPUB with ``grants=True``, in subscription messages. A small limit keeps a flood of
# subscriptions outside the process until the connection is closed. With a limit of 64, a flood took up to 125 MiB of memory;
# with 4 it takes 2 MiB. With 1, subscriptions over CURVE never arrive.
_PUBLICATION_HWM = 4


class Socket(OpenSocket):
    """A ZeroMQ socket for one thread. Create it with `router`, `dealer`, `xpub`, `sub`, `push` or `pull`.

    A call from another thread raises, because two threads in one libzmq socket corrupt messages without an error. In a forked
    child an inherited socket is unusable: every call except `close` raises, and `close` does not affect the parent.

    The functions that create sockets raise `AddressInUse` if another socket is bound to the address, and `TransportError` if
    the socket cannot be bound or connected. They share these arguments:

    - `secure`: a function that sets the security options of the socket (`curve_server`, `curve_client`). No effect on inproc.
    - `watch`: True to collect the events of connections, which `events` returns.
    - `hwm`, `send_hwm`, `recv_hwm`: high-water marks, the largest number of queued messages (not bytes) for each peer. Over
      inproc the limits of the two sides add up.
    - `max_frame_bytes`: the largest frame that the socket receives. If a tcp or ipc peer sends a larger one, the message is
      lost and the connection is closed. inproc has no limit.
    """

    @classmethod
    def router(
        cls,
        bind: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = ROUTER_MAX_FRAME_BYTES,
        secure: Secure | None = None,
        watch: bool = False,
    ) -> Self:
        """Create a bound ROUTER. The first frame of a message is the routing id of the dealer, in both directions."""
        options: Options = {zmq.SNDHWM: send_hwm, zmq.RCVHWM: recv_hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("router", options, bind=bind, secure=secure, watch=watch)

    @classmethod
    def dealer(
        cls,
        connect: Address | str,
        *,
        send_hwm: int = 64,
        recv_hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        secure: Secure | None = None,
        watch: bool = False,
    ) -> Self:
        """Create a DEALER that connects to one router. It reconnects whenever needed, and the router can start later."""
        options: Options = {zmq.SNDHWM: send_hwm, zmq.RCVHWM: recv_hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("dealer", options, connect=connect, secure=secure, watch=watch)

    @classmethod
    def xpub(
        cls, bind: Address | str, *, hwm: int = 4, secure: Secure | None = None, grants: bool = False, watch: bool = False
    ) -> Self:
        """Create a bound XPUB: a publisher that receives the subscriptions of its peers as messages (`read_subscription`).

        If `hwm` messages are queued for a subscriber, it misses further messages, without an error. Other subscribers are not
        affected. With `grants`, a subscription has no effect until `grant` allows it. A connection with more than 64
        subscriptions that were not granted is closed.
        """
        options: Options = {zmq.SNDHWM: hwm, zmq.MAXMSGSIZE: _NOTICE_MAX_BYTES}
        if grants:
            options = {**options, zmq.XPUB_MANUAL: 1, zmq.RCVHWM: _PUBLICATION_HWM}
        made = cls._make("xpub", options, bind=bind, secure=secure, watch=watch)
        if grants:
            made._grants = SubscriptionControl(made.raw, made.bound)
        return made

    @classmethod
    def sub(
        cls,
        connect: Address | str,
        *,
        hwm: int = 16,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        secure: Secure | None = None,
        watch: bool = False,
    ) -> Self:
        """Create a SUB that connects to one publisher. It has no subscriptions until `subscribe` is called."""
        options: Options = {zmq.RCVHWM: hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("sub", options, connect=connect, secure=secure, watch=watch)

    @classmethod
    def push(
        cls,
        *,
        bind: Address | str | None = None,
        connect: Address | str | None = None,
        hwm: int = 64,
        linger_s: float = 0.0,
        secure: Secure | None = None,
        watch: bool = False,
    ) -> Self:
        """Create a PUSH, the sending end of a pipeline: bound or connecting. If a bound PUSH has no peer, `send` returns FULL.

        After `close`, libzmq continues to send the queued messages for up to `linger_s` seconds, also at the exit of the
        process.
        """
        options: Options = {zmq.SNDHWM: hwm, zmq.MAXMSGSIZE: _NOTICE_MAX_BYTES}
        made = cls._make("push", options, bind=bind, connect=connect, secure=secure, watch=watch)
        made._linger_ms = round(linger_s * 1000)
        return made

    @classmethod
    def pull(
        cls,
        *,
        bind: Address | str | None = None,
        connect: Address | str | None = None,
        hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        secure: Secure | None = None,
        watch: bool = False,
    ) -> Self:
        """Create a PULL, the receiving end of a pipeline: bound or connecting."""
        options: Options = {zmq.RCVHWM: hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("pull", options, bind=bind, connect=connect, secure=secure, watch=watch)

    @classmethod
    def _make(
        cls,
        role: str,
        options: Options,
        *,
        bind: Address | str | None = None,
        connect: Address | str | None = None,
        secure: Secure | None = None,
        watch: bool = False,
    ) -> Self:
        where = bind if bind is not None else connect
        if where is None or (bind is not None and connect is not None):
            raise TransportError(f"a {role} needs either an address to bind or one to connect to; give exactly one of the two")
        address = Address.parse(where)
        raw = configured(role, address, options, dials=bind is None, secure=secure)
        monitor = None
        try:
            monitor = ConnectionEventReader(raw) if watch else None
            binding = SocketBinding(raw, address) if bind is not None else None
            if binding is None:
                connect_socket(raw, address)
        except BaseException:
            if monitor is not None:
                monitor.close()
            raw.close(linger=0)
            raise
        made = cls(raw, role, address if binding is None else binding.address, binding)
        made._monitor = monitor
        # Ask the socket, not `secure`: if it has a ZAP domain, libzmq adds the sender's user id to each message.
        made.authenticated = binding is not None and address.scheme != "inproc" and bool(raw.getsockopt_string(zmq.ZAP_DOMAIN))
        return made


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
    """Return a new ZeroMQ socket of a role, such as ``router``, with all options set. The caller binds or connects it.

    `options` override the common options. `dials` is True for a connecting socket.
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
