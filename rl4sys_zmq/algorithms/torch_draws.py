"""Random numbers for a replay from a generator of torch, whose state an algorithm saves."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


class TorchDraws:
    """The random numbers of a replay (`rl4sys_zmq.replay.Draws`), taken from a generator of torch.

    Args:
        generator: The generator. The algorithm that owns it saves and restores its state.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        """Return random integers from `low` to ``high - 1``, int64 ``[size]``."""
        drawn: NDArray[np.int64] = torch.randint(
            low, high, (size,), generator=self._generator, dtype=torch.int64, device="cpu"
        ).numpy()
        return drawn

    def random(self, size: int, /) -> NDArray[np.float64]:
        """Return random numbers in ``[0, 1)``, float64 ``[size]``."""
        drawn: NDArray[np.float64] = torch.rand(size, generator=self._generator, dtype=torch.float64, device="cpu").numpy()
        return drawn
