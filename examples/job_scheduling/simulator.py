"""An event-driven simulator of a cluster, and the measures of the schedules that it produces."""

from __future__ import annotations

import copy
import heapq
from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from job_scheduling.trace import Jobs
from rl4sys_zmq.errors import ConfigError

__all__ = ["OBJECTIVES", "SHORT_JOB_S", "ClusterState", "Schedule", "Simulator"]

SHORT_JOB_S = 10.0
"""The run time that the bounded slowdown assumes for shorter jobs, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The start times of all jobs.

    Attributes:
        jobs: The jobs, ``N``.
        start_s: The time at which each job starts, in seconds, ``[N]``.
        machine: The number of processors of the cluster.
    """

    jobs: Jobs
    start_s: NDArray[np.float64]
    machine: int

    def first(self, count: int) -> Schedule:
        """Return the schedule of the jobs that were submitted first."""
        return Schedule(self.jobs.take(slice(count)), self.start_s[:count], self.machine)

    def waits_s(self) -> NDArray[np.float64]:
        """Return the time that each job waits, ``[N]``."""
        return self.start_s - self.jobs.submit_s

    def slowdowns(self) -> NDArray[np.float64]:
        """Return the bounded slowdown of each job, ``max(1, (wait + run) / max(run, 10 s))`` (Feitelson et al. 1997), ``[N]``."""
        run_s = self.jobs.run_s
        slowdowns: NDArray[np.float64] = np.maximum((self.waits_s() + run_s) / np.maximum(run_s, SHORT_JOB_S), 1.0)
        return slowdowns

    def utilisation(self) -> float:
        """Return the share of the processors' time in use, from the first submission to the end of the last job."""
        jobs = self.jobs
        span_s = float((self.start_s + jobs.run_s).max() - jobs.submit_s.min())
        return float(jobs.run_s @ jobs.processors) / (span_s * self.machine)

    def objective(self, name: str) -> float:
        """Return a measure of the schedule, by its name in `OBJECTIVES`. Lower is better."""
        match name:
            case "bounded_slowdown":
                return float(self.slowdowns().mean())
            case "waiting_time":
                return float(self.waits_s().mean())
            case "turnaround":
                return float((self.waits_s() + self.jobs.run_s).mean())
            case "utilisation":
                return -self.utilisation()
        raise ConfigError(f"unknown objective {name!r}; the objectives are {', '.join(OBJECTIVES)}", key="objective")


OBJECTIVES = ("bounded_slowdown", "waiting_time", "turnaround", "utilisation")
"""The names of the measures: means over the jobs (times in seconds), and the negative of the utilisation."""


class ClusterState(Protocol):
    """The state of a cluster at a decision: a `Simulator`, or a cluster that really runs."""

    @property
    def jobs(self) -> Jobs:
        """All jobs."""

    @property
    def machine(self) -> int:
        """The number of processors."""

    @property
    def backfilling(self) -> bool:
        """True if other jobs may start while the chosen one cannot."""

    @property
    def waiting(self) -> list[int]:
        """The rows of the waiting jobs, in the order of submission."""

    @property
    def now_s(self) -> float:
        """The time, in seconds."""

    @property
    def free(self) -> int:
        """The number of free processors."""

    def running(self) -> list[tuple[float, int]]:
        """Return the requested end of each running job in seconds, and its number of processors, by this end."""


