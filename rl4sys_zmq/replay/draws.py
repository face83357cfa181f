"""The source of random numbers for samples of a replay."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Draws(Protocol):
    """The random numbers that a replay needs, such as a `numpy.random.Generator`.

    A replay has no random state of its own. Its user passes the source with each draw, and saves the state of the source.
    """

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        """Return random integers from `low` to ``high - 1``, int64 ``[size]``."""

    def random(self, size: int, /) -> NDArray[np.float64]:
        """Return random numbers in ``[0, 1)``, float64 ``[size]``."""
