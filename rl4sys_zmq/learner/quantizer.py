"""What a learner thread publishes of its algorithm's weights: the values that travel, by the client's wire dtype."""

from __future__ import annotations

from collections.abc import Sequence

from rl4sys_zmq.values import FlatWeights
from rl4sys_zmq.weights import EncodingOptions, Steps, WireDtype, choose_steps, round_to

__all__ = ["GRID_NOISE", "Quantizer"]

GRID_NOISE = 2.0
"""The step of a grid, in sizes of an update. Rounding errors of weights have nothing to do with each other, and updates have: on
LunarLander they move the policy by a thousandth of what an update does. ``benchmarks/diffs.py --grid`` measures it."""


class Quantizer:
    """Rounds one version after the other. The algorithm's own weights stay as they are, so errors do not add up.

    Attributes:
        writing: how updates are written.
        steps: of the last version, if the wire dtype is a grid; else empty. What a checkpoint must know to go on.
    """

    def __init__(self, wire_dtype: str, level: int, sizes: Sequence[int]) -> None:
        """Nothing is published yet.

        Args:
            wire_dtype: ``fp32``, ``bf16`` or ``grid``.
            level: of the coder.
            sizes: the elements of each tensor.
        """
        self.writing = EncodingOptions(WireDtype[wire_dtype.upper()], level, tuple(sizes))
        self.steps: Steps = ()
        self._last: FlatWeights | None = None

    def round(self, flat: FlatWeights) -> FlatWeights:
        """The values of the next version, float32 ``[n]``: `flat` itself where all values travel, else a fresh array.

        Raises:
            WeightsError: for weights that can't be rounded, since they are not finite (``reason="finite"``).
        """
        writing = self.writing
        if writing.dtype is WireDtype.FP32:
            return flat
        if writing.dtype is WireDtype.GRID:
            self.steps = choose_steps(flat, self._last, self.steps, writing.sizes, noise=GRID_NOISE)
            self._last = flat.copy()
        return round_to(writing.dtype, flat, self.steps, writing.sizes)
