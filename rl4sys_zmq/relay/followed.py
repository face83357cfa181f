"""The weights of one client in a relay, which verifies them and passes them on."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.liveness import BEACON_TOPIC, NEWCOMER_BEACON_S, WEIGHTS_TOPIC
from rl4sys_zmq.security.access import TokenBucket
from rl4sys_zmq.transports import MAX_FRAME_BYTES
from rl4sys_zmq.values.policy import other_bytes
from rl4sys_zmq.weights import TRAILER_BYTES, EncodingOptions, WeightsHeader, apply_update
from rl4sys_zmq.wire import tensors_from_document
from rl4sys_zmq.wire.messages import Beacon, Frame, WeightsSource

MAX_WEIGHT_BYTES = MAX_FRAME_BYTES - TRAILER_BYTES
"""The largest size of a version's weights: what fits into a frame."""


class FollowedClient:
    """The weights of one client, as a relay holds them: the recent versions, and the children that wait for a version. The
    object does no I/O.

    All times are on the monotonic clock, in seconds.
    """

    def __init__(self, client_id: str, now: float) -> None:
        self.client_id = client_id
        self.topic = os.urandom(8)  # relay's own topic for this client, 8 random bytes
        self.source: WeightsSource | None = None  # upstream's last answer; None before the first one
        self.followers: dict[bytes, float] = {}  # time of the last request of each child for this client, by routing id
        self.waiting: set[bytes] = set()  # routing ids of the children to answer when the first version has arrived
        self.fetches: dict[bytes, TokenBucket] = {}  # limit on the requests of each child for weights, by routing id
        self.asked_at = now  # last request of a child
        self.follow_at = now  # next request of the relay
        self.followed_at = float("-inf")  # last request of the relay
        self.beacon_at = float("-inf")
        self.wanted = 0  # newest generation for which a child waits; 0 for none
        self.fetch_at = 0.0  # time at which a request for missing weights is repeated; 0 if nothing was requested
        self.whole = False  # true if all weights, and not a diff, are requested
        self.refusal = ""  # reason for which the upstream refuses this client; empty if it does not
        self.beacon: list[Frame] = []  # the newest beacon that was passed on, last published at `beacon_at`
        self.beacon_due = False  # true if it must be published again, for new subscribers
        self.updates = 0
        self.history = WeightHistory(0)  # the versions of the present generation that are held
        self._options = EncodingOptions()

    @property
    def next_deadline(self) -> float:
        beacon_at = self.beacon_at + NEWCOMER_BEACON_S if self.beacon_due else self.follow_at
        return min(self.follow_at, self.fetch_at or self.follow_at, beacon_at)

    @property
    def has_weights(self) -> bool:
        return self.history.version >= 0

    @property
    def held(self) -> tuple[int, int]:
        """The (generation, version) of the newest version in `history`; (0, 0) for none."""
        return (self.history.generation, self.history.version) if self.has_weights else (0, 0)

    @property
    def upstream_topics(self) -> list[bytes]:
        """The topics of this client's beacons and weights at the upstream; empty before the upstream's first answer."""
        return [kind + self.source.topic for kind in (BEACON_TOPIC, WEIGHTS_TOPIC)] if self.source is not None else []

    def change_topic(self) -> None:
        """Publish under a new topic from now on. The children get it in the answer to their next request."""
        self.topic = os.urandom(8)

    def adopt(self, source: WeightsSource) -> None:
        """Use the upstream's answer about this client. If its policy or generation is another one, discard all versions."""
        before, tensors = self.source, tensors_from_document(source.tensors)
        nbytes = other_bytes(tensors)
        if nbytes > MAX_WEIGHT_BYTES:
            raise ProtocolError(RefusalReason.TOO_LARGE, f"a policy with {nbytes} bytes of weights; limit {MAX_WEIGHT_BYTES}")
        same = before is not None and (before.policy_id, before.generation) == (source.policy_id, source.generation)
        self.source, self.refusal = source, ""
        if same and tensors == self._options.tensors:
            return
        self.history = WeightHistory(source.generation)
        self._options = EncodingOptions(tensors=tensors)
        self.history.describe(source.policy_id, self._options)
        self.beacon, self.beacon_due, self.fetch_at, self.whole = [], False, 0.0, False

    def lacks(self, version: int, digest: int) -> bool:
        """Return True if weights are missing or wrong, given the upstream's newest version and its digest."""
        if not self.has_weights or version > self.history.version:
            return True
        self.whole = self.whole or (version == self.history.version and digest != self.history.digest)
        return self.whole

    def apply(self, head: WeightsHeader, header: Frame, payload: Frame, tag: bytes) -> bool:
        """Verify an update, and hold the version to which the update leads. Return False if the version is already held."""
        source, history = self.source, self.history
        if source is None or (head.policy_id, head.generation) != (source.policy_id, source.generation):
            return False
        if head.new_version <= history.version and not self.whole:
            if head.new_version == history.version:
                self.fetch_at = 0.0
                history.set_tag(tag)
            return False
        newest, before = (history.newest, history.before) if self.has_weights else (None, None)
        if self._options.dtype is not head.wire_dtype:
            self._options = replace(self._options, dtype=head.wire_dtype)
            history.describe(source.policy_id, self._options)
        new = apply_update(head, payload, newest, self._options.tensors, before=before)
        history.add(new, head, (header, payload), tag)
        self.fetch_at, self.whole = 0.0, False
        self.updates += 1
        return True

    def take_beacon(self, beacon: Beacon, frames: list[Frame]) -> bool:
        """Return True if a beacon names the newest version here. Then keep the beacon, to pass it on, and its tag."""
        if not self.has_weights or (beacon.generation, beacon.version, beacon.digest) != (*self.held, self.history.digest):
            return False
        self.history.set_tag(beacon.tag)
        self.beacon = frames
        return True

    def answer(self, pub: str) -> WeightsSource:
        """Return the answer to a child that asks where this client's weights are published. A version must be held."""
        assert self.source is not None
        generation, version = self.held
        ours = replace(self.source, topic=self.topic, pub=pub)
        return replace(ours, generation=generation, version=version, digest=self.history.digest)

    def report(self) -> dict[str, Any]:
        history = self.history
        return {
            "generation": self.held[0],
            "version": history.version,
            "digest": f"{history.digest:016x}",
            "upstream_version": self.source.version if self.source is not None else -1,
            "children": len(self.followers),
            "updates": self.updates,
            "history_versions": history.versions,
            "history_bytes": history.nbytes,
            "error": self.refusal,
        }
