"""The simulated cluster: schedules worked by hand, a twin that looks at every second, and the measures."""

import numpy as np
import pytest

from job_scheduling.heuristics import HEURISTICS, schedule
from job_scheduling.simulator import OBJECTIVES, Schedule, Simulator
from job_scheduling.trace import Jobs
from rl4sys_zmq.errors import ConfigError


def make_jobs(*rows: tuple[float, float, int], requested: list[float] | None = None) -> Jobs:
    """Return jobs of (submit time, run time, processors)."""
    submit, run, processors = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    return Jobs(submit, run, run if requested is None else np.array(requested), processors.astype(np.int64))


TEN = make_jobs(
    (0, 10, 3), (1, 5, 2), (2, 8, 1), (3, 8, 1), (4, 3, 4), (5, 8, 1), (6, 9, 1), (11, 3, 1), (12, 2, 1), (16, 1, 1)
)  # fmt: skip
"""Ten jobs for a cluster of four processors."""


def test_ten_jobs_with_backfilling() -> None:
    # Job 1 can start at 10. At 2, job 2 starts, because it ends at 10. Job 4 can start at 18. At 10, job 5 starts (it ends at 18)
    # and job 6 does not (19). At 15, job 1 ends: jobs 7 and 8 start, at 17 job 9. Job 6 is next after job 4.
    done = schedule(TEN, 4, HEURISTICS["FCFS"], backfilling=True)
    assert done.start_s.tolist() == [0, 10, 2, 10, 18, 10, 21, 15, 15, 17]


def test_backfilling_trusts_the_requested_times() -> None:
    # Job 0 ends at 4 and not, as requested, at 10. Until then job 2 is expected to end before job 1 can start.
    jobs = make_jobs((0, 4, 3), (1, 5, 4), (2, 9, 1), requested=[10, 5, 8])
    assert schedule(jobs, 4, HEURISTICS["FCFS"], backfilling=True).start_s.tolist() == [0, 11, 2]
    # Job 0 was to end at 2. From then on it may end at any time, so no job starts before job 1.
    jobs = make_jobs((0, 9, 3), (1, 5, 4), (3, 1, 1), requested=[2, 5, 1])
    assert schedule(jobs, 4, HEURISTICS["FCFS"], backfilling=True).start_s.tolist() == [0, 9, 14]


def by_seconds(jobs: Jobs, machine: int, order: list[int], *, backfilling: bool) -> list[int]:
    """Return the start times, found by a check at every second. Of the waiting jobs, the first one in `order` is chosen."""
    start: dict[int, int] = {}
    chosen: int | None = None
    reserved = second = 0
    rank = {job: place for place, job in enumerate(order)}

    def used(at: float, times: np.ndarray) -> int:
        return sum(int(jobs.processors[job]) for job, begun in start.items() if begun + times[job] > at)

    def begin(job: int) -> None:
        start[job] = second

    while len(start) < len(jobs):
        while True:
            waiting = [job for job in range(len(jobs)) if jobs.submit_s[job] <= second and job not in start and job != chosen]
            free = machine - used(second, jobs.run_s)
            if chosen is None:
                if not waiting:
                    break
                chosen = min(waiting, key=lambda job: rank[job])
                # The first second at which the job fits, by the requested times.
                reserved = second
                while machine - used(reserved, np.maximum(jobs.requested_s, 1)) < jobs.processors[chosen]:
                    reserved += 1
            elif jobs.processors[chosen] <= free:
                begin(chosen)
                chosen = None
            else:
                fits = [j for j in waiting if jobs.processors[j] <= free and second + jobs.requested_s[j] <= reserved]
                if not backfilling or not fits:
                    break
                begin(fits[0])
        second += 1
    return [start[job] for job in range(len(jobs))]


@pytest.mark.parametrize("backfilling", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_schedule_is_that_of_a_clock_that_ticks(seed: int, backfilling: bool) -> None:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 40, 25)).astype(float)
    run = rng.integers(1, 12, 25).astype(float)
    jobs = Jobs(submit, run, run, rng.integers(1, 9, 25))
    order = rng.permutation(25).tolist()
    simulator = Simulator(jobs, 8, backfilling=backfilling)
    while not simulator.finished:
        simulator.start(min(simulator.waiting, key=order.index))
    assert simulator.schedule().start_s.tolist() == by_seconds(jobs, 8, order, backfilling=backfilling)


def test_the_measures() -> None:
    # Job 0 runs at once, job 1 waits for 95 s, job 2 for 30 s.
    jobs = make_jobs((0, 100, 2), (5, 2, 2), (72, 40, 2))
    done = Schedule(jobs, np.array([0.0, 100.0, 102.0]), 4)
    assert done.slowdowns().tolist() == [1.0, 9.7, 1.75]
    assert done.utilisation() == pytest.approx(2 * 142 / (142 * 4))
    measures = {name: done.objective(name) for name in OBJECTIVES}
    assert measures == pytest.approx(
        {"bounded_slowdown": 12.45 / 3, "waiting_time": 125 / 3, "turnaround": 267 / 3, "utilisation": -0.5}
    )
    assert Schedule(jobs, jobs.submit_s, 4).slowdowns().tolist() == [1, 1, 1]  # also for 2 s, which are bounded by 10 s
    with pytest.raises(ConfigError, match="unknown objective 'fame'"):
        done.objective("fame")


def test_bad_jobs_and_bad_decisions_are_errors() -> None:
    with pytest.raises(ConfigError, match="no jobs"):
        Simulator(TEN.take(slice(0, 0)), 4)
    with pytest.raises(ConfigError, match="needs 4 processors and the cluster has 3"):
        Simulator(TEN, 3)
    simulator = Simulator(TEN, 4)
    for job in (1, -1, 10):
        with pytest.raises(ValueError, match="does not wait"):
            simulator.start(job)
    with pytest.raises(ValueError, match="10 jobs have not started"):
        simulator.schedule()
