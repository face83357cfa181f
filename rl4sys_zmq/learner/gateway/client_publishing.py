"""The publication of one client's weights: their history, their topic and tags, and the policy's description."""

from __future__ import annotations

import os
from typing import Any

from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.weights import TAG_KEY_BYTES, EncodingOptions
from rl4sys_zmq.wire.messages import Frame, WeightsSource
from rl4sys_zmq.wire.thread_messages import ThreadReady


def _new_topic() -> bytes:
    return os.urandom(8)  # a peer cannot guess it, so only invited peers subscribe


class ClientPublishing:
    """The publication of one client's weights.

    Attributes:
        policy_id: The id of the policy in messages, 8 bytes.
        history: The recent weights that the current learner thread has published.
        topic: The PUB topic of weights and beacons: 8 bytes, without the first one, which is the kind of the message.
        tag_key: The secret key of the tags of versions (`rl4sys_zmq.weights.tag_of`); empty if versions get no tags.
        spec: The policy; None until the first learner thread is ready.
        spec_document: The policy as a `Welcome` describes it, with the frames in `spec_body`.
        beacon_due: True if a new subscriber waits for a beacon.
        next_beacon_at: The earliest time for that beacon, on the monotonic clock, in seconds.
    """

    def __init__(self, policy_id: bytes, generation: int) -> None:
        self.policy_id = policy_id
        self.history = WeightHistory(generation)
        self.topic = _new_topic()
        self.tag_key = b""
        self.spec: PolicySpec | None = None
        self.spec_document: dict[str, Any] = {}
        self.spec_body: tuple[Frame, ...] = ()
        self.beacon_due, self.next_beacon_at = False, 0.0

    def describe(self, message: ThreadReady, spec: PolicySpec, writing: EncodingOptions) -> None:
        """Store the description of the policy that a learner thread is going to publish."""
        self.spec, self.spec_document, self.spec_body = spec, message.spec, message.body
        self.history.describe(self.policy_id, writing)
        self.history.tag_with(self.tag_key)

    def start_tagging(self) -> None:
        """Publish a tag with each version from now on, under a new key, so that actors can take the weights from relays.

        The actors get the key in their next `Welcome`.
        """
        self.tag_key = os.urandom(TAG_KEY_BYTES)
        self.history.tag_with(self.tag_key)

    def change_topic(self) -> None:
        """Continue under a new topic, and with tags under a new key."""
        self.topic = _new_topic()
        if self.tag_key:
            self.start_tagging()

    def source(self, client_id: str, pub: str) -> WeightsSource:
        """Return the answer to a relay that asks where the weights are published."""
        return WeightsSource(
            client_id=client_id,
            policy_id=self.policy_id,
            topic=self.topic,
            generation=self.history.generation,
            version=self.history.version,
            digest=self.history.digest,
            tensors=self.spec_document["tensors"],
            pub=pub,
        )
