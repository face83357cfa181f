"""The rounding of an algorithm's float32 weights before they are sent to the actors."""

from __future__ import annotations

from rl4sys_zmq.values import FlatWeights, PolicySpec
from rl4sys_zmq.weights import EncodingOptions, Steps, WireDtype, choose_steps, division_of, round_to

GRID_NOISE = 2.0
"""The distance of neighbouring rounded values, in multiples of an update's size (the root mean square of its changes).

A step larger than an update does little harm, because the rounding errors of different weights are independent, and the changes
of an update are not. On LunarLander, rounding changes the policy a thousand times less than an update does
(``benchmarks/diffs.py --grid``).
"""


class WeightQuantizer:
    """The rounding of one policy's weights, so that messages with them are smaller. Call `round` once per version, in order.

    The algorithm's own weights are not changed, so rounding errors do not add up over versions.

    Attributes:
        encoding: The options with which weights are encoded for the network.
        steps: For each rounded tensor of the last version, the distance between neighbouring rounded values, as an exponent of
            2. Empty unless `wire_dtype` is ``grid`` (multiples of this distance). A checkpoint stores these exponents.
    """

    def __init__(self, wire_dtype: str, level: int, spec: PolicySpec) -> None:
        self.encoding = EncodingOptions(WireDtype[wire_dtype.upper()], level, spec.sizes, spec.others, spec.exact)
        self.steps: Steps = ()
        self._last: FlatWeights | None = None

    def round(self, flat: FlatWeights) -> FlatWeights:
        """Return the rounded weights of the next version, float32 ``[n]``: `flat` itself for ``fp32``, else a new array.

        Tensors that are exact (`TensorSpec.exact`) are not rounded.
        """
        encoding = self.encoding
        if encoding.dtype is WireDtype.FP32:
            return flat
        parts = division_of(encoding.dtype, encoding.sizes, encoding.exact)
        weights = parts.rounded(flat)
        if encoding.dtype is WireDtype.GRID:
            self.steps = choose_steps(weights, self._last, self.steps, parts.sizes, noise=GRID_NOISE)
            self._last = weights.copy()
        return parts.joined(round_to(encoding.dtype, weights, self.steps, parts.sizes), parts.exact(flat))
