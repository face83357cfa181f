"""The publication of an algorithm's weights as numbered versions of its policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.learner.training.quantizer import WeightQuantizer
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.weights import Steps, WeightsHeader, digest, encode_update
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import AssignClient, PolicyPublished, ThreadMessage


class PolicyPublisher:
    """The versions of one policy that a learner thread has published. It counts, rounds, encodes and sends them.

    Attributes:
        version: The number of the newest version; before the first publication, the number before the first one.
    """

    def __init__(self, assign: AssignClient, spec: PolicySpec, send: Callable[[ThreadMessage], None]) -> None:
        self.version = self._resumed_version = -1
        self._assign, self._spec, self._send = assign, spec, send
        self._quantizer = WeightQuantizer(assign.wire_dtype, assign.weights_level, spec)
        self._snapshot: PolicySnapshot | None = None
        self._before: PolicySnapshot | None = None
        self._master_digest = 0

    def resume(self, version: int, grid: Steps) -> None:
        """Continue from a checkpoint, before the first publication."""
        self.version, self._resumed_version = version - 1, version
        self._quantizer.steps = grid

    @property
    def first_version(self) -> int:
        """The number of the first policy version that this learner thread publishes.

        It is also used for segments from earlier learner threads, to compute how old they are: a higher version number counts
        as this number.
        """
        return max(self._resumed_version, 0)

    @property
    def grid(self) -> Steps:
        """The distances of the rounded values of the newest version (`WeightQuantizer.steps`)."""
        return self._quantizer.steps

    def version_of(self, weights_digest: int) -> int:
        """Return the version of the algorithm's present weights, for a checkpoint.

        If the weights are published, this is their version. Otherwise it is the next version, which these weights get when they
        are published by this learner thread, or by one that resumes from the checkpoint.
        """
        published = self._snapshot is not None and self._master_digest == weights_digest
        return self.version if published else self.version + 1

    def publish(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Send the weights to the gateway as the next version."""
        flat, others = self._spec.flatten(tensors)
        self.version += 1
        wire = self._quantizer.round(flat)
        new = PolicySnapshot(self._assign.generation, self.version, digest(wire, others), wire, others)
        self._master_digest = new.digest if wire is flat else digest(flat, others)
        writing = self._quantizer.encoding
        base = self._snapshot if writing.level else None
        header, payload = encode_update(self._assign.policy_id, base, new, writing, before=self._before)
        state: Frame = wire.astype("<f4", copy=False).view(np.uint8).data
        is_state = base is None and not WeightsHeader.unpack(header).others and len(payload) == len(state)
        if others:
            state = b"".join((state, others))
        self._before, self._snapshot = self._snapshot, new
        self._send(PolicyPublished(new.version, new.digest, (state, header) if is_state else (state, header, payload)))
