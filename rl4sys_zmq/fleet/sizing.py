"""The rule that grows or shrinks a fleet by the time that its actors wait for the learner. A pure function.

An actor waits when the learner grants no credit or requires newer weights. So the share of waiting time tells which side is
slower:

- If actors wait most of the time, there are too many. The work of the fleet then needs only as many actors as would wait
  `TARGET` of their time.
- If actors hardly wait, there are too few: the learner waits for data. The fleet grows in steps of a quarter.

Between the two thresholds nothing changes. A fleet that has just grown or shrunk by this rule lands between them if the learner
takes as many steps as before, so that it does not swing. Growth that brings less than half of the steps that it should bring
shows that the machine or the network is the limit. Such growth is taken back, and not tried again for `CEILING_WINDOWS`
windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

GROW_BELOW, TARGET, SHRINK_ABOVE = 0.1, 0.25, 0.5
"""Shares of the time that an actor waits: the fleet grows below the first, shrinks above the last, and aims at the middle."""
GROWTH = 4
"""The fleet grows by one actor for each `GROWTH` actors that it has, and by at least one."""
CEILING_WINDOWS = 20
"""The number of windows for which a size that brought too little is not tried again."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The speed and the waiting time of a fleet in one window of time. All its actors had a session for the whole window."""

    actors: int
    waiting: float  # the mean share of the time in which an actor waited, from 0 to 1
    steps_per_s: float  # of the whole fleet


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The bounds on the number of actors of a fleet, both inclusive."""

    min_actors: int
    max_actors: int


@dataclass(frozen=True, slots=True)
class SizingMemory:
    """The memory of the rule `next_size` from one window to the next: the last growth, and a limit on the size."""

    # the load before the fleet last grew. None if its last change was not a growth, or the growth has paid
    before_growth: FleetLoad | None = None
    ceiling: int = 0  # the largest size that may be tried
    ceiling_windows: int = 0  # the number of windows for which `ceiling` holds. 0: there is no limit


def next_size(load: FleetLoad, memory: SizingMemory, limits: SizeLimits) -> tuple[int, SizingMemory]:
    """Return the number of actors that the fleet should have after a window, and the `memory` for the next call."""
    memory = replace(memory, ceiling_windows=max(0, memory.ceiling_windows - 1))
    actors, before = load.actors, memory.before_growth
    if load.waiting < GROW_BELOW and before is not None and not _paid(before, load):
        size = _bounded(before.actors, limits)
        return size, SizingMemory(ceiling=size, ceiling_windows=CEILING_WINDOWS)
    memory = replace(memory, before_growth=None)
    if load.waiting > SHRINK_ABOVE:
        needed = math.ceil(actors * (1.0 - load.waiting) / (1.0 - TARGET))
        return _bounded(min(actors, max(needed, actors // 2)), limits), memory
    if load.waiting < GROW_BELOW:
        most = min(memory.ceiling, limits.max_actors) if memory.ceiling_windows else limits.max_actors
        size = min(actors + max(1, actors // GROWTH), most)
        if size > actors:
            return _bounded(size, limits), replace(memory, before_growth=load)
    return _bounded(actors, limits), memory


def _paid(before: FleetLoad, now: FleetLoad) -> bool:
    """Return True if the growth after `before` has brought at least half of the steps that the added actors should bring."""
    return now.steps_per_s >= before.steps_per_s * (1.0 + 0.5 * (now.actors / before.actors - 1.0))


def _bounded(size: int, limits: SizeLimits) -> int:
    return max(limits.min_actors, min(size, limits.max_actors))
