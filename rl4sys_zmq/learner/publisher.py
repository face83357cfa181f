"""What the gateway keeps of each policy, so that an actor that asks can be answered from memory."""

from __future__ import annotations

from collections import OrderedDict, deque

from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import WeightsHeader, Writing, apply_update, encode_update
from rl4sys_zmq.wire.messages import Beacon, Frame, Published, Weights

__all__ = ["BEACON_TOPIC", "WEIGHTS_TOPIC", "Publications"]

WEIGHTS_TOPIC = b"W"
BEACON_TOPIC = b"B"
RING_ITEMS = 64
RING_BYTES = 64 << 20
"""Of past snapshots, as they are on the wire; the last two are kept whatever their size."""
DIGESTS_KEPT = 16_384


class Publications:
    """The recent snapshots of one generation, the last diff, and the digests of past versions.

    A jump over several versions is coded from the two snapshots, which is what all diffs between them add up to.

    Attributes:
        generation: of all versions.
        version: the current one.
        digest: of it.
        sizes: the elements of each tensor of the policy.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.sizes: tuple[int, ...] = ()
        self.version = -1
        self.digest = 0
        self._ring: deque[tuple[int, tuple[Frame, ...]]] = deque()
        self._ring_bytes = 0
        self._diff: tuple[Frame, ...] = ()
        self._predicted = False
        self._answers: dict[int, Weights] = {}
        self._digests: OrderedDict[int, int] = OrderedDict()

    def publish(self, message: Published) -> tuple[Frame, ...]:
        """Takes a new version; returns the frames that go out on the PUB (the diff, or the first snapshot)."""
        self.version, self.digest = message.version, message.digest
        snapshot, self._diff = message.body[:2], message.body[2:]
        self._digests[message.version] = message.digest
        if len(self._digests) > DIGESTS_KEPT:
            self._digests.popitem(last=False)
        self._answers.clear()
        if not self._diff:
            self._ring.clear()
            self._ring_bytes = 0
        self._predicted = bool(self._diff) and WeightsHeader.unpack(self._diff[0]).predicted
        self._ring.append((message.version, snapshot))
        self._ring_bytes += len(snapshot[1])
        while len(self._ring) > 2 and (len(self._ring) > RING_ITEMS or self._ring_bytes > RING_BYTES):
            self._ring_bytes -= len(self._ring.popleft()[1][1])
        return self._diff or snapshot

    def catch_up(self, generation: int, version: int) -> Weights:
        """What brings an actor from the version it holds to the current one: a diff if that is smaller, else a snapshot.

        Where diffs need the version before their base, it comes in two steps, so that the actor holds the last two versions.
        """
        held = version if generation == self.generation and self._ring[0][0] <= version < self.version else -1
        if held not in self._answers:
            self._answers[held] = Weights(self._steps(held))
        return self._answers[held]

    def _steps(self, held: int) -> tuple[Frame, ...]:
        if self._predicted and len(self._ring) > 1:
            last = self.version - 1
            first = () if held == last else self._step(held, last)
            return (*first, *self._step(last, self.version))
        return self._step(held, self.version)

    def _step(self, held: int, version: int) -> tuple[Frame, ...]:
        """One update, from a version in the ring, or from nothing."""
        ring = dict(self._ring)
        if held == -1:
            return ring[version]
        if held == version - 1 and version == self.version and not self._predicted:
            return self._diff if len(self._diff[1]) < len(ring[version][1]) else ring[version]
        header = WeightsHeader.unpack(ring[version][0])
        writing = Writing(header.wire_dtype, sizes=self.sizes)  # level 1: the gateway does other things too
        step = encode_update(header.policy_id, _snapshot(ring[held]), _snapshot(ring[version]), writing)
        return step if len(step[1]) < len(ring[version][1]) else ring[version]

    def beacon(self) -> Beacon:
        """The state of this policy."""
        return Beacon(self.generation, max(self.version, 0), self.digest)

    def digest_of(self, version: int) -> int | None:
        """The digest of a version of this generation, or None when it is unknown or too old."""
        return self._digests.get(version)


def _snapshot(frames: tuple[Frame, ...]) -> PolicySnapshot:
    header = WeightsHeader.unpack(frames[0])
    return apply_update(header, frames[1], None, [header.elements])
