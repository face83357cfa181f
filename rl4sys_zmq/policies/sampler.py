"""Random numbers for acting, from the standard library's generator: loading numpy's costs an actor 5 MB."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod, tau

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sampler"]

POOL = 1024
"""Normal numbers drawn at once: each draw is a handful of numpy calls, however many it gives."""


class Sampler:
    """Random numbers for one host thread.

    The sequence is a function of the seed and the order of the calls. It must not be shared by threads without a lock.

    Attributes:
        uniform: returns the next float in ``[0, 1)``. A bound C function, not a method: it runs on every step.
    """

    __slots__ = ("_normals", "_rng", "_used", "uniform")

    uniform: Callable[[], float]

    def __init__(self, seed: int | None = None) -> None:
        """Makes one from a seed, any integer from 0 on; None: from the operating system."""
        self._rng = random.Random(seed)
        self._normals: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._used = 0
        self.uniform = self._rng.random

    def uniforms(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """A fresh array of uniform numbers in ``[0, 1)``, float64 ``[*shape]``."""
        count = shape if isinstance(shape, int) else prod(shape)
        bits = np.frombuffer(self._rng.randbytes(8 * count), dtype="<u8")
        # As many bits as the fraction of a float64 has.
        drawn: NDArray[np.float64] = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
        return drawn.reshape(shape)

    def normals(self, count: int) -> NDArray[np.float32]:
        """The next `count` standard normal numbers, float32 ``[count]``: a view of the pool, to be read only."""
        end = self._used + count
        if end > self._normals.size:
            # A fresh pool, never a refilled one: the views given out earlier stay as they are.
            self._normals = self._draw_normals(max(POOL, count))
            end = count
        self._used = end
        return self._normals[end - count : end]

    def _draw_normals(self, count: int) -> NDArray[np.float32]:
        """By Box and Muller (1958): two of each pair of uniform numbers."""
        chance, turn = self.uniforms((2, (count + 1) // 2))
        radius = np.sqrt(-2.0 * np.log1p(-chance))
        pairs = np.concatenate([radius * np.cos(tau * turn), radius * np.sin(tau * turn)])
        return pairs[:count].astype(np.float32)
