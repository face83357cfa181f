"""What the gateway keeps of each policy, so that an actor that asks can be answered from memory."""

from __future__ import annotations

from collections import OrderedDict, deque

from rl4sys_zmq.weights import merge_updates
from rl4sys_zmq.wire.messages import Beacon, Frame, Published, Weights

__all__ = ["BEACON_TOPIC", "WEIGHTS_TOPIC", "Publications"]

WEIGHTS_TOPIC = b"W"
BEACON_TOPIC = b"B"
RING_ITEMS = 64
DIGESTS_KEPT = 16_384


class Publications:
    """The current snapshot, a ring of the diffs that led to it, and the digests of past versions, of one generation."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.version = -1
        self.digest = 0
        self._snapshot: tuple[Frame, ...] = ()
        self._ring: deque[tuple[int, tuple[Frame, ...]]] = deque(maxlen=RING_ITEMS)
        self._digests: OrderedDict[int, int] = OrderedDict()

    def publish(self, message: Published) -> tuple[Frame, ...]:
        """Takes a new version; returns the frames that go out on the PUB (the diff, or the first snapshot)."""
        self.version, self.digest = message.version, message.digest
        self._snapshot, diff = message.body[:2], message.body[2:]
        self._digests[message.version] = message.digest
        if len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        if not diff:
            self._ring.clear()
            return self._snapshot
        self._ring.append((message.version, diff))
        return diff

    def catch_up(self, generation: int, version: int) -> Weights:
        """What brings an actor from the version it holds to the current one: one diff if that is smaller, else a snapshot."""
        missing = self.version - version
        if generation == self.generation and 0 < missing <= len(self._ring):
            diffs = [(bytes(header), payload) for v, (header, payload) in self._ring if v > version]
            merged = diffs[0] if missing == 1 else merge_updates(diffs)
            if len(merged[1]) < len(self._snapshot[1]):
                return Weights(merged)
        return Weights(self._snapshot)

    def beacon(self) -> Beacon:
        """The state of this policy."""
        return Beacon(self.generation, max(self.version, 0), self.digest)

    def digest_of(self, version: int) -> int | None:
        """The digest of a version of this generation, or None when it is unknown or too old."""
        return self._digests.get(version)
