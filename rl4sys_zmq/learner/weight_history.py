"""What the gateway keeps of each policy, so that an actor that asks can be answered from memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

import numpy as np

from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, WeightsHeader, encode_update
from rl4sys_zmq.wire.messages import Beacon, Frame, Published, Weights

__all__ = ["BEACON_TOPIC", "WEIGHTS_TOPIC", "WeightHistory"]

WEIGHTS_TOPIC = b"W"
BEACON_TOPIC = b"B"
RING_ITEMS = 64
RING_BYTES = 64 << 20
"""Of past states; the last two are kept whatever their size."""
DIGESTS_KEPT = 16_384

Frames = tuple[Frame, ...]


class WeightHistory:
    """The recent states of one generation, the updates that lead to the last of them, and the digests of past versions.

    What an actor asks for is coded when the first one asks, and kept until the next version. A jump over several versions is
    coded from the two states, which is what all diffs between them add up to.

    Attributes:
        generation: of all versions.
        version: the current one.
        digest: of it.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.version = -1
        self.digest = 0
        self._policy_id = b""
        self._writing = EncodingOptions()
        self._ring: deque[PolicySnapshot] = deque()
        self._ring_bytes = 0
        self._predicted = False
        self._steps: dict[tuple[int, int], Frames] = {}
        self._digests: OrderedDict[int, int] = OrderedDict()

    def describe(self, policy_id: bytes, writing: EncodingOptions) -> None:
        """Says what is published, before the first version: by which id, and how updates are written here."""
        self._policy_id, self._writing = policy_id, writing

    def publish(self, message: Published) -> Frames:
        """Takes a new version; returns the frames that go out on the PUB: a diff, or the whole state."""
        self.version, self.digest = message.version, message.digest
        state, header, *payload = message.body
        flat = np.frombuffer(state, dtype="<f4").astype(np.float32, copy=False)
        update = (header, *(payload or (state,)))
        self._digests[message.version] = message.digest
        if len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        self._steps.clear()
        head = WeightsHeader.unpack(header)
        if not head.predicted:
            self._steps[head.base_version if head.codec.is_diff else -1, message.version] = update
        if self._ring and message.version != self._ring[-1].version + 1:
            self._ring.clear()
            self._ring_bytes = 0
        self._predicted = head.predicted
        self._ring.append(PolicySnapshot(self.generation, message.version, message.digest, flat))
        self._ring_bytes += flat.nbytes
        most = RING_ITEMS if self._writing.level else 2
        while len(self._ring) > 2 and (len(self._ring) > most or self._ring_bytes > RING_BYTES):
            self._ring_bytes -= self._ring.popleft().flat.nbytes
        return update

    @property
    def newest(self) -> PolicySnapshot:
        """The current version; there is one once `publish` was called."""
        return self._ring[-1]

    def catch_up(self, generation: int, version: int) -> Weights:
        """What brings an actor from the version it holds to the current one: a diff if that version is kept, else the whole.

        Where diffs need the version before their base, it comes in two steps, so that the actor holds the last two versions.
        """
        known = generation == self.generation and self._ring[0].version <= version < self.version
        held = version if known and self._writing.level else -1
        if self._predicted and len(self._ring) > 1:
            last = self.version - 1
            first = () if held == last else self._step(held, last)
            return Weights((*first, *self._step(last, self.version)))
        return Weights(self._step(held, self.version))

    def _step(self, held: int, version: int) -> Frames:
        """One update to a version in the ring: from another one there, or from nothing (-1)."""
        key = held, version
        if key not in self._steps:
            base = self._at(held) if held >= 0 else None
            self._steps[key] = encode_update(self._policy_id, base, self._at(version), self._writing)
        return self._steps[key]

    def _at(self, version: int) -> PolicySnapshot:
        return self._ring[version - self._ring[0].version]

    def beacon(self, alarms: Mapping[str, int]) -> Beacon:
        """The state of this policy, with the number of its client's alarms by kind."""
        return Beacon(self.generation, max(self.version, 0), self.digest, dict(alarms))

    def digest_of(self, version: int) -> int | None:
        """The digest of a version of this generation, or None when it is unknown or too old."""
        return self._digests.get(version)
