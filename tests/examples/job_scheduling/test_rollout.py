"""Schedules that a classic scheduler completes."""

import numpy as np
import pytest

from job_scheduling.heuristics import HEURISTICS, STATIC, schedule
from job_scheduling.lublin import generate
from job_scheduling.rollout import ranks, roll_out, roll_out_from
from job_scheduling.simulator import Simulator

JOBS = generate(150, 64, seed=4, load=1.5).jobs


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("backfilling", [False, True])
def test_a_rollout_from_the_beginning_is_the_schedule_of_the_heuristic(name: str, backfilling: bool) -> None:
    rollout = roll_out(Simulator(JOBS, 64, backfilling=backfilling), ranks(JOBS, HEURISTICS[name]))
    expected = schedule(JOBS, 64, HEURISTICS[name], backfilling=backfilling)
    assert rollout.schedule(JOBS, 64).start_s.tolist() == expected.start_s.tolist()
    assert sorted(rollout.order) == list(range(len(JOBS)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backfilling", [False, True])
def test_a_rollout_that_ends_early_is_the_whole_one(seed: int, backfilling: bool) -> None:
    rng, places = np.random.default_rng(seed), ranks(JOBS, HEURISTICS["F1"])
    simulator = Simulator(JOBS, 64, backfilling=backfilling)
    rollout = roll_out(simulator.copy(), places)
    while not simulator.finished:
        waiting = sorted(simulator.waiting, key=places.__getitem__)
        job = waiting[min(int(rng.exponential(0.7)), len(waiting) - 1)]
        state = simulator.now_s, simulator.free, simulator.waiting.copy(), simulator.order.copy()
        rollout = roll_out_from(simulator, places, job, rollout)
        assert state == (simulator.now_s, simulator.free, simulator.waiting, simulator.order)
        simulator.start(job)
        whole, started = roll_out(simulator.copy(), places), len(simulator.order)
        assert rollout.start_s == whole.start_s
        assert rollout.order == whole.order
        assert rollout.decided[started:] == whole.decided[started:]
    assert rollout.start_s == simulator.schedule().start_s.tolist()
