"""The connections of the ROUTER: rate limits, and the closing of connections that flood or complete no message.

The rate limits apply to all messages of a connection except segments with credit. Costs are counted in ordinary messages. The
debt of a connection is kept as a time: the moment at which the debt is paid off at the connection's rate. A submitted segment
with credit costs nothing and pays for two other messages, so an actor at work has no debt.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import FIELD_RATE
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.learner.endpoint import ActorEndpoint
from rl4sys_zmq.learner.train_loop import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Socket, TooManyFrames
from rl4sys_zmq.wire.messages import Frame

__all__ = ["ConnectionRate", "Connections", "RateLimiter"]


BURST_S = 2.0
"""Size of a burst: a connection can send the messages of this many seconds at once."""

SESSIONLESS_FACTOR = 20
"""Rate limit of all connections without a session together, as a multiple of one connection's."""

FREE_MESSAGES = 2
"""Number of messages of a connection without a session that the limit for all such connections does not drop."""

REPLIES_PER_S = 5.0
"""Refusals per second that are sent to a connection whose messages are dropped, at most."""

CUT_AFTER = 4096
"""Number of messages over the limit after which a connection is closed."""

CUT_BYTES = 1 << 18
"""Size from which one message over the limit closes its connection at once, in bytes. More of them would fill the memory."""

REST_FACTOR, MAX_REST_S = 2.0, 0.001
"""After a turn with messages over the limit, the gateway reads nothing for `REST_FACTOR` times the time spent on them, at most
`MAX_REST_S` seconds. The flood then waits at its sender. Other peers wait too, but mostly they wait for replies anyway: beside
a flood of heartbeats, a well-behaved actor kept 0.42 of its rate with rests of 10 ms and 0.89 with rests of 1 ms."""

FORGET_S, MAX_CONNECTIONS = 60.0, 1 << 16


class ConnectionRate:
    """The rate limit of one connection. All times are on the monotonic clock, in seconds.

    Attributes:
        last_message_s: Time of its last message.
        descriptor: File descriptor of its socket; -1 if unknown.
        owes_until: Time at which the debt for its messages is paid off.
        excess: Number of messages over the limit since `count_excess` last returned True.
        sessionless_messages: Number of messages checked while it had no session.
        replies_until: Time at which the debt for the refusals sent to it is paid off.
    """

    __slots__ = ("descriptor", "excess", "last_message_s", "owes_until", "replies_until", "sessionless_messages")

    def __init__(self, descriptor: int, now: float) -> None:
        self.descriptor = descriptor
        self.last_message_s = self.owes_until = self.replies_until = now
        self.excess = self.sessionless_messages = 0


