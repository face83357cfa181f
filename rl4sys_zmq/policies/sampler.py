"""Random numbers for acting, from the generator of the standard library.

To import numpy's generator would cost an actor 5 MB of memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod, tau

import numpy as np
from numpy.typing import NDArray

__all__ = ["RandomSource"]

POOL = 1024
"""The number of normally distributed numbers drawn at once. A large draw needs as few numpy calls as a small one."""


class RandomSource:
    """The source of the random numbers with which one host thread chooses actions.

    The sequence depends only on the seed and the order of the calls. Threads must not share an object without a lock.

    Attributes:
        uniform: A function that returns the next random float in ``[0, 1)``. It is a bound C function for speed, because it
            runs on every step.
        place: A number in ``[0, 1)`` that depends on the actor's name. With `epsilon_ladder`, it determines how much this actor
            explores. It is equal for all threads and starts of an actor; 0 if the actor is unknown.
    """

    __slots__ = ("_normals", "_rng", "_used", "place", "uniform")

    uniform: Callable[[], float]

    def __init__(self, seed: int | None = None, place: float = 0.0) -> None:
        """Seed the generator with `seed`, an integer of at least 0. None takes a seed from the operating system."""
        self.place = place
        self._rng = random.Random(seed)
        self._normals: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._used = 0
        self.uniform = self._rng.random

    def uniforms(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return a new array of uniformly distributed numbers in ``[0, 1)``, float64 ``[*shape]``."""
        count = shape if isinstance(shape, int) else prod(shape)
        bits = np.frombuffer(self._rng.randbytes(8 * count), dtype="<u8")
        # As many bits as the fraction of a float64 has.
        drawn: NDArray[np.float64] = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
        return drawn.reshape(shape)

    def normals(self, count: int) -> NDArray[np.float32]:
        """Return the next `count` standard normal numbers, float32 ``[count]``. The array is a view: do not write to it."""
        end = self._used + count
        if end > self._normals.size:
            # A new pool, never a refilled one: the earlier views must not change.
            self._normals = self._draw_normals(max(POOL, count))
            end = count
        self._used = end
        return self._normals[end - count : end]

    def _draw_normals(self, count: int) -> NDArray[np.float32]:
        """Draw normal numbers in pairs, from pairs of uniform numbers (Box and Muller, 1958)."""
        chance, turn = self.uniforms((2, (count + 1) // 2))
        radius = np.sqrt(-2.0 * np.log1p(-chance))
        pairs = np.concatenate([radius * np.cos(tau * turn), radius * np.sin(tau * turn)])
        return pairs[:count].astype(np.float32)
