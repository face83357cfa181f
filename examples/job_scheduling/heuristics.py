"""The classic schedulers: each gives every waiting job a score, and the job with the lowest score is next.

In the formulas, ``s`` is the submit time of a job, ``r`` its requested time, ``n`` its number of processors, and ``w`` the time
that it has waited; times are in seconds. Of jobs with equal scores, the one that was submitted first is next.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from job_scheduling.simulator import Schedule, Simulator
from job_scheduling.trace import Jobs

__all__ = ["HEURISTICS", "STATIC", "Heuristic", "schedule"]

Scores = NDArray[np.float64]
Heuristic = Callable[[Jobs, float], Scores]
"""A function of the waiting jobs ``N`` and the current time in seconds. It returns the scores of these jobs, ``[N]``."""

SERIAL = 1e-15
"""The value of ``log2(n)`` for jobs with one processor in UNICEP, where it is a divisor: such jobs go first."""


def fcfs(jobs: Jobs, now_s: float) -> Scores:
    """First come, first served: ``s``."""
    return jobs.submit_s


def sjf(jobs: Jobs, now_s: float) -> Scores:
    """Shortest job first: ``r``."""
    return jobs.requested_s


def wfp3(jobs: Jobs, now_s: float) -> Scores:
    """WFP3 (Tang et al. 2009, "Fault-aware, utility-based job scheduling on Blue Gene/P systems"): ``-(w / r)³ n``."""
    return -(((now_s - jobs.submit_s) / jobs.requested_s) ** 3) * jobs.processors


def unicep(jobs: Jobs, now_s: float) -> Scores:
    """UNICEP (Tang et al. 2009): ``-w / (log2(n) r)``. Jobs with one processor go first, by the same rule without ``log2(n)``."""
    size = np.maximum(np.log2(jobs.processors), SERIAL)
    return -(now_s - jobs.submit_s) / (size * jobs.requested_s)


def f1(jobs: Jobs, now_s: float) -> Scores:
    """F1 (Carastan-Santos & de Camargo 2017, "Obtaining dynamic scheduling policies with simulation and machine learning").

    ``log10(r) n + 870 log10(s)``
    """
    return np.log10(jobs.requested_s) * jobs.processors + 870.0 * _log_submit(jobs)


def f2(jobs: Jobs, now_s: float) -> Scores:
    """F2 of the same authors: ``√r n + 25600 log10(s)``."""
    return np.sqrt(jobs.requested_s) * jobs.processors + 25_600.0 * _log_submit(jobs)


def f3(jobs: Jobs, now_s: float) -> Scores:
    """F3 of the same authors: ``r n + 6860000 log10(s)``."""
    return jobs.requested_s * jobs.processors + 6_860_000.0 * _log_submit(jobs)


def f4(jobs: Jobs, now_s: float) -> Scores:
    """F4 of the same authors: ``r √n + 530000 log10(s)``."""
    return jobs.requested_s * np.sqrt(jobs.processors) + 530_000.0 * _log_submit(jobs)


def _log_submit(jobs: Jobs) -> Scores:
    """Return ``log10(s)``, with 1 s for earlier submissions."""
    return np.log10(np.maximum(jobs.submit_s, 1.0))


HEURISTICS: dict[str, Heuristic] = {
    "FCFS": fcfs, "SJF": sjf, "WFP3": wfp3, "UNICEP": unicep, "F1": f1, "F2": f2, "F3": f3, "F4": f4
}  # fmt: skip
"""The classic schedulers by name."""

STATIC = ("FCFS", "SJF", "F1", "F2", "F3", "F4")
"""Those whose scores do not depend on the current time."""


def schedule(jobs: Jobs, machine: int, heuristic: Heuristic, *, backfilling: bool = False) -> Schedule:
    """Return the schedule of a heuristic.

    Args:
        jobs: The jobs.
        machine: The number of processors of the cluster.
        heuristic: The function that gives each waiting job its score.
        backfilling: True to let other jobs start while the chosen job cannot.

    Raises:
        ConfigError: If the jobs cannot run on this cluster.
    """
    simulator = Simulator(jobs, machine, backfilling=backfilling)
    while not simulator.finished:
        waiting = np.array(simulator.waiting)
        simulator.start(int(waiting[heuristic(jobs.take(waiting), simulator.now_s).argmin()]))
    return simulator.schedule()
