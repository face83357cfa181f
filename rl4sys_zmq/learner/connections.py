"""The connections of the ROUTER: rate limits, and the closing of connections that flood or complete no message."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import RATE
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.learner.endpoint import ActorEndpoint
from rl4sys_zmq.learner.fair_shares import ConnectionShare, FairShares
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
        self._shares = FairShares(config.messages_per_s, config.bytes_per_s)
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
        useful_s, lines, sessions = 0.0, self._shares.lines, self._endpoint.sessions
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
                line = lines.get(peer) or self._shares.meet(peer, self._router.descriptor(), now)
                line.heard = now
                stranger = peer not in sessions
                if self._rated and (stranger or line.owes_until > now) and self._shares.over(line, now, stranger=stranger):
                    self._drop(peer, line, frames, now)
                    if self._excess >= EXCESS_BURST:
                        break
                    continue
                cost = self._handle(peer, line, frames, now)
                if cost is not None and (cost > 0 or line.owes_until > now):
                    size = 0 if cost < 0 else sum(len(f) for f in frames)
                    self._shares.charge(line, cost, size, now, stranger=stranger)
            else:
                self._handle(peer, None, frames, now)
            useful_s += time.monotonic() - now
        if self._excess:
            now = time.monotonic()
            self._shares.rest_after(now - began - useful_s, now)

    def _handle(self, peer: bytes, line: ConnectionShare | None, frames: Sequence[Frame], now: float) -> float | None:
        """Let the endpoint handle a message. Return its cost in ordinary messages, or None if it was dropped."""
        sender = None
        if self._router.authenticated:  # over inproc, and without keys, every peer is allowed everything
            try:
                sender = self._endpoint.admit(peer, self._router.user, sum(len(f) for f in frames), now)
            except ProtocolError as exc:
                if line is not None and exc.code is Refusal.QUOTA:
                    self._drop(peer, line, frames, now, exc.detail)
                    return None
                self._endpoint.refuse_error(peer, exc)
                return 1.0
        return self._endpoint.receive(peer, sender, frames[1:], now)

    def _on_too_many(self, exc: TooManyFrames) -> None:
        self._endpoint.refuse(exc.first, exc.code, exc.detail)
        if self._rated:
            now = time.monotonic()
            line, stranger = self._shares.lines.get(exc.first), exc.first not in self._endpoint.sessions
            line = line or self._shares.meet(exc.first, self._router.descriptor(), now)
            self._shares.charge(line, exc.count / FRAMES_PER_MESSAGE, 0, now, stranger=stranger)

    def _drop(self, peer: bytes, line: ConnectionShare, frames: Sequence[Frame], now: float, reason: str = "") -> None:
        """Drop a message over the rate limit. Some are answered with a refusal; a connection that floods is closed."""
        self._excess += 1
        if self._shares.to_be_cut(line, sum(len(f) for f in frames)) and self._router.cut_off():
            self._counters.add("connections.cut")
        if self._shares.may_be_told(line, now):
            self._endpoint.refuse(peer, Refusal.QUOTA, reason or "this connection exceeds its rate limit", field=RATE)
        else:
            self._counters.add(f"refused.{Refusal.QUOTA.value}")

    def each_second(self, now: float) -> None:
        """Close connections that complete no message, discard records of closed ones, and count libzmq's events."""
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            connected = self._router.connections()
            self._shares.forget(now, self._endpoint.sessions, connected)
            self._cut(self._shares.mute(connected, now, IDLE_CONNECTION_S, IDLE_CONNECTION_S))
        for event in self._router.events():
            self._counters.add(f"connections.{event.name}")

    def relieve(self, *, everybody: bool) -> int:
        """Close connections because memory runs out, and return their number.

        Their incomplete messages are freed. Actors reconnect.

        Args:
            everybody: Close all connections, not only those that complete no message.
        """
        found = self._router.connections()
        return self._cut(found if everybody else self._shares.mute(found, time.monotonic(), BUSY_S, NEW_S))

    def _cut(self, descriptors: Sequence[int]) -> int:
        count = sum(self._router.cut(descriptor) for descriptor in descriptors)
        if count:
            self._counters.add("connections.cut", count)
        return count
