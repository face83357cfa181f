"""The connections of the ROUTER: rate limits, and the closing of connections that flood or complete no message."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import RATE
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.learner.endpoint import ActorEndpoint
from rl4sys_zmq.learner.rate_limits import ConnectionRate, RateLimiter
from rl4sys_zmq.learner.train_loop import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Socket, TooManyFrames
from rl4sys_zmq.wire.messages import Frame

__all__ = ["Connections"]

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
            self._endpoint.refuse(peer, Refusal.QUOTA, reason or "this connection exceeds its rate limit", field=RATE)
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
