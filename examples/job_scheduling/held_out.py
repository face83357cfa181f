"""The environment on which a learner compares the versions of a scheduler during a training."""

from __future__ import annotations

from job_scheduling.environment import Scheduling, SchedulingEnv, best_reference
from job_scheduling.lublin import generate

__all__ = ["HELD_OUT", "make"]

HELD_OUT = "HeldOutJobs-v0"
"""The ID of the environment in Gymnasium."""

SEED = 55_000_000
"""The seed of the workloads. Training and tests use other ones."""
LOADS = (0.8, 0.9, 1.0, 1.1, 1.2)
JOBS = 10_000


def make(
    *, length: int = 1024, machine: int = 256, backfilling: bool = False, objective: str = "bounded_slowdown", jobs: int = JOBS
) -> SchedulingEnv:
    """Return an environment with generated workloads. The sum of rewards is the part of the reference's objective that is saved.

    Args:
        length: The number of jobs of an episode.
        machine: The number of processors.
        backfilling: True to let other jobs start while the chosen one cannot.
        objective: The measure of a schedule, one of `OBJECTIVES`.
        jobs: The number of jobs of each workload.

    Raises:
        ConfigError: If a value is invalid.
    """
    rules = Scheduling(
        length=length, backfilling=backfilling, objective=objective, rewards="end", reference=best_reference(backfilling)
    )
    return SchedulingEnv([generate(max(jobs, length), machine, SEED + k, load) for k, load in enumerate(LOADS)], rules)
