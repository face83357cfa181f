"""Rate limits of the gateway for all messages of a connection except segments with credit.

Costs are counted in ordinary messages. The debt of a connection is kept as a time: the moment at which the debt is paid off
at the connection's rate. A submitted segment with credit costs nothing and pays for two other messages, so an actor at work
has no debt.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

__all__ = ["ConnectionShare", "FairShares"]

BURST_S = 2.0
"""Size of a burst: a connection can send the messages of this many seconds at once."""

STRANGERS = 20
"""Rate limit of all connections without a session together, as a multiple of one connection's."""

FIRST_WORDS = 2
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

FORGET_S, MAX_LINES = 60.0, 1 << 16


class ConnectionShare:
    """The rate limit of one connection. All times are on the monotonic clock, in seconds.

    Attributes:
        heard: Time of its last message.
        descriptor: File descriptor of its socket; -1 if unknown.
        owes_until: Time at which the debt for its messages is paid off.
        excess: Number of messages over the limit since `to_be_cut` last returned True.
        words: Number of messages checked while it had no session.
        told_until: Time at which the debt for the refusals sent to it is paid off.
    """

    __slots__ = ("descriptor", "excess", "heard", "owes_until", "told_until", "words")

    def __init__(self, descriptor: int, now: float) -> None:
        self.descriptor = descriptor
        self.heard = self.owes_until = self.told_until = now
        self.excess = self.words = 0


class FairShares:
    """The rate limits of all connections of a ROUTER. Only the gateway thread uses it.

    Attributes:
        lines: The connections, by routing id.
    """

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Create it without connections.

        Args:
            messages_per_s: Ordinary messages per second of one connection, not counting segments with credit.
            bytes_per_s: Bytes per second of these messages. Infinity for no limit.
        """
        self.lines: dict[bytes, ConnectionShare] = {}
        self._message_s, self._byte_s = 1 / messages_per_s, 1 / bytes_per_s
        self._strangers_owe_until = 0.0
        self._rests_until = 0.0
        self._unheard: dict[int, float] = {}

    def meet(self, peer: bytes, descriptor: int, now: float) -> ConnectionShare:
        """Add a connection and return it.

        Args:
            peer: Its routing id.
            descriptor: The file descriptor of its socket.
            now: Time on the monotonic clock, in seconds.
        """
        line = self.lines[peer] = ConnectionShare(descriptor, now)
        return line

    def over(self, line: ConnectionShare, now: float, *, stranger: bool) -> bool:
        """Return True if a message exceeds the limit and must be dropped before it is decoded.

        Args:
            line: The connection.
            now: Time on the monotonic clock, in seconds.
            stranger: True if the connection has no session.
        """
        if line.owes_until > now + BURST_S:
            return True
        if not stranger:
            return False
        line.words += 1
        return line.words > FIRST_WORDS and self._strangers_owe_until > now + BURST_S

    def charge(self, line: ConnectionShare, messages: float, nbytes: int, now: float, *, stranger: bool) -> None:
        """Charge a connection for a message.

        Args:
            line: The connection.
            messages: Cost in ordinary messages; negative if the message pays for others.
            nbytes: Size in bytes; 0 if the message pays for others.
            now: Time on the monotonic clock, in seconds.
            stranger: True if the connection had no session.
        """
        cost_s = messages * self._message_s + nbytes * self._byte_s
        line.owes_until = max(line.owes_until + min(cost_s, 0.0), now) + max(cost_s, 0.0)
        if stranger:
            self._strangers_owe_until = max(self._strangers_owe_until, now) + cost_s / STRANGERS

    @staticmethod
    def to_be_cut(line: ConnectionShare, nbytes: int) -> bool:
        """Count a message over the limit, and return True if its connection must be closed."""
        line.excess += 1
        if line.excess < CUT_AFTER and nbytes < CUT_BYTES:
            return False
        line.excess = 0
        return True

    @staticmethod
    def may_be_told(line: ConnectionShare, now: float) -> bool:
        """Return True if a dropped message gets a refusal. Only `REPLIES_PER_S` a second do, with bursts."""
        if line.told_until > now + BURST_S:
            return False
        line.told_until = max(line.told_until, now) + 1 / REPLIES_PER_S
        return True

    # ---- rests

    def rest_after(self, wasted_s: float, now: float) -> None:
        """Begin a rest after `wasted_s` seconds were spent on messages over the limit."""
        self._rests_until = now + min(wasted_s * REST_FACTOR, MAX_REST_S)

    def rest_s(self, now: float) -> float:
        """Return the remaining time of the rest, in seconds."""
        return max(0.0, self._rests_until - now)

    # ---- all connections

    def mute(self, connected: Sequence[int], now: float, silent_s: float, new_s: float) -> list[int]:
        """Return the descriptors of the connections that have completed no message for too long.

        Args:
            connected: The descriptors of all connections.
            now: Time on the monotonic clock, in seconds.
            silent_s: Limit for a connection that has completed a message before, in seconds.
            new_s: Limit for any other connection, since the first call that listed it, in seconds.
        """
        heard: dict[int, float] = {}
        for line in self.lines.values():
            heard[line.descriptor] = max(line.heard, heard.get(line.descriptor, 0.0))
        self._unheard = {fd: self._unheard.get(fd, now) for fd in connected if fd not in heard}
        return [fd for fd in connected if (now - heard[fd] >= silent_s if fd in heard else now - self._unheard[fd] >= new_s)]

    def forget(self, now: float, sessions: Container[bytes], connected: Sequence[int]) -> None:
        """Discard the records of connections that are closed and have no debt, or were silent for `FORGET_S` seconds.

        Above `MAX_LINES` records, the ones that were silent for longest are discarded too. Records of connections with a
        session are kept.

        Args:
            now: Time on the monotonic clock, in seconds.
            sessions: The routing ids that have a session.
            connected: The descriptors of all connections.
        """
        limit = now - FORGET_S
        if len(self.lines) > MAX_LINES:
            limit = sorted(line.heard for line in self.lines.values())[-MAX_LINES // 2]
        still_open = {-1, *connected}
        old = [
            peer
            for peer, line in self.lines.items()
            if (line.heard < limit or (line.descriptor not in still_open and line.owes_until <= now)) and peer not in sessions
        ]
        for peer in old:
            del self.lines[peer]
