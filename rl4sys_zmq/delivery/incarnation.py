"""The numbering of incarnations, the starts of an actor.

An incarnation consists of the time and random bits (`first_incarnation`). The random bits make it unique, also if the clock was
set back or has stopped. In that case the number can be too low. The learner then sends the incarnation on record, and the actor
takes a higher one (`next_incarnation`).
"""

from __future__ import annotations

import random

__all__ = ["MAX_FIRST", "MAX_STEP", "first_incarnation", "next_incarnation"]

RANDOM_BITS = 24
MAX_FIRST = 1 << 62
"""The limit on a first incarnation: Unix time in nanoseconds in the year 2116."""

MAX_STEP = 1 << RANDOM_BITS
"""The largest step from the incarnation on record, or `MAX_FIRST`, to a new one. It keeps a peer from exhausting the numbers."""


def first_incarnation(unix_s: float, rng: random.Random) -> int:
    """Return a new incarnation: the Unix time in nanoseconds, with `RANDOM_BITS` random low bits (17 ms).

    Args:
        unix_s: The time in seconds. It need not be correct.
        rng: The source of the random bits. It must not be seeded by the clock.
    """
    ticks = min(max(int(unix_s * 1e9), 0), MAX_FIRST - 1) >> RANDOM_BITS
    return ticks << RANDOM_BITS | (rng.getrandbits(RANDOM_BITS) or 1)


def next_incarnation(known: int, rng: random.Random) -> int:
    """Return a random incarnation above `known`, so that two starts that received the same `known` get different ones."""
    return known + 1 + rng.getrandbits(RANDOM_BITS)
