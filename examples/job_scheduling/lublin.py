"""A generator of rigid jobs by the model of Lublin & Feitelson, so that no trace has to be downloaded.

[1] Lublin and Feitelson 2003, "The workload on parallel supercomputers: modeling the characteristics of rigid jobs". The
parameters are those of the authors' program for all jobs together (not divided into interactive and batch jobs).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from job_scheduling.trace import Jobs, Trace
from rl4sys_zmq.errors import ConfigError

__all__ = ["generate", "offered_load"]

# Sizes: the logarithm (to base 2) of the processors of parallel jobs is uniform in two stages, and often a whole number.
SERIAL, POWER_OF_TWO = 0.244, 0.576
"""The shares of jobs with one processor, and of those with another power of two."""
LOW_LOG2, FIRST_STAGE = 0.8, 0.86
"""The lower end of the first stage, and its share. The second stage ends with the machine."""
SECOND_STAGE_WIDTH = 2.5
"""The width of the second stage. The authors use 2.5 for 128 processors, and recommend 1.5 to 3.5."""

# Run times: the natural logarithm of the seconds has a hyper-gamma distribution. Larger jobs run longer.
SHORT, LONG = (4.2, 0.94), (312.0, 0.03)
"""Shape and scale of the two gamma distributions."""
SHORT_PER_PROCESSOR, SHORT_AT_ZERO = -0.0054, 0.78
"""The share of the first distribution falls linearly with the number of processors."""
LONGEST_LOG = 12.0
"""The logarithm of the longest run time: 45 hours."""

# Arrivals: the logarithm of the seconds between two jobs has a gamma distribution, on a clock that goes faster by day.
GAP = (10.2303 * 1.0225, 0.4871)
"""Shape and scale of the logarithm of the gaps; the second factor turns the rush hours' gaps into those of the whole day."""
LONGEST_GAP_LOG = 13.0
DAY = (8.1737, 3.9631)
"""Shape and scale of the gamma distribution of the jobs over a day, in half hours."""
HALF_HOURS, DAY_START = 48, 11
"""The number of half hours of a day, and the one at which the distribution begins (half past five in the morning)."""
HALF_HOUR_S = 1800.0


def generate(count: int, machine: int, seed: int, load: float | None = None) -> Trace:
    """Generate a trace.

    Args:
        count: The number of jobs.
        machine: The number of processors of the machine.
        seed: The seed of the random numbers.
        load: The offered load, to which the times between submissions are scaled; None for those of the model.

    Raises:
        ConfigError: If there are fewer than 2 jobs, fewer than 8 processors, or the load is not positive.
    """
    if count < 2 or machine < 8 or (load is not None and not 0.0 < load < math.inf):
        raise ConfigError(f"a workload needs 2 jobs, 8 processors and a positive load; not {count}, {machine} and {load}")
    rng = np.random.default_rng(seed)
    processors = _processors(rng, count, machine)
    run_s = np.maximum(np.floor(np.exp(_log_run_times(rng, processors))), 1.0)
    submit_s = _arrivals(rng, count)
    jobs = Jobs(np.floor(submit_s), run_s, run_s, processors)
    if load is not None:
        factor = offered_load(jobs, machine) / load
        jobs = Jobs(np.floor(submit_s * factor), run_s, run_s, processors)
    return Trace(jobs, machine)


def offered_load(jobs: Jobs, machine: int) -> float:
    """Return the processor time that the jobs need, as a share of the machine's between the first and the last submission."""
    return float(jobs.run_s @ jobs.processors) / float((jobs.submit_s[-1] - jobs.submit_s[0]) * machine)


def _processors(rng: np.random.Generator, count: int, machine: int) -> NDArray[np.int64]:
    kind, high = rng.random(count), math.log2(machine)
    middle = max(high - SECOND_STAGE_WIDTH, LOW_LOG2)
    first = rng.random(count) <= FIRST_STAGE
    size = rng.uniform(np.where(first, LOW_LOG2, middle), np.where(first, middle, high))
    size = np.where(kind <= SERIAL + POWER_OF_TWO, np.floor(size + 0.5), size)
    processors = np.where(kind <= SERIAL, 1.0, np.floor(2.0**size + 0.5))
    return np.minimum(processors, machine).astype(np.int64)


def _log_run_times(rng: np.random.Generator, processors: NDArray[np.int64]) -> NDArray[np.float64]:
    short = np.clip(SHORT_PER_PROCESSOR * processors + SHORT_AT_ZERO, 0.0, 1.0)
    found = np.full(len(processors), np.inf)
    while (again := found > LONGEST_LOG).any():
        first = rng.random(len(found)) <= short
        drawn = np.where(first, rng.gamma(*SHORT, len(found)), rng.gamma(*LONG, len(found)))
        found = np.where(again, drawn, found)
    return found


def _arrivals(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return the submit times: gaps on an even clock, moved to the hours of days that begin at midnight."""
    gaps = np.full(count, np.inf)
    while (again := gaps > LONGEST_GAP_LOG).any():
        gaps = np.where(again, rng.gamma(*GAP, count), gaps)
    even_s = np.cumsum(np.exp(gaps))
    weights = day_weights()
    of_day_s = np.concatenate([[0.0], np.cumsum(weights)]) * HALF_HOUR_S
    day_s = HALF_HOURS * HALF_HOUR_S
    days, within_s = np.divmod(even_s, day_s)
    times_s: NDArray[np.float64] = days * day_s + np.interp(within_s, of_day_s, np.arange(HALF_HOURS + 1) * HALF_HOUR_S)
    return times_s


def day_weights() -> NDArray[np.float64]:
    """Return the rate of arrivals in each half hour of a day from midnight, relative to the mean, ``[48]``."""
    shape, scale = DAY
    weights = np.empty(HALF_HOURS)
    for half_hour in range(DAY_START, DAY_START + HALF_HOURS):
        x = np.linspace(half_hour - 0.5, half_hour + 0.5, 33)
        weights[(half_hour - 1) % HALF_HOURS] = np.exp((shape - 1.0) * np.log(x) - x / scale).mean()
    relative: NDArray[np.float64] = weights / weights.mean()
    return relative
