"""Incarnations: the numbers that identify the starts of an actor. A later start should have a higher number.

An incarnation consists of the time and random bits (`first_incarnation`). The random bits make the number unique even if the
clock was set back or has stopped. With such a clock the number can be lower than that of an earlier start. The learner then
replies with the number that it has on record, and the actor takes a higher one (`next_incarnation`).
"""

from __future__ import annotations

import random

RANDOM_BITS = 24
MAX_FIRST = 1 << 62
"""The limit on an incarnation that is made from the time: Unix time in nanoseconds in the year 2116."""

MAX_STEP = 1 << RANDOM_BITS
"""The largest allowed difference between a new incarnation and the one on record, or `MAX_FIRST` if that is higher.

Without this limit, a faulty or hostile peer could use up all numbers.
"""


def first_incarnation(unix_s: float, rng: random.Random) -> int:
    """Return the incarnation (number) for a start of an actor: the Unix time in nanoseconds, with random low bits.

    The `RANDOM_BITS` lowest bits are random, which corresponds to 17 ms.

    Args:
        unix_s: The Unix time in seconds. An incorrect time is allowed.
        rng: The source of the random bits. It must not be seeded by the clock.
    """
    ticks = min(max(int(unix_s * 1e9), 0), MAX_FIRST - 1) >> RANDOM_BITS
    return ticks << RANDOM_BITS | (rng.getrandbits(RANDOM_BITS) or 1)


def next_incarnation(known: int, rng: random.Random) -> int:
    """Return a random incarnation (number for a start of an actor) above `known`, the one that the learner has on record.

    Because it is random, two starts of an actor that both received `known` get different incarnations.
    """
    return known + 1 + rng.getrandbits(RANDOM_BITS)
