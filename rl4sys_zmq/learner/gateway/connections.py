"""The reader of the learner's ROUTER socket. It limits the rate of each connection, and closes connections that misbehave.

The cost of a message is measured in ordinary messages. It adds to the *debt* of the connection, which falls with time, at the
rate that the limit permits. The stored value is the time at which the debt will be paid. If this time is more than `BURST_S`
seconds away, the connection is over the limit, and its messages are dropped. A `Submit` within the actor's credit has a
negative cost.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import FIELD_RATE
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.learner.gateway.actor_sessions import ActorSessionHandler
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.liveness import BUSY_CONNECTION_S, IDLE_CONNECTION_S
from rl4sys_zmq.transports import Socket, TooManyFrames
from rl4sys_zmq.wire.messages import Frame

BURST_S = 2.0
"""A connection can send at once as many messages as its limit permits in this time, in seconds."""

SESSIONLESS_FACTOR = 20
"""Joint rate limit of all connections without a session, as a multiple of the limit of one connection."""

FREE_MESSAGES = 2
"""Number of first messages of a connection without a session that are accepted even if the joint limit is exceeded."""

REPLIES_PER_S = 5.0
"""Largest rate of refusals that a connection receives for its dropped messages, per second."""

CUT_AFTER = 4096
"""Number of dropped messages after which a connection is closed."""

CUT_BYTES = 1 << 18
"""Size in bytes from which a dropped message closes its connection at once. Several such messages could fill the memory."""

REST_FACTOR, MAX_REST_S = 2.0, 0.001
"""After it has dropped messages, the gateway reads nothing for `REST_FACTOR` times the time that it spent on them, at most for
`MAX_REST_S` seconds. Meanwhile a flood of messages waits at its sender. Messages of other peers wait too, so a rest is short:
beside a flood of heartbeats, a well-behaved actor kept 0.42 of its rate with rests of 10 ms and 0.89 with rests of 1 ms."""

FORGET_S, MAX_CONNECTIONS = 60.0, 1 << 16
"""The record of a connection without a session is discarded after this time without a message, in seconds, or earlier if there
are more records than this."""


class ConnectionRateState:
    """The record of how much one connection has used of its rate limit. Times are on the monotonic clock, in seconds.

    Attributes:
        descriptor: File descriptor of the connection; -1 if unknown.
        debt_paid_at: Time at which the debt of the connection will be zero.
        replies_paid_at: Time at which the debt for refusals that were sent to the connection will be zero.
        excess: Number of dropped messages since `ConnectionRateLimits.count_excess` last returned True.
        sessionless_messages: Number of messages that were checked while the connection had no session.
    """

    __slots__ = ("debt_paid_at", "descriptor", "excess", "last_message_s", "replies_paid_at", "sessionless_messages")

    def __init__(self, descriptor: int, now: float) -> None:
        self.descriptor = descriptor
        self.last_message_s = self.debt_paid_at = self.replies_paid_at = now
        self.excess = self.sessionless_messages = 0


class ConnectionRateLimits:
    """The rate limits of all connections of a ROUTER socket. Only the gateway thread uses it.

    Attributes:
        rates: The record of each connection, by routing id.
    """

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self.rates: dict[bytes, ConnectionRateState] = {}
        self._message_s, self._byte_s = 1 / messages_per_s, 1 / bytes_per_s
        self._sessionless_debt_paid_at = 0.0
        self._rests_until = 0.0
        self._first_seen_s: dict[int, float] = {}

    def add(self, peer: bytes, descriptor: int, now: float) -> ConnectionRateState:
        """Add a connection, and return its record."""
        rate = self.rates[peer] = ConnectionRateState(descriptor, now)
        return rate

    def exceeds(self, rate: ConnectionRateState, now: float, *, sessionless: bool) -> bool:
        """Return True if a message exceeds the limit of its connection, or the joint limit of connections without a session."""
        if rate.debt_paid_at > now + BURST_S:
            return True
        if not sessionless:
            return False
        rate.sessionless_messages += 1
        return rate.sessionless_messages > FREE_MESSAGES and self._sessionless_debt_paid_at > now + BURST_S

    def charge(self, rate: ConnectionRateState, messages: float, nbytes: int, now: float, *, sessionless: bool) -> None:
        """Add the cost of a message to the debt of its connection."""
        cost_s = messages * self._message_s + nbytes * self._byte_s
        rate.debt_paid_at = max(rate.debt_paid_at + min(cost_s, 0.0), now) + max(cost_s, 0.0)
        if sessionless:
            self._sessionless_debt_paid_at = max(self._sessionless_debt_paid_at, now) + cost_s / SESSIONLESS_FACTOR

    @staticmethod
    def count_excess(rate: ConnectionRateState, nbytes: int) -> bool:
        """Count a dropped message. Return True if its connection must be closed: for its size, or for many such messages."""
        rate.excess += 1
        if rate.excess < CUT_AFTER and nbytes < CUT_BYTES:
            return False
        rate.excess = 0
        return True

    @staticmethod
    def should_reply(rate: ConnectionRateState, now: float) -> bool:
        """Return True if the sender of a dropped message should get a refusal, and count the refusal."""
        if rate.replies_paid_at > now + BURST_S:
            return False
        rate.replies_paid_at = max(rate.replies_paid_at, now) + 1 / REPLIES_PER_S
        return True

    def rest_after(self, wasted_s: float, now: float) -> None:
        """Read nothing for some time, a rest, after `wasted_s` seconds were spent on dropped messages."""
        self._rests_until = now + min(wasted_s * REST_FACTOR, MAX_REST_S)

    def rest_s(self, now: float) -> float:
        """Return the remaining time of the rest, in seconds; 0 if there is none."""
        return max(0.0, self._rests_until - now)

    def silent_connections(self, connected: Sequence[int], now: float, silent_s: float, new_s: float) -> list[int]:
        """Return the descriptors in `connected` without a complete message for `silent_s`, or, if new, for `new_s` seconds."""
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
        """Discard the records of connections without a session that were silent for long, or have ended and owe nothing."""
        limit = now - FORGET_S
        if len(self.rates) > MAX_CONNECTIONS:
            limit = sorted(rate.last_message_s for rate in self.rates.values())[-MAX_CONNECTIONS // 2]
        still_open = {-1, *connected}
        newest = {rate.descriptor: peer for peer, rate in self.rates.items()}  # an earlier connection of a descriptor has ended
        old = []
        for peer, rate in self.rates.items():
            ended = rate.descriptor not in still_open or (rate.descriptor >= 0 and newest[rate.descriptor] != peer)
            if (rate.last_message_s < limit or (ended and rate.debt_paid_at <= now)) and peer not in sessions:
                old.append(peer)
        for peer in old:
            del self.rates[peer]


ROUTER_BURST = 256
"""Largest number of messages that the gateway thread reads in one turn of its loop."""

EXCESS_BURST = 64
"""Largest number of messages over the rate limit that the gateway thread reads and drops in one turn of its loop."""

FRAMES_PER_MESSAGE = 32
"""Number of frames that cost as much as one ordinary message, in a message that was refused for having too many frames."""

TIDY_S = 5.0
"""The interval between two searches for idle connections, in seconds."""

NEW_S = 0.15
"""While memory runs out, a connection that has never completed a message is closed after `NEW_S` seconds; others after
`BUSY_CONNECTION_S`."""


class RouterReader:
    """The reader of the learner's ROUTER socket: it drops messages over the rate limit, and passes on the others.

    Only the gateway thread uses it.
    """

    def __init__(self, config: LearnerConfig, router: Socket, actor_sessions: ActorSessionHandler, counters: Counters) -> None:
        self._router, self._actor_sessions, self._counters = router, actor_sessions, counters
        self._limits = ConnectionRateLimits(config.messages_per_s, config.bytes_per_s)
        free = router.bound.scheme == "inproc"
        self._tracks_connections, self._rated = not free, not free and not router.authenticated
        self._excess = 0
        self._tidy_at = 0.0
        self._emptied_s = time.monotonic()

    def behind_s(self, now: float) -> float:
        """Return the time since the ROUTER last had no waiting message, in seconds."""
        return now - self._emptied_s

    @property
    def rest_s(self) -> float:
        """The remaining time in which `read_messages` reads nothing, in seconds."""
        return self._limits.rest_s(time.monotonic())

    def read_messages(self) -> None:
        """Read and handle up to `ROUTER_BURST` messages. Begin a rest if messages were dropped."""
        began = time.monotonic()
        if self._limits.rest_s(began):
            return
        self._excess = 0
        useful_s, rates, sessions = 0.0, self._limits.rates, self._actor_sessions.sessions
        for _ in range(ROUTER_BURST):
            try:
                frames = self._router.recv(MAX_MESSAGE_FRAMES)
            except TooManyFrames as exc:
                self._on_too_many(exc)
                continue
            if frames is None:
                self._emptied_s = time.monotonic()
                break
            now = time.monotonic()
            peer = bytes(frames[0])
            if self._tracks_connections:
                rate = rates.get(peer) or self._limits.add(peer, self._router.descriptor(), now)
                rate.last_message_s = now
                sessionless = peer not in sessions
                if (
                    self._rated
                    and (sessionless or rate.debt_paid_at > now)
                    and self._limits.exceeds(rate, now, sessionless=sessionless)
                ):
                    self._drop(peer, rate, frames, now)
                    if self._excess >= EXCESS_BURST:
                        break
                    continue
                cost = self._handle(peer, rate, frames, now)
                if cost is not None and (cost > 0 or rate.debt_paid_at > now):
                    size = 0 if cost < 0 else sum(len(f) for f in frames)
                    self._limits.charge(rate, cost, size, now, sessionless=sessionless)
            else:
                self._handle(peer, None, frames, now)
            useful_s += time.monotonic() - now
        if self._excess:
            now = time.monotonic()
            self._limits.rest_after(now - began - useful_s, now)

    def _handle(self, peer: bytes, rate: ConnectionRateState | None, frames: Sequence[Frame], now: float) -> float | None:
        """Check the sender of a message, and handle it. Return its cost; None if it was dropped."""
        sender = None
        if self._router.authenticated:  # over inproc, and without keys, every peer is allowed everything
            try:
                sender = self._actor_sessions.admit(peer, self._router.user, sum(len(f) for f in frames), now)
            except ProtocolError as exc:
                if rate is not None and exc.code is RefusalReason.QUOTA:
                    self._drop(peer, rate, frames, now, exc.detail)
                    return None
                self._actor_sessions.refuse_error(peer, exc)
                return 1.0
        return self._actor_sessions.receive(peer, sender, frames[1:], now)

    def _on_too_many(self, exc: TooManyFrames) -> None:
        self._actor_sessions.refuse(exc.first, exc.code, exc.detail)
        if self._rated:
            now = time.monotonic()
            rate, sessionless = self._limits.rates.get(exc.first), exc.first not in self._actor_sessions.sessions
            rate = rate or self._limits.add(exc.first, self._router.descriptor(), now)
            self._limits.charge(rate, exc.count / FRAMES_PER_MESSAGE, 0, now, sessionless=sessionless)

    def _drop(self, peer: bytes, rate: ConnectionRateState, frames: Sequence[Frame], now: float, reason: str = "") -> None:
        self._excess += 1
        if self._limits.count_excess(rate, sum(len(f) for f in frames)) and self._router.cut_off():
            self._counters.add("connections.cut")
        if self._limits.should_reply(rate, now):
            self._actor_sessions.refuse(
                peer, RefusalReason.QUOTA, reason or "this connection exceeds its rate limit", field=FIELD_RATE
            )
        else:
            self._counters.add(f"refused.{RefusalReason.QUOTA.value}")

    def each_second(self, now: float) -> None:
        """Close connections that complete no message, discard old records, and count socket events."""
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            connected = self._router.connections()
            self._limits.forget(now, self._actor_sessions.sessions, connected)
            self._cut(self._limits.silent_connections(connected, now, IDLE_CONNECTION_S, IDLE_CONNECTION_S))
        for event in self._router.events():
            self._counters.add(f"connections.{event.name}")

    def relieve(self, *, all_connections: bool) -> int:
        """Close connections to free the memory of incomplete messages, and return how many were closed. Actors reconnect."""
        descriptors = self._router.connections()
        if not all_connections:
            descriptors = self._limits.silent_connections(descriptors, time.monotonic(), BUSY_CONNECTION_S, NEW_S)
        return self._cut(descriptors)

    def _cut(self, descriptors: Sequence[int]) -> int:
        count = sum(self._router.cut(descriptor) for descriptor in descriptors)
        if count:
            self._counters.add("connections.cut", count)
        return count
