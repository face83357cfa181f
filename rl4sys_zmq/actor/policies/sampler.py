"""Pooled random numbers: a generator call per step costs more than the rest of the sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sampler"]

POOL = 1024
"""Numbers drawn at once: about 15 us every thousand steps."""


class Sampler:
    """Random numbers for one host thread, drawn in blocks and handed out one by one.

    The sequence is a function of the generator's state and the order of the calls. It must not be shared by threads
    without a lock.

    Attributes:
        uniform: returns the next float in ``[0, 1)``. A bound C function, not a method: it runs on every step.
    """

    __slots__ = ("_normals", "_rng", "_used", "uniform")

    uniform: Callable[[], float]

    def __init__(self, rng: np.random.Generator | np.random.SeedSequence | int | None = None) -> None:
        self._rng = np.random.default_rng(rng)
        self._normals: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._used = 0
        self.uniform = chain.from_iterable(_blocks(self._rng)).__next__

    def uniforms(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """A fresh array of uniform numbers in ``[0, 1)``, float64 ``[*shape]``."""
        return self._rng.random(shape)

    def normals(self, count: int) -> NDArray[np.float32]:
        """The next `count` standard normal numbers, float32 ``[count]``: a view of the pool, to be read only."""
        end = self._used + count
        if end > self._normals.size:
            # A fresh pool, never a refilled one: the views given out earlier stay as they are.
            self._normals = self._rng.standard_normal(max(POOL, count), dtype=np.float32)
            end = count
        self._used = end
        return self._normals[end - count : end]


def _blocks(rng: np.random.Generator) -> Iterator[list[float]]:
    while True:
        yield rng.random(POOL).tolist()
