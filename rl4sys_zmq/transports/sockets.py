"""A socket by role: frames in, frames out, one thread each."""

from __future__ import annotations

from typing import Self

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.binding import bind_socket, dial_socket
from rl4sys_zmq.transports.endpoint import Endpoint
from rl4sys_zmq.transports.monitor import Monitor
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES, ROUTER_MAX_FRAME_BYTES, Options, Secure, configured
from rl4sys_zmq.transports.peers import SubscriptionGrants

__all__ = ["Socket"]

_NOTICE_MAX_BYTES = 4096  # an xpub receives nothing but topics, and the handshake

_NOTICE_HWM = 4
"""With grants: a flood waits outside until it is cut, since libzmq takes in whatever is queued in one go. At 64 a flood of
subscriptions took up to 125 MiB before the cut, at 4 it takes 2 MiB; at 1 notices over CURVE never arrive."""


class Socket(Endpoint):
    """One end of a connection, made by its role: `router`, `dealer`, `xpub`, `sub`, `push` or `pull`.

    It is made, used and closed in one thread. A call from another raises, since two threads in one libzmq socket tear
    messages apart without any error. In a forked child an inherited socket belongs to nobody: every call but `close` raises,
    and `close` lets the parent's be.

    All roles raise, when made: `AddressInUse` when somebody else binds the address, `TransportError` when it cannot be bound
    or dialled. Arguments they share: `secure` sets security options first (`curve_server`, `curve_client`; on inproc they do
    nothing); `watch` keeps what happens to the connections for `events`; a high-water mark (`hwm`) counts messages per
    peer, not bytes, and over inproc those of the two sides add up; a tcp or ipc peer that sends a frame of more than
    `max_frame_bytes` loses it and its connection (inproc has no limit).
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
        """A bound router: hears every dealer, and answers one by the routing id that leads each message."""
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
        """A dialling dealer: talks to one router and redials for ever; the router need not be there yet."""
        options: Options = {zmq.SNDHWM: send_hwm, zmq.RCVHWM: recv_hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("dealer", options, connect=connect, secure=secure, watch=watch)

    @classmethod
    def xpub(
        cls, bind: Address | str, *, hwm: int = 4, secure: Secure | None = None, grants: bool = False, watch: bool = False
    ) -> Self:
        """A bound publisher that sees every subscription come and go (`recv`, then `read_subscription`).

        A subscriber with `hwm` messages queued loses the next ones, silently, and nobody else does. With `grants` nobody gets
        anything that `grant` has not allowed, and a connection that asks in vain too often (`MAX_UNGRANTED`) is cut.
        """
        options: Options = {zmq.SNDHWM: hwm, zmq.MAXMSGSIZE: _NOTICE_MAX_BYTES}
        if grants:
            options = {**options, zmq.XPUB_MANUAL: 1, zmq.RCVHWM: _NOTICE_HWM}
        made = cls._make("xpub", options, bind=bind, secure=secure, watch=watch)
        if grants:
            made._grants = SubscriptionGrants(made.raw, made.bound)
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
        """A dialling subscriber, at first to nothing: call `subscribe`."""
        options: Options = {zmq.RCVHWM: hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("sub", options, connect=connect, secure=secure, watch=watch)

    @classmethod
    def push(
        cls,
        *,
        bind: Address | str | None = None,
        connect: Address | str | None = None,
        hwm: int = 64,
        secure: Secure | None = None,
    ) -> Self:
        """The sending end of a pipeline, bound or dialling. Bound and without a peer it is full at once."""
        return cls._make("push", {zmq.SNDHWM: hwm}, bind=bind, connect=connect, secure=secure)

    @classmethod
    def pull(
        cls,
        *,
        bind: Address | str | None = None,
        connect: Address | str | None = None,
        hwm: int = 64,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        secure: Secure | None = None,
    ) -> Self:
        """The receiving end of a pipeline, bound or dialling."""
        options: Options = {zmq.RCVHWM: hwm, zmq.MAXMSGSIZE: max_frame_bytes}
        return cls._make("pull", options, bind=bind, connect=connect, secure=secure)

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
            raise TransportError(f"a {role} either binds an address or dials one; give exactly one of the two")
        address = Address.parse(where)
        raw = configured(role, address, options, dials=bind is None, secure=secure)
        monitor = None
        try:
            monitor = Monitor(raw) if watch else None
            binding = None
            if bind is None:
                dial_socket(raw, address)
            else:
                binding = bind_socket(raw, address)
        except BaseException:
            if monitor is not None:
                monitor.close()
            raw.close(linger=0)
            raise
        made = cls(raw, role, address if binding is None else binding.address, binding)
        made._monitor = monitor
        # Asked of the socket, not of the caller: any `secure` that sets a domain makes libzmq name the sender of each message.
        made._authenticated = binding is not None and address.scheme != "inproc" and bool(raw.getsockopt_string(zmq.ZAP_DOMAIN))
        return made
