"""The classic schedulers: their formulas on round numbers, and the order in which each starts ten jobs."""

import numpy as np
import pytest

from job_scheduling.heuristics import HEURISTICS, schedule
from job_scheduling.trace import Jobs

ONE = Jobs(np.array([1000.0]), np.array([7.0]), np.array([100.0]), np.array([16]))
"""A job submitted at 1000 s that requests 100 s on 16 processors. It runs for 7 s, which no scheduler knows."""

SCORES = {
    "FCFS": 1000.0,
    "SJF": 100.0,
    "WFP3": -(2.0**3) * 16,
    "UNICEP": -200 / (4 * 100),
    "F1": 2 * 16 + 870 * 3,
    "F2": 10 * 16 + 25_600 * 3,
    "F3": 100 * 16 + 6_860_000 * 3,
    "F4": 100 * 4 + 530_000 * 3,
}
"""The score of this job at 1200 s."""


@pytest.mark.parametrize("name", HEURISTICS)
def test_a_score_is_that_of_the_formula(name: str) -> None:
    assert HEURISTICS[name](ONE, 1200.0) == pytest.approx(SCORES[name])


TEN = Jobs(
    submit_s=np.array([1000.0, 1200.0, 1500.0, 2300.0, 2700.0, 2900.0, 3100.0, 3400.0, 3700.0, 4700.0]),
    run_s=np.array([4000.0, 10.0, 500.0, 10_000.0, 1000.0, 100.0, 50.0, 2000.0, 200.0, 20.0]),
    requested_s=np.array([4000.0, 10.0, 500.0, 10_000.0, 1000.0, 100.0, 50.0, 2000.0, 200.0, 20.0]),
    processors=np.array([256, 256, 140, 180, 150, 220, 160, 130, 200, 240]),
)
"""Ten jobs of which no two fit on a cluster of 256 processors. Job 0 runs until all others wait, at 5000 s."""

ORDERS = {
    "FCFS": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    "SJF": [0, 1, 9, 6, 5, 8, 2, 4, 7, 3],
    # At 5000 s job 1 has -(380³) 256, then come 6 (38³ 160), 5 (21³ 220), 9 (15³ 240), 8 (6.5³ 200), 2 (7³ 140), ...
    "WFP3": [0, 1, 6, 5, 9, 8, 2, 4, 7, 3],
    # -47.5, then -5.19 (job 6), -2.70 (5), -1.90 (9), -0.98 (2), -0.85 (8), -0.32 (4), ...
    "UNICEP": [0, 1, 6, 5, 9, 2, 8, 4, 7, 3],
    # Scores: 2935 (1), 3141 (2), 3309 (6), 3435 (4), 3452 (5), 3502 (7), 3507 (9), 3564 (8), 3645 (3)
    "F1": [0, 1, 2, 6, 4, 5, 7, 9, 8, 3],
    # In thousands: 79.6 (1), 84.4 (2), 90.5 (6), 90.8 (5), 92.6 (4), 94.2 (8), 95.1 (9), 96.2 (7), 104.1 (3)
    "F2": [0, 1, 2, 6, 5, 4, 8, 9, 7, 3],
    # In millions: 21.13, 21.86, 23.69, 23.77, 23.96, 24.49, 24.52, 24.86, 25.20
    "F3": [0, 1, 2, 4, 5, 6, 7, 8, 3, 9],
    # In millions: 1.632, 1.689, 1.831, 1.837, 1.851, 1.8940 (8), 1.8945 (7), 1.916, 1.947
    "F4": [0, 1, 2, 4, 5, 6, 8, 7, 3, 9],
}
"""The order in which each scheduler starts these jobs, worked by hand from the scores."""


@pytest.mark.parametrize("name", HEURISTICS)
@pytest.mark.parametrize("backfilling", [False, True])
def test_ten_jobs_start_in_the_order_of_the_scores(name: str, backfilling: bool) -> None:
    done = schedule(TEN, 256, HEURISTICS[name], backfilling=backfilling)
    order = np.argsort(done.start_s)
    assert order.tolist() == ORDERS[name]
    ends = (done.start_s + TEN.run_s)[order]
    assert done.start_s[order].tolist() == [1000.0, *ends[:-1]]


def test_serial_jobs_go_first_in_unicep() -> None:
    jobs = Jobs(np.array([0.0, 10.0, 10.0]), np.ones(3), np.array([1.0, 500.0, 400.0]), np.array([2, 1, 1]))
    assert np.argsort(HEURISTICS["UNICEP"](jobs, 20.0)).tolist() == [2, 1, 0]


def test_equal_scores_go_by_submission() -> None:
    jobs = Jobs(np.array([0.0, 1.0, 2.0, 3.0]), np.full(4, 5.0), np.full(4, 5.0), np.full(4, 8))
    assert schedule(jobs, 8, HEURISTICS["SJF"]).start_s.tolist() == [0, 5, 10, 15]
