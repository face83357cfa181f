"""Numbers for the starts of an actor: unique by chance, and in order by the learner's word where the clock is wrong.

A start takes the time and random bits (`first_incarnation`). A clock that went back, or stands still, so gives a number that no
other start has, but perhaps one that is too low. The learner then names the one on record, and the actor takes one above it
(`next_incarnation`).
"""

from __future__ import annotations

import random

__all__ = ["MAX_FIRST", "MAX_STEP", "first_incarnation", "next_incarnation"]

RANDOM_BITS = 24
MAX_FIRST = 1 << 62
"""No start begins with more: Unix time in nanoseconds in the year 2116."""

MAX_STEP = 1 << RANDOM_BITS
"""How far one incarnation may lie above the one on record, beyond `MAX_FIRST`. So nobody can use up the numbers."""


def first_incarnation(unix_s: float, rng: random.Random) -> int:
    """The number of a start: the Unix time in nanoseconds, whose last bits (17 ms) are random.

    Args:
        unix_s: the time, right or wrong.
        rng: for the bits that make it unique where a clock stands still; not seeded by the clock.
    """
    ticks = min(max(int(unix_s * 1e9), 0), MAX_FIRST - 1) >> RANDOM_BITS
    return ticks << RANDOM_BITS | (rng.getrandbits(RANDOM_BITS) or 1)


def next_incarnation(known: int, rng: random.Random) -> int:
    """A number above `known`, that no other start takes which was named the same one."""
    return known + 1 + rng.getrandbits(RANDOM_BITS)
