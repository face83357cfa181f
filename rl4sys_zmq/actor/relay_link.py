"""The actor's connection to a relay, a process that passes the learner's weights on.

A relay is not trusted: `WeightSubscriber` checks each version that comes from one with a secret key that relays do not have.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from rl4sys_zmq.config import RelayAddress
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.liveness import FOLLOW_S, RELAY_ANSWER_S, RELAY_RETRY, RELAY_SILENCE_S, SilenceTimer, jittered
from rl4sys_zmq.transports import MAX_FRAME_BYTES, Address
from rl4sys_zmq.transports.network import ConnectingSocket, Keys, SocketFactory, SocketPoller
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import FetchWeights, FollowWeights, Message, WeightsSource

__all__ = ["RelayLink", "relays_told"]

MAX_MESSAGE_FRAMES = 256
HWM = 8


def relays_told(told: Sequence[object]) -> tuple[RelayAddress, ...]:
    """Return the relays that a learner names in the handshake, without entries that this actor cannot use.

    Args:
        told: `Welcome.relays`: a list ``[URI, public key or ""]`` for each relay.
    """
    found = []
    for entry in told:
        if isinstance(entry, list) and len(entry) == 2:
            try:
                found.append(RelayAddress(address=entry[0], key=entry[1] or None))
            except ConfigError:
                continue
    return tuple(found)


class RelayLink:
    """The connection of one actor to its relays: it connects to one of them at a time, and notices that it fails.

    Used in the actor's I/O thread. `WeightSubscriber` decides what to do with the messages. While no relay answers, the actor
    takes the weights from the learner. `tick` then tries the relays again from time to time.

    Attributes:
        source: The relay's answer to the last `FollowWeights`: its topic and its PUB socket. None before the first answer.
        max_frame_bytes: The largest frame that the actor accepts from a relay, in bytes. Set it before `connect_next`.
    """

    def __init__(self, client_id: str, keys: Keys | None, counters: Counters, rng: random.Random) -> None:
        """Create the link without a connection.

        Args:
            client_id: The client (a policy with its learner) whose weights the actor needs.
            keys: The actor's keys: own public key, own secret key, and the learner's public key. None without keys.
            counters: The counters of the I/O thread.
            rng: Source of the random variation of intervals.
        """
        self.source: WeightsSource | None = None
        self._client_id, self._keys, self._counters, self._rng = client_id, keys, counters, rng
        self._relays: tuple[RelayAddress, ...] = ()
        self.max_frame_bytes = MAX_FRAME_BYTES
        self._untried: deque[RelayAddress] = deque()
        self._relay: RelayAddress | None = None
        self._dealer: ConnectingSocket | None = None
        self._poller: SocketPoller | None = None
        self._silence = SilenceTimer(RELAY_SILENCE_S)
        self._follow_at = self._retry_at = float("inf")
        self._rounds = 0

    @property
    def address(self) -> Address | None:
        """The address of the connected relay; None without a connection."""
        return Address.parse(self._relay.address) if self._relay is not None else None

    @property
    def keys(self) -> Keys | None:
        """The keys for connections to the connected relay; None without keys."""
        if self._keys is None or self._relay is None or self._relay.key is None:
            return None
        return (*self._keys[:2], self._relay.key)

    @property
    def next_deadline(self) -> float:
        """The monotonic time at which `tick` must be called, in seconds."""
        return min(self._follow_at, self._retry_at, self._silence.deadline if self._dealer is not None else float("inf"))

    def use(self, relays: Sequence[RelayAddress]) -> None:
        """Set the relays to use, nearest first. Call `connect_next` to connect to the first of them."""
        self.close()
        self._relays, self._rounds = tuple(relays), 0
        self._untried = deque(self._relays)
        self._retry_at = float("inf")

    def connect_next(self, network: SocketFactory, poller: SocketPoller, now: float) -> bool:
        """Connect to the next relay that was not tried in this round, and ask it for the weights.

        Return False if no relay is left. `tick` then begins another round after a pause.
        """
        self.close()
        while self._untried:
            self._relay, self._poller = self._untried.popleft(), poller
            try:
                address = Address.parse(self._relay.address)
                self._dealer = network.dealer(
                    address, send_hwm=HWM, recv_hwm=HWM, max_frame_bytes=self.max_frame_bytes, keys=self.keys
                )
            except TransportError:  # an address that only other processes can reach, or an invalid key
                self._counters.add("relays_left.address")
                continue
            poller.register(self._dealer)
            self._silence, self._retry_at = SilenceTimer(RELAY_ANSWER_S, now), float("inf")
            self._follow(now)
            return True
        self._relay = None
        if self._relays:
            self._retry_at = now + jittered(RELAY_RETRY.pause_s(self._rounds), self._rng)
            self._rounds += 1
        return False

    def read(self) -> Message | None:
        """Return the next message of the relay, or None if none is waiting or there is no connection.

        Raises:
            ProtocolError: If the message is malformed.
        """
        frames = self._dealer.recv(MAX_MESSAGE_FRAMES) if self._dealer is not None else None
        return decode(frames) if frames is not None else None

    def answered(self, source: WeightsSource, now: float) -> bool:
        """Record an answer of the relay. Return True if its topic, PUB socket or policy has changed since the last answer."""
        before, self.source = self.source, source
        self._silence = SilenceTimer(RELAY_SILENCE_S, now)
        self._rounds = 0
        self._untried = deque(relay for relay in self._relays if relay is not self._relay)  # to try if this one fails
        return before is None or (before.topic, before.pub, before.policy_id) != (source.topic, source.pub, source.policy_id)

    def fetch(self, held: tuple[int, int]) -> None:
        """Request the weights that are newer than the version `held`, (generation, version), from the relay."""
        self._send(FetchWeights(*held, self._client_id))

    def tick(self, now: float) -> str:
        """Repeat the request to the relay once a second.

        Returns:
            ``silent`` if the relay has failed, ``retry`` if it is time to try the relays again, else an empty string.
        """
        if self._dealer is None:
            if now < self._retry_at:
                return ""
            self._untried, self._retry_at = deque(self._relays), float("inf")
            return "retry"
        if self._silence.expired(now):
            return "silent"
        if now >= self._follow_at:
            self._follow(now)
        return ""

    def close(self) -> None:
        """Close the connection to the relay, if there is one."""
        if self._dealer is not None and self._poller is not None:
            self._poller.unregister(self._dealer)
            self._dealer.close()
        self._dealer = self._relay = self.source = None
        self._follow_at = float("inf")

    def _follow(self, now: float) -> None:
        self._follow_at = now + jittered(FOLLOW_S, self._rng)
        self._send(FollowWeights(self._client_id))

    def _send(self, message: FollowWeights | FetchWeights) -> None:
        if self._dealer is not None and not self._dealer.send(encode(message)):
            self._counters.add("sends_refused.full")  # it is repeated
