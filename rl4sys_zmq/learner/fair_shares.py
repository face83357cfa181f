"""Fair shares of the gateway: how much each connection may say besides the data that it has credit for.

Costs are counted in messages. A `ConnectionShare` is what is known of one connection; what it owes is a time, until which it
would pay at its rate. A segment that was asked for costs nothing and pays for two other messages, so that an actor at work
owes nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

__all__ = ["ConnectionShare", "FairShares"]

BURST_S = 2.0
"""How many seconds' worth of messages a connection may send at once."""

STRANGERS = 20
"""How many connections' worth all connections without a session may send together."""

FIRST_WORDS = 2
"""How many messages of a new connection are heard whatever other strangers say: a HELLO, and another."""

REPLIES_PER_S = 5.0
"""How many refusals a second are said to a connection whose messages are dropped."""

CUT_AFTER = 4096
"""How many messages in excess end a connection."""

CUT_BYTES = 1 << 18
"""A message in excess of so many bytes ends its connection at once: more of them would wait in memory."""

REST_FACTOR, MAX_REST_S = 2.0, 0.001
"""After time spent on messages in excess the gateway reads none for so many times as long, at most so long: what floods then
waits in its sender. The others wait too, no longer than that. A good client mostly waits for answers: with rests of 10 ms it
kept 0.42 of its rate beside a flood of heartbeats, with 1 ms 0.89."""

FORGET_S, MAX_LINES = 60.0, 1 << 16


class ConnectionShare:
    """One connection.

    Attributes:
        heard: when its last message came, by the monotonic clock.
        descriptor: of its socket; -1 where there is none.
        owes_until: when it will have paid for what it said.
        excess: messages in excess since it was last cut.
        words: messages that were handled while it had no session.
        told_until: likewise for refusals said to it.
    """

    __slots__ = ("descriptor", "excess", "heard", "owes_until", "told_until", "words")

    def __init__(self, descriptor: int, now: float) -> None:
        self.descriptor = descriptor
        self.heard = self.owes_until = self.told_until = now
        self.excess = self.words = 0


class FairShares:
    """The connections of a ROUTER and what each owes. Used in the gateway thread.

    Attributes:
        lines: the connections, by routing id.
    """

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Makes it.

        Args:
            messages_per_s: how many messages a second a connection may send, besides data that it has credit for; and
            bytes_per_s: how many bytes of them. Infinity for no limit.
        """
        self.lines: dict[bytes, ConnectionShare] = {}
        self._message_s, self._byte_s = 1 / messages_per_s, 1 / bytes_per_s
        self._strangers_owe_until = 0.0
        self._rests_until = 0.0
        self._unheard: dict[int, float] = {}

    def meet(self, peer: bytes, descriptor: int, now: float) -> ConnectionShare:
        """A new connection.

        Args:
            peer: its routing id.
            descriptor: of its socket.
            now: the time.
        """
        line = self.lines[peer] = ConnectionShare(descriptor, now)
        return line

    def over(self, line: ConnectionShare, now: float, *, stranger: bool) -> bool:
        """Whether a message is in excess, and is to be dropped before it is decoded."""
        if line.owes_until > now + BURST_S:
            return True
        if not stranger:
            return False
        line.words += 1
        return line.words > FIRST_WORDS and self._strangers_owe_until > now + BURST_S

    def charge(self, line: ConnectionShare, messages: float, nbytes: int, now: float, *, stranger: bool) -> None:
        """Notes what a connection has cost.

        Args:
            line: the connection.
            messages: how many ordinary messages this one was worth; negative for one that pays.
            nbytes: its size; 0 for one that pays.
            now: the time.
            stranger: it had no session.
        """
        cost_s = messages * self._message_s + nbytes * self._byte_s
        line.owes_until = max(line.owes_until + min(cost_s, 0.0), now) + max(cost_s, 0.0)
        if stranger:
            self._strangers_owe_until = max(self._strangers_owe_until, now) + cost_s / STRANGERS

    @staticmethod
    def to_be_cut(line: ConnectionShare, nbytes: int) -> bool:
        """Counts a message in excess; whether its connection is to be ended."""
        line.excess += 1
        if line.excess < CUT_AFTER and nbytes < CUT_BYTES:
            return False
        line.excess = 0
        return True

    @staticmethod
    def may_be_told(line: ConnectionShare, now: float) -> bool:
        """Whether a connection is told that a message of it was dropped: floods are not answered one for one."""
        if line.told_until > now + BURST_S:
            return False
        line.told_until = max(line.told_until, now) + 1 / REPLIES_PER_S
        return True

    # ---- time

    def rest_after(self, wasted_s: float, now: float) -> None:
        """Lets a flood wait, after so much time that was spent on it."""
        self._rests_until = now + min(wasted_s * REST_FACTOR, MAX_REST_S)

    def rest_s(self, now: float) -> float:
        """For how long nothing is read yet."""
        return max(0.0, self._rests_until - now)

    # ---- all connections

    def mute(self, connected: Sequence[int], now: float, silent_s: float, new_s: float) -> list[int]:
        """The connections that have finished no message for a while.

        Args:
            connected: the descriptors of all connections.
            now: the time.
            silent_s: how long one may be silent that has finished a message.
            new_s: how long one that has not, since it was first asked about.
        """
        heard: dict[int, float] = {}
        for line in self.lines.values():
            heard[line.descriptor] = max(line.heard, heard.get(line.descriptor, 0.0))
        self._unheard = {fd: self._unheard.get(fd, now) for fd in connected if fd not in heard}
        return [fd for fd in connected if (now - heard[fd] >= silent_s if fd in heard else now - self._unheard[fd] >= new_s)]

    def forget(self, now: float, sessions: Container[bytes], connected: Sequence[int]) -> None:
        """Forget connections that have ended and owe nothing, or were silent for long; the eldest, when there are too many.

        Those with a session are kept.

        Args:
            now: The time.
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
