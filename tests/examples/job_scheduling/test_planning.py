"""Plans of the known jobs: hand-worked costs, and the scheduler that takes the best plan."""

import numpy as np
import pytest

from job_scheduling import planning
from job_scheduling.heuristics import schedule
from job_scheduling.lublin import generate
from job_scheduling.planning import CANDIDATES, LATER_COST, PAUSE_COST, PLANNED_JOBS, Planner, planned_schedule
from job_scheduling.simulator import Simulator
from job_scheduling.trace import Jobs


def make_jobs(run_s: list[float], processors: list[int], requested_s: list[float] | None = None) -> Jobs:
    return Jobs(np.zeros(len(run_s)), np.array(run_s), np.array(requested_s or run_s), np.array(processors))


def test_the_costs_of_plans() -> None:
    # Job 0 has 3 of 4 processors, and has requested 100 s (and runs for 50). Job 1 fits beside it, the others do not.
    jobs = make_jobs([50.0, 20.0, 30.0, 40.0], [3, 1, 2, 4], [100.0, 20.0, 30.0, 40.0])
    simulator = Simulator(jobs, 4)
    simulator.start(0)
    assert (simulator.now_s, simulator.free) == (0.0, 1)
    # Job 1 at 0 s; job 2 at 100 s, after pauses of 100 s; job 3 at 130 s, after 30 s.
    first = 1.0 + (100 + 30) / 30 + (130 + 40) / 40 + PAUSE_COST * (100**2 + 30**2) / 2
    # Job 2 at 100 s; job 1 beside it; job 3 at 130 s.
    second = (100 + 30) / 30 + (100 + 20) / 20 + (130 + 40) / 40 + PAUSE_COST * (100**2 + 30**2) / 2
    # Job 3 at 100 s; jobs 1 and 2 at 140 s.
    third = (100 + 40) / 40 + (140 + 20) / 20 + (140 + 30) / 30 + PAUSE_COST * (100**2 + 40**2) / 2
    costs = Planner(simulator).costs(np.array([3, 1, 2]))
    assert costs == pytest.approx([third + 2 * LATER_COST, first, second + LATER_COST])
    assert simulator.waiting == [1, 2, 3]


def test_jobs_that_are_not_tried_have_the_largest_cost() -> None:
    count = PLANNED_JOBS + 5
    jobs = make_jobs([1000.0, *np.arange(10.0, 10.0 + count)], [4, *[2] * count])
    simulator = Simulator(jobs, 4)
    simulator.start(0)
    costs = Planner(simulator).costs(np.arange(1, count + 1))
    assert len(set(costs[:CANDIDATES].tolist())) == CANDIDATES
    assert (costs[CANDIDATES:] == costs.max()).all()
    assert Planner(simulator).costs(np.array([1])).shape == (1,)


@pytest.mark.parametrize("seed", range(8))
def test_a_choice_of_plans_is_never_worse_than_their_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    # This holds if no job is submitted later, and if the costs are the slowdowns alone.
    monkeypatch.setattr(planning, "PAUSE_COST", 0.0)
    monkeypatch.setattr(planning, "LATER_COST", 0.0)
    jobs = generate(CANDIDATES, 64, seed).jobs
    jobs = Jobs(np.zeros(CANDIDATES), jobs.run_s, jobs.requested_s, jobs.processors)
    planned = planned_schedule(jobs, 64).objective("bounded_slowdown")
    by_size = schedule(jobs, 64, lambda jobs, now_s: np.sqrt(jobs.requested_s) * jobs.processors).objective("bounded_slowdown")
    assert planned <= by_size * (1.0 + 1e-9)
