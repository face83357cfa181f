"""The publication of an algorithm's weights as numbered versions of its policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.values import FlatWeights, PolicySnapshot, PolicySpec
from rl4sys_zmq.weights import (
    EncodingOptions,
    Steps,
    WeightsHeader,
    WireDtype,
    choose_steps,
    digest,
    division_of,
    encode_update,
    round_to,
)
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import AssignClient, PolicyPublished, ThreadMessage

GRID_NOISE = 2.0
"""The distance of neighbouring rounded values, in multiples of an update's size (the root mean square of its changes).

A distance larger than an update does little harm, because the rounding errors of different weights are independent, and the
changes of an update are not. On LunarLander, rounding changes the policy a thousand times less than an update does
(``benchmarks/diffs.py --grid``).
"""


class WeightQuantizer:
    """The object that rounds one policy's weights to the wire dtype. Call `round` once per version, in order.

    The algorithm's own weights are not changed, so rounding errors do not add up over versions.
    """

    def __init__(self, wire_dtype: str, level: int, spec: PolicySpec) -> None:
        self.encoding = EncodingOptions(WireDtype[wire_dtype.upper()], level, spec.tensors)
        # For each rounded tensor of the last version, the distance of neighbouring values, as an exponent of 2. Empty unless
        # `wire_dtype` is ``grid``. A checkpoint stores these exponents.
        self.steps: Steps = ()
        self._last: FlatWeights | None = None

    def change_level(self, level: int) -> None:
        """Encode later versions at another level."""
        self.encoding = EncodingOptions(self.encoding.dtype, level, self.encoding.tensors)

    def round(self, flat: FlatWeights) -> FlatWeights:
        """Return the rounded weights of the next version, float32 ``[n]``: `flat` itself for ``fp32``. Exact tensors stay."""
        encoding = self.encoding
        if encoding.dtype is WireDtype.FP32:
            return flat
        parts = division_of(encoding.dtype, encoding.tensors)
        weights = parts.rounded(flat)
        if encoding.dtype is WireDtype.GRID:
            self.steps = choose_steps(weights, self._last, self.steps, parts.sizes, noise=GRID_NOISE)
            self._last = weights.copy()
        return parts.joined(round_to(encoding.dtype, weights, self.steps, parts.sizes), parts.exact(flat))


class PolicyPublisher:
    """The publisher of one policy, in a learner thread: it counts, rounds, encodes and sends the versions."""

    def __init__(self, assign: AssignClient, spec: PolicySpec, send: Callable[[ThreadMessage], None]) -> None:
        self.version = self._resumed_version = -1  # before the first publication, the number before the first one
        self._assign, self._spec, self._send = assign, spec, send
        self.quantizer = WeightQuantizer(assign.wire_dtype, assign.weights_level, spec)
        self._snapshot: PolicySnapshot | None = None
        self._before: PolicySnapshot | None = None
        self._master_digest = 0

    def resume(self, version: int, grid: Steps) -> None:
        """Continue from a checkpoint, before the first publication."""
        self.version, self._resumed_version = version - 1, version
        self.quantizer.steps = grid

    @property
    def first_version(self) -> int:
        """The number of the first version that this learner thread publishes.

        For the lag of a segment, a higher version of an earlier learner thread counts as this version.
        """
        return max(self._resumed_version, 0)

    def version_of(self, weights_digest: int) -> int:
        """Return the version of the algorithm's present weights, for a checkpoint.

        Weights that are not published so far have the next version. This or a resumed learner thread publishes them.
        """
        published = self._snapshot is not None and self._master_digest == weights_digest
        return self.version if published else self.version + 1

    def change_level(self, level: int) -> None:
        """Encode later versions at another level."""
        self.quantizer.change_level(level)
        self._before = None  # an actor that got whole weights may not hold the version before them

    def publish(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        flat, others = self._spec.flatten(tensors)
        self.version += 1
        wire = self.quantizer.round(flat)
        new = PolicySnapshot(self._assign.generation, self.version, digest(wire, others), wire, others)
        self._master_digest = new.digest if wire is flat else digest(flat, others)
        encoding = self.quantizer.encoding
        base = self._snapshot if encoding.level else None
        header, payload = encode_update(self._assign.policy_id, base, new, encoding, before=self._before)
        state: Frame = wire.astype("<f4", copy=False).view(np.uint8).data
        is_state = base is None and not WeightsHeader.unpack(header).others and len(payload) == len(state)
        if others:
            state = b"".join((state, others))
        self._before, self._snapshot = self._snapshot, new
        self._send(PolicyPublished(new.version, new.digest, (state, header) if is_state else (state, header, payload)))
