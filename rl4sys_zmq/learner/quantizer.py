"""Rounds an algorithm's float32 weights for publication: the values that travel, by the client's wire dtype."""

from __future__ import annotations

from rl4sys_zmq.values import FlatWeights, PolicySpec
from rl4sys_zmq.weights import EncodingOptions, Steps, WireDtype, choose_steps, round_to

__all__ = ["GRID_NOISE", "Quantizer"]

GRID_NOISE = 2.0
"""The step of a grid, in multiples of the size of an update.

Rounding errors of different weights are independent, updates are not: on LunarLander rounding moves the policy by a thousandth
of what an update does. ``benchmarks/diffs.py --grid`` measures it.
"""


class Quantizer:
    """Rounds each version in turn. The algorithm's own weights do not change, so errors do not add up.

    Attributes:
        encoding: The encoding options of updates.
        steps: The grid steps of the last version; empty unless the wire dtype is a grid. A checkpoint stores them.
    """

    def __init__(self, wire_dtype: str, level: int, spec: PolicySpec) -> None:
        """Create a quantizer that has published nothing.

        Args:
            wire_dtype: ``fp32``, ``bf16`` or ``grid``.
            level: Compression level of the coder.
            spec: The policy.
        """
        self.encoding = EncodingOptions(WireDtype[wire_dtype.upper()], level, spec.sizes, spec.others)
        self.steps: Steps = ()
        self._last: FlatWeights | None = None

    def round(self, flat: FlatWeights) -> FlatWeights:
        """Return the values of the next version, float32 ``[n]``: `flat` itself for ``fp32``, else a new array.

        Raises:
            WeightsError: If the weights are not finite and so cannot be rounded (``reason="finite"``).
        """
        encoding = self.encoding
        if encoding.dtype is WireDtype.FP32:
            return flat
        if encoding.dtype is WireDtype.GRID:
            self.steps = choose_steps(flat, self._last, self.steps, encoding.sizes, noise=GRID_NOISE)
            self._last = flat.copy()
        return round_to(encoding.dtype, flat, self.steps, encoding.sizes)
