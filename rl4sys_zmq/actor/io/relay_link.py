"""The actor's connection to a relay. A relay is not trusted: `WeightSubscriber` verifies all its weights."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from rl4sys_zmq.config import RelayAddress
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.interfaces import ConnectingSocket
from rl4sys_zmq.limits import RELAY_MESSAGE_FRAMES
from rl4sys_zmq.liveness import (
    FOLLOW_S,
    RELAY_ANSWER_S,
    RELAY_BEHIND_S,
    RELAY_PROVEN_S,
    RELAY_RETRY,
    RELAY_SILENCE_S,
    SilenceTimer,
    is_silent,
    jittered,
)
from rl4sys_zmq.transports import MAX_FRAME_BYTES, Address, Poller
from rl4sys_zmq.transports.network import Keys, SocketFactory
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import FetchWeights, FollowWeights, Message, WeightsSource

HWM = 8
MAX_IDLE_MESSAGES = 500
"""Number of messages without a new version, within a second, above which an actor leaves a relay."""
LIES = frozenset({"tag", "digest", "flood"})
"""Reasons for leaving a relay that it cannot have without fault, however well it has served before."""


def relays_told(told: Sequence[object]) -> tuple[RelayAddress, ...]:
    """Return the relays that a learner names in the handshake, without the relays that this actor cannot use."""
    relays = []
    for entry in told:
        if isinstance(entry, list) and len(entry) == 2:
            try:
                relays.append(RelayAddress(address=entry[0], key=entry[1] or None))
            except ConfigError:
                continue
    return tuple(relays)


class RelayLink:
    """The connection of one actor to a relay, one relay at a time. The I/O thread uses it.

    `WeightSubscriber` applies the weights, and leaves the relay if `fault` names a reason. A round tries each relay once. The
    pauses between rounds grow unless a relay has served for `RELAY_PROVEN_S` seconds.
    """

    def __init__(self, client_id: str, keys: Keys | None, counters: Counters, rng: random.Random) -> None:
        self.source: WeightsSource | None = None  # relay's answer to the last `FollowWeights`. None before the first answer
        self._client_id, self._keys, self._counters, self._rng = client_id, keys, counters, rng
        self._relays: tuple[RelayAddress, ...] = ()
        self._generation = 0
        self.max_frame_bytes = MAX_FRAME_BYTES  # largest frame to accept from a relay. Set it before `connect_next`
        self._untried: deque[RelayAddress] = deque()
        self._relay: RelayAddress | None = None
        self._dealer: ConnectingSocket | None = None
        self._poller: Poller | None = None
        self._silence = SilenceTimer(RELAY_SILENCE_S)
        self._follow_at = self._retry_at = float("inf")
        self._rounds = 0
        self._used_since: float | None = None
        self._owed: tuple[int, float] | None = None
        self._second_began, self._idle_messages = 0.0, 0

    @property
    def in_use(self) -> bool:
        return self._used_since is not None

    @property
    def address(self) -> Address | None:
        return Address.parse(self._relay.address) if self._relay is not None else None

    @property
    def keys(self) -> Keys | None:
        if self._keys is None or self._relay is None or self._relay.key is None:
            return None
        return (*self._keys[:2], self._relay.key)

    @property
    def next_deadline(self) -> float:
        return min(self._follow_at, self._retry_at, self._silence.deadline if self._dealer is not None else float("inf"))

    def use(self, relays: Sequence[RelayAddress], generation: int = 0) -> None:
        """Set the relays to use, nearest first. Call `connect_next` to connect to the first of them."""
        self.close()
        self._relays, self._generation, self._rounds = tuple(relays), generation, 0
        self._untried = deque(self._relays)
        self._retry_at = float("inf")

    def connect_next(self, network: SocketFactory, poller: Poller, now: float) -> bool:
        """Connect to the next relay of this round, and ask it for the weights. Return False if no relay is left."""
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

    def receive(self) -> Message | None:
        frames = self._dealer.recv(RELAY_MESSAGE_FRAMES) if self._dealer is not None else None
        return decode(frames) if frames is not None else None

    def received(self, messages: int, now: float) -> None:
        """Count messages of the relay. A call with -1 takes back the count of a message that brought a new version."""
        if now - self._second_began >= 1.0:
            self._second_began, self._idle_messages = now, 0
        self._idle_messages += messages

    def answered(self, source: WeightsSource, now: float) -> bool:
        """Record the relay's answer `source`. Return True if the relay's topic, PUB socket or policy has changed."""
        before, self.source = self.source, source
        self._silence = SilenceTimer(RELAY_SILENCE_S, now)
        return before is None or (before.topic, before.pub, before.policy_id) != (source.topic, source.pub, source.policy_id)

    def mark_in_use(self, now: float) -> None:
        self._owed = None
        if self._used_since is None:
            self._used_since = now

    def announced(self, version: int, held: int, now: float) -> None:
        """Compare the newest version that the learner announces with the version `held` by the actor (-1: no version)."""
        if self._owed is not None and held >= self._owed[0]:
            self._owed = None
        if version > held and self._owed is None:
            self._owed = version, now

    def fault(self, now: float) -> tuple[str, str] | None:
        """Return the reason why the actor must leave the relay, as a word and a sentence; None if there is no reason."""
        if self._dealer is None:
            return None
        if self._silence.expired(now):
            return "silent", "it does not answer"
        if self._idle_messages > MAX_IDLE_MESSAGES:
            return "flood", f"it has sent {self._idle_messages} messages without a new version within a second"
        if self.in_use and self._owed is not None and is_silent(now, self._owed[1], RELAY_BEHIND_S):
            return "behind", f"it has no version {self._owed[0]}, which the learner has published"
        return None

    def leave(self, reason: str, now: float) -> None:
        """Close the connection to the relay. `reason` is the word that `fault` returned."""
        # After a relay that has served well, all others can be tried at once, and the next pauses are short again.
        if self._used_since is not None and now - self._used_since >= RELAY_PROVEN_S and reason not in LIES:
            self._rounds = 0
            self._untried = deque(relay for relay in self._relays if relay is not self._relay)
        self.close()

    def fetch(self, held: tuple[int, int]) -> None:
        """Request the weights that are newer than the version `held`, (generation, version), from the relay."""
        self._send(FetchWeights(*held, self._client_id))

    def tick(self, now: float) -> None:
        if self._dealer is not None and now >= self._follow_at:
            self._follow(now)

    def retry_due(self, now: float) -> bool:
        """Return True if it is time to try the relays again; then call `connect_next`."""
        if self._dealer is not None or now < self._retry_at:
            return False
        self._untried, self._retry_at = deque(self._relays), float("inf")
        return True

    def close(self) -> None:
        if self._dealer is not None and self._poller is not None:
            self._poller.unregister(self._dealer)
            self._dealer.close()
        self._dealer = self._relay = self.source = None
        self._used_since = self._owed = None
        self._idle_messages = 0
        self._follow_at = float("inf")

    def _follow(self, now: float) -> None:
        self._follow_at = now + jittered(FOLLOW_S, self._rng)
        self._send(FollowWeights(self._client_id, generation=self._generation))

    def _send(self, message: FollowWeights | FetchWeights) -> None:
        if self._dealer is not None and not self._dealer.send(encode(message)):
            self._counters.add("sends_refused.full")  # it is repeated
