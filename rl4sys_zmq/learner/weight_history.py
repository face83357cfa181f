"""The recent weights of each policy, which the gateway keeps in memory to answer `Fetch`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

import numpy as np

from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, WeightsHeader, encode_update
from rl4sys_zmq.wire.messages import Beacon, Frame, Published, Weights

__all__ = ["WeightHistory"]

RING_ITEMS = 64
RING_BYTES = 64 << 20
"""Limits on the states that are kept, in number and bytes. The last two are always kept."""
DIGESTS_KEPT = 16_384

Frames = tuple[Frame, ...]


class WeightHistory:
    """The recent weights of one client, the encoded updates to the newest ones, and the digests of past versions.

    The history covers one generation: the versions that one learner thread published.

    An update is encoded when the first actor requests it, and is kept until the next version. An update over several versions
    is encoded from its two states, which gives the same result as all diffs between them.

    Attributes:
        generation: The generation of all versions.
        version: The current version; -1 before the first.
        digest: The digest of the current version.
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
        """Set the policy id and the encoding of updates. Call this before the first version."""
        self._policy_id, self._writing = policy_id, writing

    def publish(self, message: Published) -> Frames:
        """Add a new version, and return the frames to publish: a diff or the whole state."""
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
        """The current version. Call `publish` first."""
        return self._ring[-1]

    def catch_up(self, generation: int, version: int) -> Weights:
        """Return the update from the version that an actor holds to the current one.

        It is a diff if that version is kept here, else the whole state. If diffs need the version before their base, it has
        two steps, after which the actor holds the last two versions.
        """
        known = generation == self.generation and self._ring[0].version <= version < self.version
        held = version if known and self._writing.level else -1
        if self._predicted and len(self._ring) > 1:
            last = self.version - 1
            first = () if held == last else self._step(held, last)
            return Weights((*first, *self._step(last, self.version)))
        return Weights(self._step(held, self.version))

    def _step(self, held: int, version: int) -> Frames:
        """Return one update to a version in the ring: a diff from the version `held`, or the whole state if that is -1."""
        key = held, version
        if key not in self._steps:
            base = self._at(held) if held >= 0 else None
            self._steps[key] = encode_update(self._policy_id, base, self._at(version), self._writing)
        return self._steps[key]

    def _at(self, version: int) -> PolicySnapshot:
        return self._ring[version - self._ring[0].version]

    def beacon(self, alarms: Mapping[str, int]) -> Beacon:
        """Return the beacon of this policy, with the number of its client's alarms by kind."""
        return Beacon(self.generation, max(self.version, 0), self.digest, dict(alarms))

    def digest_of(self, version: int) -> int | None:
        """Return the digest of a version of this generation, or None if it is unknown or no longer kept."""
        return self._digests.get(version)
