"""The features of waiting jobs: what an agent sees of a cluster before it decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from job_scheduling.heuristics import HEURISTICS
from job_scheduling.planning import Planner
from job_scheduling.simulator import SHORT_JOB_S, ClusterState

__all__ = ["FEATURES", "USED", "WINDOW", "FeatureReader"]

WINDOW = 128
"""The number of waiting jobs that the agent sees."""

FEATURES = (
    "time waited",
    "requested time",
    "score of F2",
    "logarithm of processors",
    "score of F1",
    "delay",
    "free processors after the start",
    "outlook",
)
"""The features of a job. Times are logarithms, and free processors shares of the machine.

The scores of F1 and F2 are given above the lowest one of the waiting jobs, as logarithms. The delay is the time until the job
fits, by the requested times of the running jobs. The outlook is what a choice means for the others. Without backfilling, it is
what a plan of the waiting jobs costs in which this job is next (`Planner`), above the lowest cost, as a logarithm. With
backfilling, it is the rate at which the bounded slowdown of the other waiting jobs grows, as a logarithm.
"""

USED = FEATURES.index("logarithm of processors")
"""The feature that is above zero for each job, and zero where no job is."""

LOG_SCALE = 5.0
"""Times are given as ``log10(1 + seconds) / 5``, which is 1 after 28 hours. Scores have the same form."""


class FeatureReader:
    """The features of the jobs that wait."""

    def __init__(self, simulator: ClusterState) -> None:
        jobs = simulator.jobs
        size = np.log2(1.0 + jobs.processors) / np.log2(1.0 + simulator.machine)
        self._simulator = simulator
        self._fixed = np.stack([_log(jobs.requested_s), size], axis=1)
        self._scores = np.stack([HEURISTICS[name](jobs, 0.0) for name in ("F1", "F2")], axis=1)
        self._urgency = 1.0 / np.maximum(jobs.requested_s, SHORT_JOB_S)
        self._planner = None if simulator.backfilling else Planner(simulator)

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the waiting jobs that are seen, ``[n]``, and their features, ``[WINDOW, 8]``, with zeros after ``n`` rows.

        The jobs are in the order of submission. If more than `WINDOW` wait, those with the lowest score of F1 are seen.
        """
        simulator, jobs = self._simulator, self._simulator.jobs
        waiting = np.array(simulator.waiting, dtype=np.int64)
        urgency = self._urgency[waiting].sum()
        if len(waiting) > WINDOW:
            waiting = waiting[np.sort(np.argpartition(self._scores[waiting, 0], WINDOW)[:WINDOW])]
        features = np.zeros((WINDOW, len(FEATURES)), dtype=np.float32)
        if len(waiting):
            processors = jobs.processors[waiting]
            rows = features[: len(waiting)]
            scores = self._scores[waiting]
            rows[:, 0] = _log(simulator.now_s - jobs.submit_s[waiting])
            rows[:, 1:4:2] = self._fixed[waiting]
            rows[:, 4:1:-2] = _log(scores - scores.min(axis=0))
            rows[:, 5] = _log(self._delays_s(processors))
            rows[:, 6] = (simulator.free - processors) / simulator.machine
            if self._planner is None:
                rows[:, 7] = np.log10(1.0 + 100.0 * (urgency - self._urgency[waiting])) / LOG_SCALE
            else:
                costs = self._planner.costs(waiting)
                rows[:, 7] = _log(costs - costs.min())
        return waiting, features

    def _delays_s(self, processors: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the time until so many processors are free, by the requested times of the running jobs."""
        simulator = self._simulator
        running = simulator.running()
        ends_s = np.array([simulator.now_s, *(end_s for end_s, _ in running)])
        free = np.cumsum([simulator.free, *(count for _, count in running)])
        delays: NDArray[np.float64] = ends_s[np.searchsorted(free, processors)] - simulator.now_s
        return delays


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log10(1.0 + values) / LOG_SCALE
