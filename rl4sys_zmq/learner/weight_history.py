"""The recent versions of a policy's weights. They are kept in memory for actors that request weights."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

import numpy as np

from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, WeightsHeader, encode_update
from rl4sys_zmq.wire.messages import Beacon, Frame, PolicyPublished, WeightsReply

__all__ = ["WeightHistory"]

RING_ITEMS = 64
RING_BYTES = 64 << 20
"""Limits on the versions whose weights are kept: their number, and their total size in bytes.

The last two versions are always kept.
"""
DIGESTS_KEPT = 16_384

Frames = tuple[Frame, ...]


class WeightHistory:
    """The recent weights of one policy, encoded updates to the newest weights, and checksums of past versions.

    The history covers the versions that one learner thread has published (one generation).

    An update takes an actor from an older version to the newest one. It is encoded when the first actor requests it, and kept
    until the next version. An update over several versions is one diff between the old and the new weights.

    Attributes:
        generation: The number of the learner thread that published all these versions.
        version: Number of the newest version; -1 before the first one.
        digest: Checksum (xxh3-64) of the newest weights.
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
        """Set the id of the policy in messages (8 bytes), and the options for encoding its weights.

        Call this before the first `publish`.
        """
        self._policy_id, self._writing = policy_id, writing

    def publish(self, message: PolicyPublished) -> Frames:
        """Add a new version, and return the message frames to send to all subscribed actors: a diff, or all weights.

        Args:
            message: The learner thread's message with the new version.
        """
        self.version, self.digest = message.version, message.digest
        state, header, *payload = message.body
        head = WeightsHeader.unpack(header)
        flat = np.frombuffer(state, "<f4", head.elements).astype(np.float32, copy=False)
        others = bytes(memoryview(state)[flat.nbytes :])
        update = (header, *(payload or (state,)))
        self._digests[message.version] = message.digest
        if len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        self._steps.clear()
        if not head.predicted:
            self._steps[head.base_version if head.codec.is_diff else -1, message.version] = update
        if self._ring and message.version != self._ring[-1].version + 1:
            self._ring.clear()
            self._ring_bytes = 0
        self._predicted = head.predicted
        self._ring.append(PolicySnapshot(self.generation, message.version, message.digest, flat, others))
        self._ring_bytes += len(state)
        most = RING_ITEMS if self._writing.level else 2
        while len(self._ring) > 2 and (len(self._ring) > most or self._ring_bytes > RING_BYTES):
            gone = self._ring.popleft()
            self._ring_bytes -= gone.flat.nbytes + len(gone.others)
        return update

    @property
    def newest(self) -> PolicySnapshot:
        """The weights of the newest version. There are none before the first `publish`."""
        return self._ring[-1]

    def catch_up(self, generation: int, version: int) -> WeightsReply:
        """Return the weight update that takes one actor from the version that it has to the newest one.

        The update is a diff if the weights of the actor's version are kept here; otherwise it contains all weights.

        Some diffs can only be decoded with the last two versions. Then the update has two steps, to the version before the
        newest one and from there to the newest one, so that the actor can decode the next diff.

        Args:
            generation: Number of the learner thread that published the actor's version.
            version: The actor's version.
        """
        known = generation == self.generation and self._ring[0].version <= version < self.version
        held = version if known and self._writing.level else -1
        if self._predicted and len(self._ring) > 1:
            last = self.version - 1
            first = () if held == last else self._step(held, last)
            return WeightsReply((*first, *self._step(last, self.version)))
        return WeightsReply(self._step(held, self.version))

    def _step(self, held: int, version: int) -> Frames:
        """Return the frames of an encoded update to a version that is kept.

        Args:
            held: The version to encode a diff from; -1 to encode all weights.
            version: The version to reach.
        """
        key = held, version
        if key not in self._steps:
            base = self._at(held) if held >= 0 else None
            self._steps[key] = encode_update(self._policy_id, base, self._at(version), self._writing)
        return self._steps[key]

    def _at(self, version: int) -> PolicySnapshot:
        return self._ring[version - self._ring[0].version]

    def beacon(self, alarms: Mapping[str, int]) -> Beacon:
        """Return the beacon of this policy: the periodic message with its newest version and the checksum of its weights.

        Args:
            alarms: The number of alarms (reported problems of the policy's training) by kind. They are part of the message.
        """
        return Beacon(self.generation, max(self.version, 0), self.digest, dict(alarms))

    def digest_of(self, version: int) -> int | None:
        """Return the checksum of a version's weights; None if it is no longer kept, or the version was never published here."""
        return self._digests.get(version)
