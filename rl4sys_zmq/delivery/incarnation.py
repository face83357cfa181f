"""Incarnations: the numbers that identify the starts of an actor. A later start should have a higher number.

An incarnation consists of the time and random bits, which make it unique even if the clock was set back or has stopped. It can
then be lower than that of an earlier start: the learner replies with the number on record, and the actor takes a higher one.
"""

from __future__ import annotations

import random

RANDOM_BITS = 24
# The limit on an incarnation that is made from the time: Unix time in nanoseconds in the year 2116.
MAX_FIRST = 1 << 62

# The largest allowed difference between a new incarnation and the one on record, or `MAX_FIRST` if that is higher. Without
# this limit, a faulty or hostile peer could use up all numbers.
MAX_STEP = 1 << RANDOM_BITS


def first_incarnation(unix_s: float, rng: random.Random) -> int:
    """Return the Unix time in nanoseconds, which may be incorrect, with `RANDOM_BITS` random low bits (17 ms)."""
    ticks = min(max(int(unix_s * 1e9), 0), MAX_FIRST - 1) >> RANDOM_BITS
    return ticks << RANDOM_BITS | (rng.getrandbits(RANDOM_BITS) or 1)


def next_incarnation(known: int, rng: random.Random) -> int:
    """Return a random incarnation above `known`. Two starts of an actor that both received `known` get different numbers."""
    return known + 1 + rng.getrandbits(RANDOM_BITS)
