"""The recent versions of a policy's weights. A learner or a relay keeps them in memory for peers that request weights."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

import numpy as np

from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, WeightsHeader, encode_update, tag_of
from rl4sys_zmq.wire.messages import AnyBytes, Beacon, Frame, WeightsReply
from rl4sys_zmq.wire.thread_messages import PolicyPublished

RING_ITEMS = 64
# Versions whose weights are kept, and their size. The last two are always kept.
RING_BYTES = 64 << 20
DIGESTS_KEPT = 16_384

Frames = tuple[Frame, ...]
"""The frames of one or more encoded updates: the weights header and the payload of each."""


class WeightHistory:
    """The newest versions of one policy's weights, diffs from older versions to the newest, and digests of past versions.

    A diff is encoded when the first actor requests it, and kept until the next version. It can span several versions.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation  # generation of all these versions
        self.version = -1  # number of the newest version; -1 before the first one
        self.digest = 0  # checksum (xxh3-64) of the newest weights
        self.nbytes = 0  # total size of the weights that are kept, in bytes
        self._policy_id = b""
        self._tag_key = b""
        self._tags: dict[int, bytes] = {}
        self._writing = EncodingOptions()
        self._ring: deque[PolicySnapshot] = deque()
        self._predicted = False
        self._steps: dict[tuple[int, int], Frames] = {}
        self._digests: OrderedDict[int, int] = OrderedDict()

    def describe(self, policy_id: bytes, writing: EncodingOptions) -> None:
        """Set the id of the policy in messages (8 bytes), and the options for encoding. Call this before the first `publish`."""
        self._policy_id, self._writing = policy_id, writing

    def tag_with(self, key: bytes) -> None:
        """Give the newest two versions and all later ones a tag under this key. With an empty key, later ones get no tag."""
        self._tag_key = key
        self._tags = {s.version: tag_of(key, self._policy_id, s) for s in list(self._ring)[-2:]} if key else {}

    def publish(self, message: PolicyPublished) -> Frames:
        """Add a new version, and return the frames for all subscribers: header, payload, and the tag, if any."""
        state, header, *payload = message.body
        head = WeightsHeader.unpack(header)
        flat = np.frombuffer(state, "<f4", head.elements).astype(np.float32, copy=False)
        others = bytes(memoryview(state)[flat.nbytes :])
        update = (header, *(payload or (state,)))
        snapshot = PolicySnapshot(self.generation, message.version, message.digest, flat, others)
        tag = tag_of(self._tag_key, self._policy_id, snapshot) if self._tag_key else b""
        self.add(snapshot, head, update, tag)
        return (*update, tag) if tag else update

    def add(self, snapshot: PolicySnapshot, head: WeightsHeader, update: Frames, tag: bytes) -> None:
        """Add a new version. `update` is the received message with its diff or weights, and `head` the decoded header.

        A relay calls this after it has verified the update. An empty tag means none.
        """
        self.version, self.digest = snapshot.version, snapshot.digest
        self._digests[snapshot.version] = snapshot.digest
        if len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        self._steps.clear()
        if not head.predicted:
            self._steps[head.base_version if head.codec.is_diff else -1, snapshot.version] = update
        if self._ring and snapshot.version != self._ring[-1].version + 1:
            self._ring.clear()
            self.nbytes = 0
        self._predicted = head.predicted
        self._ring.append(snapshot)
        self.nbytes += _size(snapshot)
        most = RING_ITEMS if self._writing.level else 2
        while len(self._ring) > 2 and (len(self._ring) > most or self.nbytes > RING_BYTES):
            self.nbytes -= _size(self._ring.popleft())
        self._tags = {version: known for version, known in self._tags.items() if version == snapshot.version - 1}
        self.set_tag(tag)

    def set_tag(self, tag: bytes) -> None:
        """Set the tag of the newest version. A relay calls this if a beacon has a newer tag. An empty tag is ignored."""
        if tag:
            self._tags[self.version] = tag

    @property
    def versions(self) -> int:
        return len(self._ring)

    @property
    def before(self) -> PolicySnapshot | None:
        """The weights of the version before the newest, or None. Some diffs can only be decoded with the last two versions."""
        return self._ring[-2] if len(self._ring) > 1 else None

    @property
    def newest(self) -> PolicySnapshot:
        """The weights of the newest version. The call fails before the first `publish`."""
        return self._ring[-1]

    def catch_up(self, generation: int, version: int) -> WeightsReply:
        """Return what an actor with a given version needs for the newest one: a diff if its version is kept, else all weights.

        Some diffs can only be decoded with the last two versions. Then the reply has two diffs, to the version before the
        newest one and from there to the newest one.
        """
        known = generation == self.generation and self._ring[0].version <= version < self.version
        held = version if known and self._writing.level else -1
        if self._predicted and len(self._ring) > 1:
            last = self.version - 1
            first = () if held == last else self._step(held, last)
            return self._reply((*first, *self._step(last, self.version)), last, self.version)
        return self._reply(self._step(held, self.version), self.version)

    def _reply(self, body: Frames, *versions: int) -> WeightsReply:
        """Return a reply with the encoded weights or diffs `body`, and with the tag of each version that they lead to.

        `versions` are these versions, oldest first. If `body` has one diff only, it leads to the last of them.
        """
        tags = [self._tags.get(version, b"") for version in versions[-(len(body) // 2) :]]
        return WeightsReply(body, tags if any(tags) else [])

    def _step(self, held: int, version: int) -> Frames:
        """Return the diff from the version `held` to `version`, encoded; all weights of `version` if `held` is -1."""
        key = held, version
        if key not in self._steps:
            base = self._at(held) if held >= 0 else None
            self._steps[key] = encode_update(self._policy_id, base, self._at(version), self._writing)
        return self._steps[key]

    def _at(self, version: int) -> PolicySnapshot:
        return self._ring[version - self._ring[0].version]

    def beacon(self, alarms: Mapping[str, int]) -> Beacon:
        """Return the beacon of this policy, with its newest version, digest and tag, and the number of alarms by kind."""
        tag = AnyBytes(self._tags.get(self.version, b""))
        return Beacon(self.generation, max(self.version, 0), self.digest, dict(alarms), tag)

    def digest_of(self, version: int) -> int | None:
        """Return the digest of a version; None if it is no longer kept, or the version was never published here."""
        return self._digests.get(version)


def _size(snapshot: PolicySnapshot) -> int:
    return snapshot.flat.nbytes + len(snapshot.others)