class RateLimiter:
    """The rate limits of all connections of a ROUTER. Only the gateway thread uses it.

    Attributes:
        rates: The rate limit of each connection, by routing id.
    """

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Create it without connections.

        Args:
            messages_per_s: Ordinary messages per second of one connection, not counting segments with credit.
            bytes_per_s: Bytes per second of these messages. Infinity for no limit.
        """
        self.rates: dict[bytes, ConnectionRate] = {}
        self._message_s, self._byte_s = 1 / messages_per_s, 1 / bytes_per_s
        self._sessionless_owe_until = 0.0
        self._rests_until = 0.0
        self._first_seen_s: dict[int, float] = {}

    def add(self, peer: bytes, descriptor: int, now: float) -> ConnectionRate:
        """Add a connection and return it.

        Args:
            peer: Its routing id.
            descriptor: The file descriptor of its socket.
            now: Time on the monotonic clock, in seconds.
        """
        rate = self.rates[peer] = ConnectionRate(descriptor, now)
        return rate

    def exceeds(self, rate: ConnectionRate, now: float, *, sessionless: bool) -> bool:
        """Return True if a message exceeds the limit and must be dropped before it is decoded.

        Args:
            rate: The connection.
            now: Time on the monotonic clock, in seconds.
            sessionless: True if the connection has no session.
        """
        if rate.owes_until > now + BURST_S:
            return True
        if not sessionless:
            return False
        rate.sessionless_messages += 1
        return rate.sessionless_messages > FREE_MESSAGES and self._sessionless_owe_until > now + BURST_S

    def charge(self, rate: ConnectionRate, messages: float, nbytes: int, now: float, *, sessionless: bool) -> None:
        """Charge a connection for a message.

        Args:
            rate: The connection.
            messages: Cost in ordinary messages; negative if the message pays for others.
            nbytes: Size in bytes; 0 if the message pays for others.
            now: Time on the monotonic clock, in seconds.
            sessionless: True if the connection had no session.
        """
        cost_s = messages * self._message_s + nbytes * self._byte_s
        rate.owes_until = max(rate.owes_until + min(cost_s, 0.0), now) + max(cost_s, 0.0)
        if sessionless:
            self._sessionless_owe_until = max(self._sessionless_owe_until, now) + cost_s / SESSIONLESS_FACTOR

    @staticmethod
    def count_excess(rate: ConnectionRate, nbytes: int) -> bool:
        """Count a message over the limit, and return True if its connection must be closed."""
        rate.excess += 1
        if rate.excess < CUT_AFTER and nbytes < CUT_BYTES:
            return False
        rate.excess = 0
        return True

    @staticmethod
    def should_reply(rate: ConnectionRate, now: float) -> bool:
        """Return True if a dropped message gets a refusal. Only `REPLIES_PER_S` a second do, with bursts."""
        if rate.replies_until > now + BURST_S:
            return False
        rate.replies_until = max(rate.replies_until, now) + 1 / REPLIES_PER_S
        return True

    # ---- rests

    def rest_after(self, wasted_s: float, now: float) -> None:
        """Begin a rest after `wasted_s` seconds were spent on messages over the limit."""
        self._rests_until = now + min(wasted_s * REST_FACTOR, MAX_REST_S)

    def rest_s(self, now: float) -> float:
        """Return the remaining time of the rest, in seconds."""
        return max(0.0, self._rests_until - now)

    # ---- all connections

    def silent_connections(self, connected: Sequence[int], now: float, silent_s: float, new_s: float) -> list[int]:
        """Return the descriptors of the connections that have completed no message for too long.

        Args:
            connected: The descriptors of all connections.
            now: Time on the monotonic clock, in seconds.
            silent_s: Limit for a connection that has completed a message before, in seconds.
            new_s: Limit for any other connection, since the first call that listed it, in seconds.
        """
        last_message_s: dict[int, float] = {}
        for rate in self.rates.values():
            last_message_s[rate.descriptor] = max(rate.last_message_s, last_message_s.get(rate.descriptor, 0.0))
        self._first_seen_s = {fd: self._first_seen_s.get(fd, now) for fd in connected if fd not in last_message_s}
        return [
            fd
            for fd in connected
            if (now - last_message_s[fd] >= silent_s if fd in last_message_s else now - self._first_seen_s[fd] >= new_s)
        ]

    def forget(self, now: float, sessions: Container[bytes], connected: Sequence[int]) -> None:
        """Discard the records of connections that are closed and have no debt, or were silent for `FORGET_S` seconds.

        Above `MAX_CONNECTIONS` records, the ones that were silent for longest are discarded too. Records of connections with a
        session are kept.

        Args:
            now: Time on the monotonic clock, in seconds.
            sessions: The routing ids that have a session.
            connected: The descriptors of all connections.
        """
        limit = now - FORGET_S
        if len(self.rates) > MAX_CONNECTIONS:
            limit = sorted(rate.last_message_s for rate in self.rates.values())[-MAX_CONNECTIONS // 2]
        still_open = {-1, *connected}
        newest = {rate.descriptor: peer for peer, rate in self.rates.items()}  # an earlier connection of a descriptor has ended
        old = []
        for peer, rate in self.rates.items():
            ended = rate.descriptor not in still_open or (rate.descriptor >= 0 and newest[rate.descriptor] != peer)
            if (rate.last_message_s < limit or (ended and rate.owes_until <= now)) and peer not in sessions:
                old.append(peer)
        for peer in old:
            del self.rates[peer]


ROUTER_BURST = 256
"""Number of messages read in one turn of the gateway thread, at most."""

EXCESS_BURST = 64
"""Number of messages over the rate limit that are dropped in one turn, at most."""

FRAMES_PER_MESSAGE = 32
"""A message with too many frames costs one ordinary message for this many frames."""

TIDY_S, IDLE_CONNECTION_S = 5.0, 30.0
"""Interval between two checks of all connections, and longest time in which a connection completes no message, in seconds.
Actors send a message each second."""

BUSY_S, NEW_S = 1.5, 0.15
"""Longest time in which a connection completes no message while memory runs out, in seconds. The second value is for a
connection that has never completed one."""


class Connections:
    """The reader of the ROUTER, which limits each connection's rate. Only the gateway thread uses it."""

    def __init__(self, config: LearnerConfig, router: Socket, endpoint: ActorEndpoint, counters: Counters) -> None:
        """Create a reader for a bound ROUTER.

        Args:
            config: The learner's configuration.
            router: The ROUTER. Its owner closes it.
            endpoint: Handles the messages.
            counters: The learner's counters.
        """
        self._router, self._endpoint, self._counters = router, endpoint, counters
        self._shares = RateLimiter(config.messages_per_s, config.bytes_per_s)
        free = router.bound.scheme == "inproc"
        self._lined, self._rated = not free, not free and not router.authenticated
        self._excess = 0
        self._tidy_at = 0.0

    @property
    def rest_s(self) -> float:
        """The remaining time in which `read` reads nothing, in seconds."""
        return self._shares.rest_s(time.monotonic())

    def read(self) -> None:
        """Read up to `ROUTER_BURST` messages. After many dropped messages, read nothing for a short rest."""
        began = time.monotonic()
        if self._shares.rest_s(began):
            return
        self._excess = 0
        useful_s, rates, sessions = 0.0, self._shares.rates, self._endpoint.sessions
        for _ in range(ROUTER_BURST):
            try:
                frames = self._router.recv(MAX_MESSAGE_FRAMES)
            except TooManyFrames as exc:
                self._on_too_many(exc)
                continue
            if frames is None:
                break
            now = time.monotonic()
            peer = bytes(frames[0])
            if self._lined:
                rate = rates.get(peer) or self._shares.add(peer, self._router.descriptor(), now)
                rate.last_message_s = now
                sessionless = peer not in sessions
                if (
                    self._rated
                    and (sessionless or rate.owes_until > now)
                    and self._shares.exceeds(rate, now, sessionless=sessionless)
                ):
                    self._drop(peer, rate, frames, now)
                    if self._excess >= EXCESS_BURST:
                        break
                    continue
                cost = self._handle(peer, rate, frames, now)
                if cost is not None and (cost > 0 or rate.owes_until > now):
                    size = 0 if cost < 0 else sum(len(f) for f in frames)
                    self._shares.charge(rate, cost, size, now, sessionless=sessionless)
            else:
                self._handle(peer, None, frames, now)
            useful_s += time.monotonic() - now
        if self._excess:
            now = time.monotonic()
            self._shares.rest_after(now - began - useful_s, now)

    def _handle(self, peer: bytes, rate: ConnectionRate | None, frames: Sequence[Frame], now: float) -> float | None:
        """Let the endpoint handle a message. Return its cost in ordinary messages, or None if it was dropped."""
        sender = None
        if self._router.authenticated:  # over inproc, and without keys, every peer is allowed everything
            try:
                sender = self._endpoint.admit(peer, self._router.user, sum(len(f) for f in frames), now)
            except ProtocolError as exc:
                if rate is not None and exc.code is Refusal.QUOTA:
                    self._drop(peer, rate, frames, now, exc.detail)
                    return None
                self._endpoint.refuse_error(peer, exc)
                return 1.0
        return self._endpoint.receive(peer, sender, frames[1:], now)

    def _on_too_many(self, exc: TooManyFrames) -> None:
        self._endpoint.refuse(exc.first, exc.code, exc.detail)
        if self._rated:
            now = time.monotonic()
            rate, sessionless = self._shares.rates.get(exc.first), exc.first not in self._endpoint.sessions
            rate = rate or self._shares.add(exc.first, self._router.descriptor(), now)
            self._shares.charge(rate, exc.count / FRAMES_PER_MESSAGE, 0, now, sessionless=sessionless)

    def _drop(self, peer: bytes, rate: ConnectionRate, frames: Sequence[Frame], now: float, reason: str = "") -> None:
        """Drop a message over the rate limit. Some are answered with a refusal; a connection that floods is closed."""
        self._excess += 1
        if self._shares.count_excess(rate, sum(len(f) for f in frames)) and self._router.cut_off():
            self._counters.add("connections.cut")
        if self._shares.should_reply(rate, now):
            self._endpoint.refuse(peer, Refusal.QUOTA, reason or "this connection exceeds its rate limit", field=FIELD_RATE)
        else:
            self._counters.add(f"refused.{Refusal.QUOTA.value}")

    def each_second(self, now: float) -> None:
        """Close connections that complete no message, discard records of closed ones, and count libzmq's events."""
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            connected = self._router.connections()
            self._shares.forget(now, self._endpoint.sessions, connected)
            self._cut(self._shares.silent_connections(connected, now, IDLE_CONNECTION_S, IDLE_CONNECTION_S))
        for event in self._router.events():
            self._counters.add(f"connections.{event.name}")

    def relieve(self, *, all_connections: bool) -> int:
        """Close connections because memory runs out, and return their number.

        Their incomplete messages are freed. Actors reconnect.

        Args:
            all_connections: Close all connections, not only those that complete no message.
        """
        found = self._router.connections()
        return self._cut(found if all_connections else self._shares.silent_connections(found, time.monotonic(), BUSY_S, NEW_S))

    def _cut(self, descriptors: Sequence[int]) -> int:
        count = sum(self._router.cut(descriptor) for descriptor in descriptors)
        if count:
            self._counters.add("connections.cut", count)
        return count
