"""Random numbers for a replay from a generator of torch, whose state an algorithm saves."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


class TorchDraws:
    """Random numbers from a generator of torch, whose owner saves and restores its state. It implements `Draws`."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        drawn: NDArray[np.int64] = torch.randint(
            low, high, (size,), generator=self._generator, dtype=torch.int64, device="cpu"
        ).numpy()
        return drawn

    def random(self, size: int, /) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = torch.rand(size, generator=self._generator, dtype=torch.float64, device="cpu").numpy()
        return drawn
