"""The schedule that follows if a classic scheduler makes all further decisions.

The classic schedulers with a fixed order of the jobs are fast enough to be asked after each decision of an agent, since most
decisions change little: as soon as the cluster is in the same state as without the decision, the rest is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from job_scheduling.heuristics import Heuristic
from job_scheduling.simulator import Schedule, Simulator
from job_scheduling.trace import Jobs

__all__ = ["Rollout", "ranks", "roll_out", "roll_out_from"]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """A schedule of all jobs, ``N``.

    Attributes:
        order: The jobs in the order of their starts.
        start_s: The time at which each job starts, in seconds.
        decided: ``N + 1`` flags: 1 where so many jobs have started when a decision is due.
    """

    order: list[int]
    start_s: list[float]
    decided: bytearray

    def schedule(self, jobs: Jobs, machine: int) -> Schedule:
        """Return the schedule, for its measures."""
        return Schedule(jobs, np.array(self.start_s), machine)


def ranks(jobs: Jobs, heuristic: Heuristic) -> list[int]:
    """Return the place of each job in the order of a heuristic of `STATIC`, ``N`` numbers from 0."""
    order = heuristic(jobs, 0.0).argsort(kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    found: list[int] = places.tolist()
    return found


def roll_out(simulator: Simulator, places: Sequence[int]) -> Rollout:
    """Return the schedule in which, from now on, the waiting job with the lowest place is next.

    Args:
        simulator: The cluster; it is used up.
        places: The place of each job in the order, from `ranks`.
    """
    decided = bytearray(len(places) + 1)
    while not simulator.finished:
        decided[len(simulator.order)] = 1
        simulator.start(min(simulator.waiting, key=places.__getitem__))
    return Rollout(simulator.order, simulator.starts_s(), decided)


def roll_out_from(simulator: Simulator, places: Sequence[int], job: int, known: Rollout) -> Rollout:
    """Return the schedule in which a job is next, and then the waiting job with the lowest place.

    Args:
        simulator: The cluster; it stays as it is.
        places: The place of each job in the order, from `ranks`.
        job: A waiting job.
        known: The schedule from the same state without this decision.
    """
    first = len(simulator.order)
    rest = simulator.copy()
    order, start_s, run_s = rest.order, rest.start_s, rest.run_s
    decided = known.decided[: first + 1] + bytearray(len(places) - first)
    seen, apart, differ_until_s = first, set[int](), rest.now_s
    while True:
        rest.start(job)
        for k in range(seen, len(order)):
            mine, other = order[k], known.order[k]
            if mine != other:
                apart.symmetric_difference_update((mine, other))
            if (started_s := start_s(mine)) != (otherwise_s := known.start_s[mine]):
                differ_until_s = max(differ_until_s, max(started_s, otherwise_s) + run_s(mine))
        seen = len(order)
        last = order[-1]
        # The same jobs have started, those that did so at other times have ended, and the time is the same.
        if not apart and known.decided[seen] and start_s(last) == known.start_s[known.order[seen - 1]] >= differ_until_s:
            break
        if rest.finished:
            return Rollout(order, rest.starts_s(), decided)
        decided[seen] = 1
        job = min(rest.waiting, key=places.__getitem__)
    order += known.order[seen:]
    starts_s = rest.starts_s()
    for later in known.order[seen:]:
        starts_s[later] = known.start_s[later]
    return Rollout(order, starts_s, decided[:seen] + known.decided[seen:])