class Simulator:
    """A cluster on which jobs run in the order that a scheduler decides.

    The scheduler chooses one of the waiting jobs, with `start`. If the cluster has too few free processors for this job, no other
    job is chosen until it has started. With backfilling, waiting jobs may start meanwhile, in the order of their submission, if
    by their requested times they end when the chosen job can start, or before. This is the first of the two conditions of EASY
    (Mualem & Feitelson 2001). All jobs that end or arrive at the same time do so before a job is started.

    RLScheduler's simulator has only this condition too, but a job must end before the chosen one can start, and what happens at
    the same time happens one after another, with backfilling in between.

    A decision is due while jobs wait. If no job waits, time moves to the next submission.

    Attributes:
        jobs: The jobs, ``N``.
        machine: The number of processors of the cluster.
        backfilling: True if other jobs start while the chosen job cannot.
        now_s: The current time, in seconds.
        free: The number of free processors.
        waiting: The jobs that wait, as their rows in `jobs`, in the order of submission. Do not change it.
        order: The jobs that have started, in the order of their starts. Do not change it.
    """

    def __init__(self, jobs: Jobs, machine: int, *, backfilling: bool = False) -> None:
        """Prepare an empty cluster at the time of the first submission.

        Args:
            jobs: The jobs.
            machine: The number of processors of the cluster.
            backfilling: True to let other jobs start while the chosen job cannot.

        Raises:
            ConfigError: If there are no jobs, or a job needs more processors than the cluster has.
        """
        if not len(jobs):
            raise ConfigError("there are no jobs to schedule", key="jobs")
        if (most := int(jobs.processors.max())) > machine:
            raise ConfigError(f"a job needs {most} processors and the cluster has {machine}", key="processors")
        self.jobs = jobs
        self.machine = machine
        self.free = machine
        self.waiting: list[int] = []
        self.order: list[int] = []
        self.backfilling = backfilling
        # Python's numbers: access to an item of an array takes several times as long.
        self._submit: list[float] = jobs.submit_s.tolist()
        self._run: list[float] = jobs.run_s.tolist()
        self._requested: list[float] = jobs.requested_s.tolist()
        self._processors: list[int] = jobs.processors.tolist()
        self._start = [0.0] * len(jobs)
        self._running: list[tuple[float, int]] = []
        """Heap of the running jobs: the time at which each ends, and its row."""
        self._arrived = 0
        self.now_s = self._submit[0]
        self._arrive()

    @property
    def arrived(self) -> int:
        """The number of jobs that have been submitted."""
        return self._arrived

    @property
    def finished(self) -> bool:
        """True if all jobs have started."""
        return len(self.order) == len(self._submit)

    def start_s(self, job: int) -> float:
        """Return the time at which a job has started, in seconds."""
        return self._start[job]

    def starts_s(self) -> list[float]:
        """Return the times at which all jobs have started, in seconds; 0 for those that have not."""
        return self._start.copy()

    def run_s(self, job: int) -> float:
        """Return the time that a job runs, in seconds."""
        return self._run[job]

    def running(self) -> list[tuple[float, int]]:
        """Return the requested end of each running job in seconds, and its number of processors, by this end.

        A job that has run for longer than requested can end at any time: its requested end is now.
        """
        ends = [(max(self._start[job] + self._requested[job], self.now_s), self._processors[job]) for _, job in self._running]
        return sorted(ends)

    def start(self, job: int) -> None:
        """Start a waiting job as soon as it fits, and go to the next decision.

        Raises:
            ValueError: If the job does not wait.
        """
        place = bisect_left(self.waiting, job)
        if place == len(self.waiting) or self.waiting[place] != job:
            raise ValueError(f"job {job} does not wait")
        del self.waiting[place]
        if self._processors[job] > self.free:
            if self.backfilling:
                self._wait_and_backfill(self._processors[job])
            else:
                while self._processors[job] > self.free:
                    self._next_event()
        self._begin(job)
        if not self.waiting and self._arrived < len(self._submit):
            self._go_to(max(self.now_s, self._submit[self._arrived]))

    def copy(self) -> Simulator:
        """Return another cluster in the same state."""
        twin = copy.copy(self)
        twin.waiting, twin.order = self.waiting.copy(), self.order.copy()
        twin._start, twin._running = self._start.copy(), self._running.copy()
        return twin

    def schedule(self) -> Schedule:
        """Return the start times of all jobs.

        Raises:
            ValueError: If jobs have not started.
        """
        if not self.finished:
            raise ValueError(f"{len(self._submit) - len(self.order)} jobs have not started")
        return Schedule(self.jobs, np.array(self._start), self.machine)

    def _begin(self, job: int) -> None:
        self.free -= self._processors[job]
        self._start[job] = self.now_s
        heapq.heappush(self._running, (self.now_s + self._run[job], job))
        self.order.append(job)

    def _wait_and_backfill(self, needed: int) -> None:
        """Go on until as many processors are free as the chosen job needs, and start other jobs that end before."""
        reserved_s, free = self.now_s, self.free
        for end_s, released in self.running():
            free += released
            reserved_s = end_s
            if free >= needed:
                break
        processors, requested = self._processors, self._requested
        candidates = self.waiting.copy()
        while self.free < needed:
            if self.free:
                left = []  # a job that would end too late now would do so later, too
                for job in candidates:
                    if self.now_s + requested[job] <= reserved_s:
                        if processors[job] <= self.free:
                            self.waiting.remove(job)
                            self._begin(job)
                        else:
                            left.append(job)
                candidates = left
            arrived = self._arrived
            self._next_event()
            candidates += range(arrived, self._arrived)

    def _next_event(self) -> None:
        """Go to the next end of a job or the next submission."""
        end_s = self._running[0][0]
        if self._arrived < len(self._submit):
            end_s = min(end_s, self._submit[self._arrived])
        self._go_to(end_s)

    def _go_to(self, time_s: float) -> None:
        self.now_s = time_s
        running = self._running
        while running and running[0][0] <= time_s:
            self.free += self._processors[heapq.heappop(running)[1]]
        self._arrive()

    def _arrive(self) -> None:
        """Let the jobs wait that have been submitted by now."""
        submit, arrived, now_s = self._submit, self._arrived, self.now_s
        while arrived < len(submit) and submit[arrived] <= now_s:
            self.waiting.append(arrived)
            arrived += 1
        self._arrived = arrived
