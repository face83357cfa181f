"""Plans of the known jobs, for each choice of the next one: what the waiting jobs would lose by it.

A plan uses only what a scheduler knows: the waiting jobs and the requested times. It ignores backfilling.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from job_scheduling.simulator import SHORT_JOB_S, ClusterState, Schedule, Simulator
from job_scheduling.trace import Jobs

__all__ = ["CANDIDATES", "LATER_COST", "PAUSE_COST", "PLANNED_JOBS", "Planner", "planned_schedule"]

CANDIDATES, PLANNED_JOBS = 16, 32
"""The number of jobs of which each is tried as the next one, and the number of jobs of a plan."""

PAUSE_COST = 3e-6
"""The slowdown per second squared of jobs that will be submitted, and wait, while the cluster waits for processors.

In a pause of ``t`` seconds, jobs arrive that wait half of it on average, so the pause costs ``PAUSE_COST * t**2 / 2``. It was
chosen on generated workloads that neither the training nor the tests use.
"""


LATER_COST = 0.3
"""The slowdown for each job that comes before the first job in the order of the plan. It decides between equal plans."""


class Planner:
    """The plans of a cluster.

    In a plan, one job starts as soon as it fits, and then the others, each as soon as it fits: those
    with the smallest size first, ``√r n``. This is the order of F2 (`heuristics`) without the submit times.
    """

    def __init__(self, state: ClusterState) -> None:
        """Prepare plans.

        Args:
            state: The cluster. Its jobs stay the same.
        """
        jobs = state.jobs
        self._state = state
        self._sizes = np.sqrt(jobs.requested_s) * jobs.processors
        rates = 1.0 / np.maximum(jobs.requested_s, SHORT_JOB_S)
        # The slowdown of a job that starts at t is rate * t + offset, and at least 1.
        self._rates: list[float] = rates.tolist()
        self._offsets: list[float] = ((jobs.requested_s - jobs.submit_s) * rates).tolist()
        self._requested: list[float] = jobs.requested_s.tolist()
        self._processors: list[int] = jobs.processors.tolist()

    def costs(self, waiting: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the plans cost in which each job is next.

        This is the sum of the slowdowns of the planned jobs and of the costs of pauses.

        Of more than `CANDIDATES` jobs, those with the smallest sizes are tried. The others have the largest cost.

        Args:
            waiting: The waiting jobs, ``[n]``.

        Returns:
            ``[n]`` costs.
        """
        ranking = self._sizes[waiting].argsort(kind="stable")
        tried = ranking[:CANDIDATES]
        order: list[int] = waiting[ranking[:PLANNED_JOBS]].tolist()
        state = self._state
        now_s, free, running = state.now_s, state.free, state.running()
        found = [
            LATER_COST * k + self._cost([job, *order[:k], *order[k + 1 :]], now_s, free, running.copy())
            for k, job in enumerate(order[:CANDIDATES])
        ]
        costs = np.full(len(waiting), max(found, default=0.0))
        costs[tried] = found
        return costs

    def _cost(self, order: list[int], now_s: float, free: int, running: list[tuple[float, int]]) -> float:
        """Return the cost of a plan.

        Args:
            order: The jobs, in the order of their starts.
            now_s: The time.
            free: The number of free processors.
            running: The end of each running job and its processors, as a heap; it is used up.
        """
        rates, offsets, requested, processors = self._rates, self._offsets, self._requested, self._processors
        cost = 0.0
        for job in order:
            needed = processors[job]
            if free < needed:
                before_s = now_s
                while free < needed:
                    now_s, released = heappop(running)
                    free += released
                pause_s = now_s - before_s
                cost += 0.5 * PAUSE_COST * pause_s * pause_s
            free -= needed
            heappush(running, (now_s + requested[job], needed))
            slowdown = rates[job] * now_s + offsets[job]
            cost += slowdown if slowdown > 1.0 else 1.0
        return cost


def planned_schedule(jobs: Jobs, machine: int, *, backfilling: bool = False) -> Schedule:
    """Return the schedule of a scheduler that always takes the job whose plan costs least.

    Args:
        jobs: The jobs.
        machine: The number of processors of the cluster.
        backfilling: True to let other jobs start while the chosen job cannot.

    Raises:
        ConfigError: If the jobs cannot run on this cluster.
    """
    simulator = Simulator(jobs, machine, backfilling=backfilling)
    planner = Planner(simulator)
    while not simulator.finished:
        waiting = np.array(simulator.waiting)
        simulator.start(int(waiting[planner.costs(waiting).argmin()]) if len(waiting) > 1 else int(waiting[0]))
    return simulator.schedule()
