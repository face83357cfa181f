"""Tests of the generator of workloads: the shares and the hours of the model, and the requested load."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from job_scheduling import check_golden, lublin
from job_scheduling.heuristics import HEURISTICS, schedule
from rl4sys_zmq.errors import ConfigError

from .traces import write_swf


def test_the_jobs_are_those_of_the_model() -> None:
    trace = lublin.generate(40_000, 256, seed=3)
    jobs, sizes = trace.jobs, trace.jobs.processors
    assert (jobs.submit_s[:-1] <= jobs.submit_s[1:]).all()
    assert sizes.min() == 1 and sizes.max() == 256
    assert np.mean(sizes == 1) == pytest.approx(0.244, abs=0.01)
    parallel = sizes[sizes > 1]
    powers = np.isin(parallel, 2 ** np.arange(1, 9))
    assert 0.576 / 0.756 < powers.mean() < 0.576 / 0.756 + 0.12  # some of the others are powers of two by chance
    assert np.mean(np.log2(parallel) <= 5.5) == pytest.approx(0.86, abs=0.02)
    assert jobs.run_s.min() >= 1 and jobs.run_s.max() <= math.exp(12)
    assert np.array_equal(jobs.run_s, jobs.requested_s)
    # The long ones are e to the power of a gamma variable with mean 9.36 and standard deviation 0.53.
    long = np.log(jobs.run_s[(sizes > 200)])
    assert np.median(long[long > 7.5]) == pytest.approx(9.36, abs=0.1)


def by_half_hours(even_s: np.ndarray, weights: np.ndarray) -> list[float]:
    """Return the times at which a clock with its own rate in each half hour has counted these seconds."""
    times = []
    for due in even_s:
        counted, half_hour = 0.0, 0
        while counted + weights[half_hour % 48] * 1800 <= due:
            counted += weights[half_hour % 48] * 1800
            half_hour += 1
        times.append(1800 * (half_hour + (due - counted) / (weights[half_hour % 48] * 1800)))
    return times


def test_arrivals_follow_the_hours_of_the_day() -> None:
    weights = lublin.day_weights()
    assert weights.mean() == pytest.approx(1.0)
    assert int(weights.argmax()) == 27  # half past one in the afternoon: the mode, (8.1737 - 1) * 3.9631, is bucket 28
    assert weights[:10].max() < 0.6
    rng, twin = np.random.default_rng(7), np.random.default_rng(7)
    even_s = np.cumsum(np.exp(twin.gamma(10.2303 * 1.0225, 0.4871, 400)))
    assert lublin._arrivals(rng, 400) == pytest.approx(np.array(by_half_hours(even_s, weights)))


@pytest.mark.parametrize("load", [0.5, 0.9, 1.3])
def test_the_load_is_the_one_asked_for(load: float) -> None:
    trace, free = lublin.generate(3000, 128, 1, load), lublin.generate(3000, 128, 1)
    assert lublin.offered_load(trace.jobs, 128) == pytest.approx(load, rel=1e-3)
    assert np.array_equal(trace.jobs.run_s, free.jobs.run_s)
    again = lublin.generate(3000, 128, 1, load)
    assert np.array_equal(trace.jobs.submit_s, again.jobs.submit_s)
    assert not np.array_equal(lublin.generate(3000, 128, 2, load).jobs.run_s, trace.jobs.run_s)


@pytest.mark.parametrize("bad", [(1, 128, 0, None), (10, 4, 0, None), (10, 128, 0, 0.0), (10, 128, 0, math.inf)])
def test_a_workload_that_cannot_be_is_an_error(bad: tuple[int, int, int, float | None]) -> None:
    with pytest.raises(ConfigError, match="a workload needs"):
        lublin.generate(*bad)


@pytest.mark.parametrize("backfilling", [False, True])
def test_figures_of_another_simulator_are_compared(backfilling: bool, tmp_path: Path, call: Any) -> None:
    trace = lublin.generate(2 * check_golden.WINDOW, 64, 1)
    write_swf(tmp_path / "a.swf", trace)

    def figure(index: int, name: str) -> float:
        done = schedule(trace.window(index, 1024), 64, HEURISTICS[name], backfilling=backfilling)
        return round(done.objective("bounded_slowdown"), 4)

    figures = [{name: figure(index, name) for name in ("SJF", "F2")} for index in range(2)]

    def compare(document: object) -> tuple[int, str, str]:
        (tmp_path / "figures.json").write_text(json.dumps(document))
        code, out, err = call(check_golden, tmp_path / "a.swf", tmp_path / "figures.json", *["--backfilling"] * backfilling)
        return code, out, err

    code, out, _ = compare({"mean_bounded_slowdown": figures})
    assert code == 0 and "0 figures differ" in out
    figures[1]["F2"] += 0.0002
    code, out, _ = compare({"mean_bounded_slowdown": figures})
    assert code == 1 and "1 figures differ" in out and "!! F2" in out
    code, _, err = compare({})
    assert code == 1 and "mean_bounded_slowdown" in err
